"""What stands still: stalled, lost, without a worker, given up. Each with what can be done now."""

from __future__ import annotations

import dataclasses
import datetime as dt
import functools
import hashlib
from typing import Any
from urllib.parse import urlencode

from django.http import HttpResponseBase
from django.urls import reverse
from django.views.decorators.http import require_safe

from dashboard import actions, words
from dashboard.access import PageRequest, allow
from dashboard.failures import group_failures
from dashboard.htmx import find_unchanged, render_page
from dashboard.shown import show_row
from dashboard.templatetags.longwatch import read_server_time
from ledger import conf, queries, registry
from ledger.access import OPERATE, READ
from ledger.errors import UnknownStep, UnknownWorkflow
from ledger.models import Task
from ledger.queries import Fleet, trouble

SHOWN = (20, 10, 5)
"""Rows of a kind, groups of it and rows of a group where all kinds are on one page; the page of the
kind shows the rest."""

OFFERED = (actions.RETRY, actions.LIMITS, actions.RESTART, actions.CANCEL)


@dataclasses.dataclass(frozen=True, slots=True)
class Kind:
    """A section of the page: its name in the URL, how it looks, what it means."""

    name: str
    look: words.Look
    note: str


KINDS = (
    Kind(trouble.STALLED, words.STALLED,
         "lease alive, no progress; nothing happens by itself until the unit's time is up"),
    Kind(trouble.LOST, words.LOST, "lease expired; queues again by itself"),
    Kind(trouble.NO_WORKER, words.NO_WORKER, "queued, but no live worker knows this version"),
    Kind(trouble.GAVE_UP, words.Look("Gave up", "dead", "is-dead"),
         "a bound is used up; each waits for a person"),
)  # fmt: skip


@require_safe
@allow(READ)
def show_trouble(request: PageRequest) -> HttpResponseBase:
    """All kinds, or the one of `?kind=`; for a poll the sections alone."""
    names = {kind.name for kind in KINDS}
    chosen = request.GET.get("kind", "")
    chosen = chosen if chosen in names else ""
    context = load_sections(chosen, OPERATE in request.scopes)
    request.waiting_count = context["counts"][trouble.APPROVALS].count
    tag = make_tag(context)
    context |= {"section": "trouble", "chosen": chosen, "tag": tag}
    return find_unchanged(request, tag) or render_page(
        request, "dashboard/trouble.html", context, part="trouble", tag=tag
    )


def load_sections(chosen: str, may_act: bool) -> dict[str, Any]:
    """The tabs with their counts, and the rows or groups of each section that is shown."""
    now, reclaims = read_server_time(), conf.load().max_reclaims
    most_rows, most_cards, most_of_card = (None, None, None) if chosen else SHOWN
    fleet = queries.load_fleet()
    unknown = queries.list_unknown(fleet)
    counts = queries.count_trouble(unknown)
    sections = []
    for kind in KINDS:
        if chosen in ("", kind.name) and (counts[kind.name].count or chosen):
            rows = queries.list_trouble(kind.name, unknown)
            show = functools.partial(
                show_task, kind.name, fleet=fleet, now=now, may_act=may_act, reclaims=reclaims
            )
            section: dict[str, Any] = {"kind": kind, "count": counts[kind.name].count, "read": rows}
            if kind.name in GROUPERS:
                cards = GROUPERS[kind.name](rows)
                section["cards"] = [
                    card | {"rows": [show(row) for row in card["rows"][:most_of_card]]}
                    for card in cards[:most_cards]
                ]
                section["more_cards"] = len(cards) - len(section["cards"])
            else:
                section["rows"] = [show(row) for row in rows[:most_rows]]
                section["more_rows"] = len(rows) - len(section["rows"])
            sections.append(section | {"cut": len(rows) < counts[kind.name].count})
    tabs = [("", "All", min(queries.COUNT_CAP, sum(counts[kind.name].count for kind in KINDS)))]
    tabs += [(kind.name, kind.look.label, counts[kind.name].count) for kind in KINDS]
    path = reverse("dashboard:trouble")
    return {
        "counts": counts,
        "tabs": tabs,
        "sections": sections,
        "here": f"{path}?{urlencode({'kind': chosen})}" if chosen else path,
    }


def show_task(
    kind: str, row: Task, *, fleet: Fleet, now: dt.datetime, may_act: bool, reclaims: int
) -> dict[str, Any]:
    """A row: the task, why it is here, what comes next, and the actions that are allowed."""
    shown = show_row(queries.task_json(row, fleet, brief=True), now)
    return shown | {
        "kind": kind,
        "since": getattr(row, trouble.SINCE[kind]),
        "spent": words.say_money(row.used_cost),
        "next": foresee(row, now) if kind == trouble.STALLED else None,
        "max_reclaims": reclaims,
        "offers": [one for one in OFFERED if may_act and is_offered(one, row)],
    }


def is_offered(action: actions.Action, row: Task) -> bool:
    """The limit only where it ended the task; the rest wherever the diagram has an edge."""
    if action is actions.LIMITS and not row.finished_at:
        return False
    return not action.find_obstacle(row)


def foresee(row: Task, now: dt.datetime) -> dict[str, Any] | None:
    """When a silent unit's time is up and which try is next; None where the step is unknown."""
    try:
        workflow = registry.get(row.workflow, row.workflow_version)
        step = workflow.steps[workflow.index_of(row.step_name)]
    except (UnknownWorkflow, UnknownStep):
        return None
    ends = (row.claimed_at or now) + dt.timedelta(seconds=step.timeout)
    return {
        "ends": ends,
        "over": ends < now,
        "attempt": row.attempts + 2,
        "attempts": step.retries + 1,
    }


def group_ended(rows: list[Task]) -> list[dict[str, Any]]:
    """Tasks that gave up for one reason by one failure, as cards."""
    return [
        {
            "look": dataclasses.replace(group.look, label=group.heading.capitalize()),
            "code": group.reason,
            "where": f"{group.workflow} version {group.version}, step {group.step}",
            "message": group.message,
            "first": group.first,
            "last": group.last,
            "money": group.cost,
            "count": group.count,
            "rows": group.rows,
        }
        for group in group_failures(rows)
    ]


def group_versions(rows: list[Task]) -> list[dict[str, Any]]:
    """Queued tasks of one workflow version, as cards."""
    by_version: dict[tuple[str, str], list[Task]] = {}
    for row in rows:
        by_version.setdefault((row.workflow, row.workflow_version), []).append(row)
    return [
        {
            "look": dataclasses.replace(words.NO_WORKER, label=f"{name} version {version}"),
            "code": "",
            "where": "",
            "message": "",
            "first": found[0].available_at,
            "last": found[-1].available_at,
            "money": words.say_money(sum(row.used_cost for row in found)),
            "count": len(found),
            "rows": found,
        }
        for (name, version), found in by_version.items()
    ]


GROUPERS = {trouble.GAVE_UP: group_ended, trouble.NO_WORKER: group_versions}


def make_tag(context: dict[str, Any]) -> str:
    """Names what the sections show; ages are ticked by the page itself."""
    rows = [
        (section["kind"].name, section["count"],
         [(row.pk, row.revision) for row in section["read"]],
         [row["look"] for row in section.get("rows", ())])
        for section in context["sections"]
    ]  # fmt: skip
    return hashlib.sha256(repr([context["tabs"], rows]).encode()).hexdigest()[:16]
