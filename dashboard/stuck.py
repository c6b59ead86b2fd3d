"""What stands still, as sections of rows and of groups: why it is there, what can be done now."""

from __future__ import annotations

import dataclasses
import datetime as dt
import hashlib
from typing import Any
from urllib.parse import urlencode

from dashboard import actions, words
from dashboard.shown import show_row
from dashboard.templatetags.longwatch import read_server_time
from ledger import conf, queries, registry
from ledger.canonical import clean_text
from ledger.errors import UnknownStep, UnknownWorkflow
from ledger.models import Task
from ledger.queries import Fleet, trouble
from ledger.queries.groups import FailureGroup, group_dead, mark_rows
from ledger.queries.overtime import read_bounds
from ledger.queries.trouble import Narrowed, Trouble

SHOWN = (20, 10, 5)
"""Rows of a kind, groups of it and rows of a group where all kinds are on one page; the page of the
kind shows more."""

SAMPLES = 20
"""Rows of a group on the page of its kind; the task list has all of them."""

MAX_MESSAGE = 300
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
    Kind(trouble.NO_WORKER, words.NO_WORKER,
         "queued, but no live worker knows this version, or all that do were told to drain"),
    Kind(trouble.OVER, words.OVER_TIME,
         "runs and reports, but for over three times as long as 95 of 100 runs took"),
    Kind(trouble.GAVE_UP, words.Look("Gave up", "dead", "is-dead"),
         "a bound is used up; each waits for a person"),
)  # fmt: skip


@dataclasses.dataclass(frozen=True, slots=True)
class Sight:
    """What a poll needs to know before groups are read: counts, rows of the small kinds, a tag."""

    chosen: str
    narrowed: Narrowed
    fleet: Fleet
    unknown: frozenset[tuple[str, str]]
    counts: dict[str, Trouble]
    rows: dict[str, list[Task]]
    tag: str

    @property
    def shown(self) -> list[Kind]:
        """The sections of the page."""
        return [
            kind
            for kind in KINDS
            if kind.name == self.chosen or (not self.chosen and self.counts[kind.name].count)
        ]


def look_at(chosen: str, narrowed: Narrowed) -> Sight:
    """Counts, rows, and the tag that names what the sections show; ages are ticked by the page
    itself, and of what gave up only the sums are looked at. Raises InvalidInput."""
    fleet = queries.load_fleet()
    unknown = queries.list_unknown(fleet)
    narrowed = dataclasses.replace(narrowed, bounds=read_bounds())
    counts = queries.count_trouble(unknown, narrowed)
    sight = Sight(chosen, narrowed, fleet, unknown, counts, {}, "")
    now = read_server_time()
    marks: list[Any] = [(name, one.count) for name, one in counts.items()]
    for kind in sight.shown:
        if kind.name == trouble.GAVE_UP:
            marks.append(mark_rows(trouble.select_trouble(kind.name, unknown, narrowed)))
            continue
        if kind.name == trouble.OVER and not chosen:
            sight.rows[kind.name] = []  # on a page of their own: it runs by itself
            continue
        rows = queries.list_trouble(kind.name, unknown, narrowed=narrowed)
        sight.rows[kind.name] = rows
        for row in rows:
            shown = queries.task_json(row, fleet, brief=True)
            marks.append((row.pk, row.revision, words.describe_status(shown, now)))
    tag = hashlib.sha256(repr([chosen, *marks]).encode()).hexdigest()[:16]
    return dataclasses.replace(sight, tag=tag)


def load_sections(sight: Sight, may_act: bool) -> list[dict[str, Any]]:
    """The sections with their rows or cards."""
    most_rows, most_cards, samples = SHOWN if not sight.chosen else (None, None, SAMPLES)
    sections = []
    for kind in sight.shown:
        section: dict[str, Any] = {"kind": kind, "count": sight.counts[kind.name].count}
        if kind.name == trouble.GAVE_UP:
            dead = trouble.select_trouble(kind.name, sight.unknown, sight.narrowed)
            groups = group_dead(dead, samples)
            cards = [show_group(group) for group in groups]
            looked_at = sum(group.count for group in groups)
            section["money"] = words.say_money(sum(group.nano for group in groups))
        else:
            rows = sight.rows[kind.name]
            looked_at = len(rows)
            cards = group_versions(rows, samples) if kind.name == trouble.NO_WORKER else []
        if kind.name in {trouble.GAVE_UP, trouble.NO_WORKER}:
            for card in cards[:most_cards]:
                card["acts"] = offer_group(card, may_act)
                card["rows"] = [show_task(kind.name, row, sight.fleet, may_act)
                                for row in card["rows"]]  # fmt: skip
            section["cards"] = cards[:most_cards]
            section["more_cards"] = len(cards) - len(section["cards"])
        else:
            section["rows"] = [
                show_task(kind.name, row, sight.fleet, may_act)
                | {"bound": sight.narrowed.bounds.get((row.workflow, row.workflow_version))}
                for row in rows[:most_rows]
            ]
            section["more_rows"] = len(rows) - len(section["rows"])
        section["looked_at"] = looked_at if looked_at < section["count"] else 0
        sections.append(section)
    return sections


def offer_group(card: dict[str, Any], may_act: bool) -> list[tuple[actions.Action, str]]:
    """What can be done to all of a group, each with the address that asks about exactly these."""
    if not may_act or card["count"] < 2 or not card["rows"]:
        return []
    like = card["rows"][0]
    return [
        (one, f"action={one.name}&all=1&{card['query']}")
        for one in OFFERED
        if is_offered(one, like)
    ]


def show_task(kind: str, row: Task, fleet: Fleet, may_act: bool) -> dict[str, Any]:
    """A row: the task, why it is here, what comes next, and the actions that are allowed."""
    now = read_server_time()
    shown = show_row(queries.task_json(row, fleet, brief=True), now)
    return shown | {
        "kind": kind,
        "since": getattr(row, trouble.SINCE[kind]),
        "spent": words.say_money(row.used_cost),
        "next": foresee(row, now) if kind == trouble.STALLED else None,
        "max_reclaims": conf.load().max_reclaims,
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


def show_group(group: FailureGroup) -> dict[str, Any]:
    """Tasks that gave up for one reason by one failure, as a card."""
    place = group.place
    error = (group.rows[0].error if group.rows else None) or {}
    message = clean_text(str(error.get("message") or ""), MAX_MESSAGE)
    heading = words.REASONS.get(place["reason"], place["reason"])
    return {
        "look": dataclasses.replace(words.LOOKS["dead"], label=heading.capitalize()),
        "code": place["reason"],
        "where": f"{place['workflow']} version {place['version']}, step {place['step']}",
        "message": ": ".join(part for part in (str(error.get("type") or ""), message) if part),
        "first": group.first,
        "last": group.last,
        "money": words.say_money(group.nano),
        "count": group.count,
        "week": group.week,
        "before": group.before,
        "query": urlencode(group.pairs),
        "rows": group.rows,
    }


def group_versions(rows: list[Task], samples: int) -> list[dict[str, Any]]:
    """Queued tasks of one workflow version, as cards."""
    by_version: dict[tuple[str, str], list[Task]] = {}
    for row in rows:
        by_version.setdefault((row.workflow, row.workflow_version), []).append(row)
    return [
        {
            "look": dataclasses.replace(words.NO_WORKER, label=f"{name} version {version}"),
            "first": found[0].available_at,
            "last": found[-1].available_at,
            "money": words.say_money(sum(row.used_cost for row in found)),
            "count": len(found),
            "query": urlencode({"status": "queued", "workflow": name, "version": version}),
            "rows": found[:samples],
        }
        for (name, version), found in by_version.items()
    ]
