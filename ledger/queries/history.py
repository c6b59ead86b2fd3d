"""What happened to one task, in order of seq: outputs, and events with the outputs among them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any
from uuid import UUID

from ledger.conf import format_money
from ledger.models import Event, Spend, StepOutput
from ledger.queries.handoffs import read_told
from ledger.queries.paging import DEFAULT_LIMIT, Page, clamp_limit, read_seq
from ledger.queries.seen import hide_data, hide_text, hide_value, see_children

CHECKPOINT = "checkpoint"
CHILD = "child:"
"""How the key of an amount begins that a child spent; its id comes next."""


def list_outputs(
    task_id: UUID, *, superseded: bool = False, limit: int = DEFAULT_LIMIT, cursor: str = ""
) -> Page[dict[str, Any]]:
    """The accepted outputs of a task; with `superseded` also those that a restart replaced."""
    size = clamp_limit(limit)
    rows = StepOutput.objects.filter(task=task_id, seq__gt=read_seq(cursor)).defer("log_tail")
    if not superseded:
        rows = rows.filter(superseded_in_round__isnull=True)
    return _cut_page(show_outputs(task_id, rows.order_by("seq")[: size + 1]), size)


def list_events(
    task_id: UUID, *, after: str = "", limit: int = DEFAULT_LIMIT, cursor: str = ""
) -> Page[dict[str, Any]]:
    """The record of a task from seq `after` on; an accepted output is the event `checkpoint`."""
    size = clamp_limit(limit)
    start = max(read_seq(after, "after"), read_seq(cursor))
    events = Event.objects.filter(task=task_id, seq__gt=start).order_by("seq")[: size + 1]
    outputs = (
        StepOutput.objects.filter(task=task_id, seq__gt=start)
        .defer("output")
        .order_by("seq")[: size + 1]
    )
    merged = [show_event(row) for row in events] + [_show_checkpoint(row) for row in outputs]
    return _cut_page(sorted(merged, key=lambda item: item["seq"]), size)


def list_spend(
    task_id: UUID, *, limit: int = DEFAULT_LIMIT, cursor: str = ""
) -> Page[dict[str, Any]]:
    """The single amounts that a task's attempts spent, in order."""
    size = clamp_limit(limit)
    rows = list(
        Spend.objects.filter(task=task_id, pk__gt=read_seq(cursor)).order_by("pk")[: size + 1]
    )
    seen = see_children(row.key.split(":")[1] for row in rows if row.key.startswith(CHILD))
    return _cut_page([_show_spend(row, seen) for row in rows], size)


def _show_spend(row: Spend, seen: set[str]) -> dict[str, Any]:
    names = "at key step turn fence tokens_in tokens_out note stale".split()
    shown = {name: getattr(row, name) for name in names}
    shown["note"] = hide_text(shown["note"])
    if row.key.startswith(CHILD) and row.key.split(":")[1] not in seen:
        shown["note"] = "child task"  # its title is of a lane that the caller does not see
    return {"seq": row.pk, **shown, "cost": format_money(row.cost)}


def live_output(task_id: UUID, step_name: str) -> Any:
    """The accepted output of a step's last unit that no restart superseded; None without one."""
    rows = StepOutput.objects.filter(
        task=task_id, step_name=step_name, superseded_in_round__isnull=True
    )
    return rows.order_by("-seq").values_list("output", flat=True).first()


def _cut_page(items: list[dict[str, Any]], size: int) -> Page[dict[str, Any]]:
    more = len(items) > size
    return Page(items[:size], str(items[size - 1]["seq"]) if more else None)


def show_outputs(task_id: UUID, rows: Iterable[StepOutput]) -> list[dict[str, Any]]:
    """The Output JSON of each; `handoff` is what the unit was told, `{id, digest}`, if it asked."""
    found = list(rows)
    told = read_told(task_id, [row.fence for row in found if row.fence])
    return [_show_output(row) | {"handoff": told.get(row.fence)} for row in found]


def _show_output(row: StepOutput) -> dict[str, Any]:
    return {
        "seq": row.seq,
        "step": {"index": row.step_index, "name": row.step_name},
        "turn": row.turn,
        "round": row.round,
        "output": hide_value(row.output),
        "worker": row.worker,
        "fence": row.fence,
        "started_at": row.started_at,
        "finished_at": row.finished_at,
        "superseded": row.superseded_in_round is not None,
        "superseded_in_round": row.superseded_in_round,
        "copied_from": row.copied_from,
        "edited_by": row.worker if is_edit(row) else None,
    }


def is_edit(row: StepOutput) -> bool:
    """True for an output that a person wrote in place of a worker's."""
    return row.fence == 0 and row.copied_from is None


def show_event(row: Event) -> dict[str, Any]:
    """The Event JSON."""
    return {
        "seq": row.seq,
        "at": row.at,
        "kind": row.kind,
        "actor": split_actor(row.actor),
        "step": row.step,
        "turn": row.turn,
        "fence": row.fence,
        "data": hide_data(row.data),
    }


def _show_checkpoint(row: StepOutput) -> dict[str, Any]:
    return {
        "seq": row.seq,
        "at": row.finished_at,
        "kind": CHECKPOINT,
        "actor": split_actor(row.worker) if is_edit(row) else {"kind": "worker", "id": row.worker},
        "step": row.step_name,
        "turn": row.turn,
        "fence": row.fence,
        "data": {
            "round": row.round,
            "started_at": row.started_at,
            "tokens": row.tokens,
            "cost": format_money(row.cost),
            "log_tail": hide_text(row.log_tail),
            "superseded_in_round": row.superseded_in_round,
        },
    }


def split_actor(text: str) -> dict[str, str]:
    """`user:3` as {"kind": "user", "id": "3"}."""
    kind, _, key = text.partition(":")
    return {"kind": kind, "id": key}
