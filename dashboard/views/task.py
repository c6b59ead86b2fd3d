"""One task: what it is, what it does, what it did, and what an operator can do about it."""

from __future__ import annotations

from typing import Any
from uuid import UUID

from django.http import HttpResponse, HttpResponseBase
from django.views.decorators.http import require_safe

from dashboard import shown
from dashboard.access import PageRequest, allow
from dashboard.actions import list_offers, name_position
from dashboard.htmx import find_unchanged, render_page, wants_part
from dashboard.templatetags.longwatch import read_server_time
from ledger import conf, queries, states
from ledger.access import OPERATE, READ

TEMPLATE = "dashboard/task.html"
SHOWN = 50
"""Units and events on the page; the older ones have pages of their own."""


@require_safe
@allow(READ)
def show_task(request: PageRequest, task_id: UUID) -> HttpResponseBase:
    """The page; for a poll the vitals alone when only a beat came in, else every part."""
    tag = queries.read_tag(task_id)
    if unchanged := find_unchanged(request, tag):
        return unchanged
    before = request.headers.get("HX-PTag", "")
    if wants_part(request) and before.split(".")[0] == tag.split(".")[0]:
        context = load_vitals(queries.find_task(task_id)) | {"tag": tag}
        return render_page(request, TEMPLATE, context, part="task-vitals", tag=tag)
    return render_task(request, task_id, tag=tag)


def render_task(
    request: PageRequest,
    task_id: UUID,
    *,
    tag: str = "",
    status: int = 200,
    notice: tuple[str, str] | None = None,
    after_action: bool = False,
) -> HttpResponse:
    """Every part of the page that can change, or the page.

    `notice` is (css class, sentence); `after_action` says that another element asked.
    """
    # Read before the row: a tag may be older than what is shown, never newer.
    tag = tag or queries.read_tag(task_id)
    row = queries.find_task(task_id)
    context = load_vitals(row) | load_record(row)
    context |= {"section": "tasks", "tag": tag, "notice": notice}
    context["steps"] = shown.list_steps(context["task"], context["names"], context["sums"])
    context["offers"] = list_offers(row) if OPERATE in request.scopes else []
    context["position"] = name_position(row)
    return render_page(
        request,
        TEMPLATE,
        context,
        part="task-changed",
        status=status,
        tag="" if after_action else tag,
        retarget="#task-vitals" if after_action else "",
        events=("done",) if after_action and status == 200 else (),
    )


def load_vitals(row: Any) -> dict[str, Any]:
    """The task and its figures: three queries with `find_task`."""
    now = read_server_time()
    fleet = queries.load_fleet()
    task = shown.show_row(queries.task_json(row, fleet), now)
    used, limits = task["used"], task["limits"]
    wall = shown.measure_wall(row, now)
    tokens = used["tokens_in"] + used["tokens_out"]
    return {
        "task": task,
        "names": shown.list_step_names(row, fleet),
        "gauges": [
            _make_gauge("Units", f"{used['units']:,}", limits["units"], used["units"]),
            _make_gauge("Tokens", f"{tokens:,}", limits["tokens"], tokens),
        ],
        "wall_used": wall,
        "wall_percent": shown.share(wall, row.limit_wall),
        "report_percent": shown.share(row.progress_done or 0, row.progress_total or 0),
        "repair_percent": shown.share(row.repair_count, row.max_repairs),
        "max_reclaims": conf.load().max_reclaims,
        "reclaim_percent": shown.share(row.reclaims, conf.load().max_reclaims),
        "feedback": row.feedback if isinstance(row.feedback, dict) else {"note": row.feedback},
        "restarted": row.feedback is not None,
        "ended": row.status in states.FINISHED,
    }


def load_record(row: Any) -> dict[str, Any]:
    """What is on record of the task: steps, last units and events, artifacts, questions."""
    events = queries.list_latest_events(row.pk, limit=SHOWN, quiet=True)
    asked = queries.list_asked(row.pk)
    outputs = queries.list_latest_outputs(row.pk, limit=SHOWN)
    actors = {actor_text(event["actor"]) for event in events}
    actors |= {row.submitted_by, *(one["decided_by"] for one in asked if one["decided_by"])}
    called = shown.name_actors(actors)
    for event in events:
        event["by"] = called[actor_text(event["actor"])]
        event["summary"] = shown.summarise_data(event["data"])
    for one in asked:
        one["by"] = called.get(one["decided_by"], "")
    return {
        "sums": queries.sum_steps(row.pk),
        "outputs": outputs,
        "events": events,
        "artifacts": queries.list_artifacts(row.pk).items,
        "asked": asked,
        "submitter": called[row.submitted_by],
        "more_outputs": len(outputs) == SHOWN,
    }


def actor_text(actor: dict[str, str]) -> str:
    """{"kind": "user", "id": "3"} as `user:3`."""
    return f"{actor['kind']}:{actor['id']}" if actor["id"] else actor["kind"]


def _make_gauge(label: str, text: str, limit: int, used: int) -> dict[str, Any]:
    return {"label": label, "used": text, "limit": limit, "percent": shown.share(used, limit)}
