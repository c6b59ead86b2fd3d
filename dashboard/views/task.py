"""One task: what it is, what it does, what it did, and what an operator can do about it."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterable
from typing import Any
from uuid import UUID

from django.http import HttpResponse, HttpResponseBase
from django.views.decorators.http import require_safe

from dashboard import past, shown, words
from dashboard.access import PageRequest, allow
from dashboard.actions import COMPENSATE, explain_obstacles, list_offers, name_position, offer_edit
from dashboard.around import find_around, read_list
from dashboard.htmx import find_unchanged, render_page, wants_part
from dashboard.panel import choose_step, open_panel
from dashboard.waterfall import draw_waterfall
from dashboard.wish import MODES, Wish, read_wish
from ledger import conf, queries, registry, states
from ledger.access import OPERATE, PAYLOAD, READ
from ledger.errors import UnknownWorkflow
from ledger.models import Task
from ledger.queries.spans import WORK
from ledger.transitions.visits import note_seen

TEMPLATE = "dashboard/task.html"
EVENTS_SHOWN = 20
"""The older ones have a page of their own."""

NOT_EVENTS = frozenset({"scheduled", "promoted"})
"""A loop that pauses between its units has two of these for each."""


@require_safe
@allow(READ)
def show_task(request: PageRequest, task_id: UUID) -> HttpResponseBase:
    """The page; for a poll what moves when only a beat came in, else every part."""
    before = request.headers.get("HX-PTag", "")
    if not before:  # the page, or a link in it
        return render_task(request, task_id)
    tag = queries.read_tag(task_id)
    if unchanged := find_unchanged(request, tag):
        return unchanged
    row = queries.find_shown(task_id)
    request.waiting_count = row.waiting_count
    fleet = load_fleet_for(row)
    if drop_beat(before) != drop_beat(queries.make_tag(row, fleet)):
        return render_task(request, task_id, row=row, fleet=fleet)
    context = load_moving(row, read_wish(request), fleet)
    return render_page(request, TEMPLATE, context, part="task-beat", tag=context["tag"])


def drop_beat(tag: str) -> list[str]:
    """A polling tag without its second part, which counts beats: what else may have changed."""
    parts = tag.split(".")
    return parts[:1] + parts[2:]


def render_task(
    request: PageRequest,
    task_id: UUID,
    *,
    row: Task | None = None,
    fleet: queries.Fleet | None = None,
    status: int = 200,
    notice: tuple[str, str] | None = None,
    after_action: bool = False,
) -> HttpResponse:
    """Every part of the page that can change, or the page.

    `row` is there for a poll, which gets a tag; `notice` is (css class, sentence); `after_action`
    says that another element asked.
    """
    polled, wish = row is not None, read_wish(request)
    beside = None if polled or wants_part(request) else read_list(wish)
    row = row or queries.find_shown(task_id, beside)
    if not polled:
        note_seen(row)
    request.waiting_count = getattr(row, "waiting_count")  # noqa: B009
    fleet = fleet or load_fleet_for(row)
    context = load_moving(row, wish, fleet)
    context |= load_rest(context, wish, fleet)
    context |= {"section": "tasks", "notice": notice, "position": name_position(row)}
    context["around"] = find_around(wish, row) if beside else None
    context |= {"polled": polled, "unfiltered": wish.write(kind="", find="")}
    fields = wish.list_pairs(kind="", find="", skip=0, open="")
    context["filter_fields"] = list(fields.items())
    context["offers"] = list_offers(row) if OPERATE in request.scopes else []
    context["undoing"] = next((one for one in context["done_outside"] if one["in_hand"]), None)
    context["settles"] = OPERATE in request.scopes and any(
        one["open"] for one in context["done_outside"]
    )
    context["compensates"] = (
        OPERATE in request.scopes
        and any(one["undoable"] for one in context["done_outside"])
        and not COMPENSATE.find_obstacle(row)
    )
    may_edit = OPERATE in request.scopes
    context["edits"] = offer_edit(row, context["panel"]["unit"]) if may_edit else []
    context["reads_log"] = PAYLOAD in request.scopes
    context["sees_log"] = context["reads_log"] and not context["ended"]
    context["sees_transcript"] = context["reads_log"] and registry.runs_agent(row)
    context["steers"] = OPERATE in request.scopes and row.status in states.UNFINISHED
    context["over"] = row.status in states.FINAL
    context["obstacles"] = explain_obstacles(context["offers"])
    return render_page(
        request,
        TEMPLATE,
        context,
        part="task-changed",
        status=status,
        tag=context["tag"] if polled else "",
        retarget="#task-vitals" if after_action else "",
        events=("done",) if after_action and status == 200 else (),
    )


def load_moving(row: Task, wish: Wish, fleet: queries.Fleet) -> dict[str, Any]:
    """What a beat can move: vitals and picture. At most four queries beside the row's own."""
    now: Any = getattr(row, "read_at")  # noqa: B009  an annotation of find_task
    task = shown.show_row(queries.task_json(row, fleet), now)
    names = shown.list_step_names(row, fleet)
    units = queries.list_units(row.pk, step=wish.step, seq=wish.unit)
    record = queries.list_record(row.pk)
    timeline = queries.build_timeline(row, units, record, now)
    asked = past.list_asked(record)
    wall = shown.measure_wall(row, now)
    before = None
    if row.status == states.RUNNING:  # nobody knows how long anything else takes
        before = queries.read_past_runs(row.workflow, row.workflow_version)
    return {
        # Of the row, which was read before the rest: a tag may be older than what is shown.
        "tag": queries.make_tag(row, fleet),
        "row": row,
        "task": task,
        "wish": wish,
        "query": wish.write(),
        "modes": MODES,
        "step": choose_step(wish, task, units),
        "ended": row.status in states.FINISHED,
        "units": units,
        "record": record,
        "timeline": timeline,
        "picture": draw_waterfall(
            timeline, task, names, units, record, wish, before.steps if before else None
        ),
        "workers": past.count_workers(timeline),
        "worked": sum((one.took for one in timeline.spans if one.kind in WORK), dt.timedelta()),
        "elapsed": timeline.end - task["created_at"],
        "recovered": len(timeline.recoveries),
        "asked": asked,
        "open_question": next((one for one in asked if one["status"] == "open"), None),
        "gauges": list_gauges(task, wall),
        "rest": estimate_rest(row, before, wall),
        "report_percent": shown.share(row.progress_done or 0, row.progress_total or 0),
        "repair_percent": shown.share(row.repair_count, row.max_repairs),
        "max_reclaims": conf.load().max_reclaims,
        "reclaim_percent": shown.share(row.reclaims, conf.load().max_reclaims),
        "counts_down": row.lease_until if is_ending(row) else None,
        "beat_marks": mark_beats(timeline),
    }


def load_rest(moving: dict[str, Any], wish: Wish, fleet: queries.Fleet) -> dict[str, Any]:
    """What only a change of the task changes: history, panel, children, artifacts, effects. At most
    five queries, one of them for a fleet that no one else needed."""
    row, record, timeline = moving["row"], moving["record"], moving["timeline"]
    called = shown.name_actors(past.list_actors(row, record, timeline))
    for one in moving["asked"]:
        one["by"] = called.get(one["by"], "")
    told = [event for event in record if event["kind"] not in NOT_EVENTS]
    return {
        "submitter": called[row.submitted_by],
        "panel": open_panel(wish, moving["task"], moving["units"], record, called),
        "restarts": past.list_restarts(timeline.restarts, moving["units"], called),
        "recoveries": past.list_recoveries(timeline.recoveries),
        "events": past.tell_events(told[:EVENTS_SHOWN], called),
        "kinds": past.count_kinds(told),
        "event_count": len(told),
        "children": load_children(moving, fleet),
        "products": queries.list_products(row.pk),
        "done_outside": [shown.show_effect(one) for one in queries.list_latest_effects(row.pk)],
        "scope": queries.find_scope(row.workflow, row.workflow_version),
    }


def load_children(moving: dict[str, Any], fleet: queries.Fleet) -> dict[str, Any] | None:
    """Its children by status, and some of them; None (and nothing read) for a task without any."""
    row, record = moving["row"], moving["record"]
    if not (row.children_open or any(event["kind"] == "spawned" for event in record)):
        return None
    counts, rows = queries.list_family(row.pk, fleet)
    now: Any = getattr(row, "read_at")  # noqa: B009
    return {
        "number": sum(counts.values()),
        "counts": [(s, words.LOOKS[s], counts[s]) for s in states.STATUSES if s in counts],
        "rows": [shown.show_row(one, now) for one in rows],
    }


def load_fleet_for(row: Task) -> queries.Fleet:
    """The live workers where they matter: for what waits for one, or what only they know."""
    if row.status != states.QUEUED:
        try:
            registry.get(row.workflow, row.workflow_version)
            return queries.Fleet(0, {})
        except UnknownWorkflow:
            pass
    return queries.load_fleet()


def list_gauges(task: dict[str, Any], wall: float) -> list[dict[str, Any]]:
    """What the task has used of each limit."""
    used, limits = task["used"], task["limits"]
    tokens = used["tokens_in"] + used["tokens_out"]
    figures: Iterable[tuple[str, str, float, float, Any]] = (
        ("Units", "units", used["units"], limits["units"], used["units"]),
        ("Tokens", "tokens", tokens, limits["tokens"], tokens),
        ("Money", "money", float(used["cost"]), float(limits["cost"]), used["cost"]),
        ("Time", "time", wall, limits["wall"], wall),
    )
    return [
        {
            "label": label,
            "kind": kind,
            "used": exact,
            "reserved": _say_reserved(kind, task["reserved"]),
            "limit": limits["cost"] if kind == "money" else limit,
            "percent": (percent := shown.share(amount, limit)),
            "css": "is-fail" if percent >= 100 else "is-stall" if percent >= 80 else "",
        }
        for label, kind, amount, limit, exact in figures
    ]


def _say_reserved(kind: str, reserved: dict[str, Any]) -> str:
    """What is announced for calls under way, or in doubt; empty if nothing is."""
    if kind == "money" and float(reserved["cost"]):
        return f"${reserved['cost']}"
    return f"{reserved['tokens']:,}" if kind == "tokens" and reserved["tokens"] else ""


def estimate_rest(row: Task, before: queries.PastRuns | None, wall: float) -> str:
    """How much work is left; nothing for what no worker runs: nobody knows how long it waits."""
    if row.status != states.RUNNING or row.started_at is None or before is None:
        return ""
    return past.say_rest(before.runs, wall)


def is_ending(row: Task) -> bool:
    """True for a lease that missed a beat."""
    left = queries.seconds_left(row)
    return left is not None and left < queries.count_warning()


def mark_beats(timeline: queries.Timeline) -> list[dict[str, Any]]:
    """Where on a line of the task's life a worker fell silent, or came back too late."""
    whole = (timeline.end - timeline.start).total_seconds()
    moments = [*(one.lost.end for one in timeline.recoveries), *timeline.refused]
    return [
        {"at": moment, "x": f"{shown.share((moment - timeline.start).total_seconds(), whole):.2f}%"}
        for moment in sorted(moments)[-20:]
    ]
