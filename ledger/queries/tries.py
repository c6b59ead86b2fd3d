"""The attempts at one unit, in order: those that left an output, and those that did not."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any
from uuid import UUID

from django.db.models import Case, F, JSONField, Q, TextField, When

from ledger.conf import format_money
from ledger.models import Event, LiveLog, StepOutput
from ledger.queries.handoffs import read_told
from ledger.queries.history import show_event
from ledger.queries.seen import hide_text, hide_value
from ledger.queries.spans import DONE, FAILED, LOST, RELEASED, SUPERSEDED

ENDS = {"attempt_failed": FAILED, "released": RELEASED, "reclaimed": LOST}
RESTARTS = ("repaired", "edited")

MAX_TRIES = 200
"""Of each kind the last ones; a unit has few, but nothing bounds what people restart."""


def list_tries(
    task_id: UUID, step: str, turn: int, chosen: Sequence[int] = ()
) -> list[dict[str, Any]]:
    """The attempts at a unit, the first one first; `seq` names one within its task.

    Each is `{seq, end, round, fence, worker, started_at, finished_at, tokens, cost, error, why}`;
    of those that are `chosen` also `output`, `log` and `told`, the key of its hand-off. Without a
    `fence` an output was copied or, by `worker`, edited. At most four queries.
    """
    tries = [*_read_outputs(task_id, step, turn, chosen), *_read_events(task_id, step, turn)]
    tries.sort(key=lambda one: int(one["seq"]))
    opened = [one for one in tries if one["seq"] in chosen]
    fences = [one["fence"] for one in opened if one["fence"]]
    told = read_told(task_id, fences) if fences else {}
    silent = [one["fence"] for one in opened if one["fence"] and not one["log"]]
    live = LiveLog.objects.filter(task=task_id, fence__in=silent).values_list("fence", "text")
    kept: dict[int, str] = dict(live) if silent else {}
    for one in opened:
        one["told"] = told.get(one["fence"])
        one["log"] = one["log"] or hide_text(kept.get(one["fence"], ""))
    return tries


def _read_outputs(
    task_id: UUID, step: str, turn: int, chosen: Sequence[int]
) -> list[dict[str, Any]]:
    opened = Q(seq__in=chosen)
    columns = "seq round fence worker started_at finished_at tokens cost copied_from".split()
    rows = StepOutput.objects.filter(task=task_id, step_name=step, turn=turn).annotate(
        shown_output=Case(When(opened, then=F("output")), output_field=JSONField()),
        log=Case(When(opened, then=F("log_tail")), output_field=TextField()),
    )
    read = rows.order_by("-seq").values(*columns, "superseded_in_round", "shown_output", "log")
    return [
        {name: row[name] for name in columns}
        | {
            "end": DONE if row["superseded_in_round"] is None else SUPERSEDED,
            "superseded_in_round": row["superseded_in_round"],
            "cost": format_money(row["cost"]),
            "output": hide_value(row["shown_output"]),
            "log": hide_text(row["log"] or ""),
            "error": {},
            "why": "",
        }
        for row in read[:MAX_TRIES]
    ]


def _read_events(task_id: UUID, step: str, turn: int) -> list[dict[str, Any]]:
    """Which round an attempt was of, no event says: the restarts before it do."""
    own = Q(kind__in=ENDS, step=step, turn=turn)
    rows = Event.objects.filter(own | Q(kind__in=RESTARTS), task=task_id).order_by("-seq")
    found, number = [], 0
    for event in map(show_event, reversed(rows[: 2 * MAX_TRIES])):
        data = event["data"]
        if event["kind"] in RESTARTS:
            number = int(data.get("round") or number)
            continue
        found.append(
            {
                "seq": event["seq"],
                "end": ENDS[event["kind"]],
                "round": number,
                "fence": event["fence"],
                "worker": data.get("worker") or event["actor"]["id"],
                "started_at": data.get("started_at"),
                "finished_at": event["at"],
                "tokens": data.get("tokens"),
                "cost": data.get("cost"),
                "error": data.get("error") or {},
                "why": data.get("why") or "",
                "log": data.get("log_tail") or "",
                "output": None,
                "copied_from": None,
                "superseded_in_round": None,
            }
        )
    return found
