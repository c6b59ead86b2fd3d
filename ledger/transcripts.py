"""What a task's agents said and did: the read model of their units' `transcript`.

A unit of an agent keeps under KEY what it added (ledger.agents writes it). It is read here as plain
JSON, so that pages and API tell of it where the extra `agents` is not installed.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterable, Sequence
from typing import Any
from uuid import UUID

from django.db.models import QuerySet, Sum

from ledger import artifacts, queries, states
from ledger.bounds import MESSAGE, WITHDRAWN
from ledger.conf import format_money
from ledger.errors import LedgerError
from ledger.models import Approval, Artifact, Effect, Signal, StepOutput, Task
from ledger.models.approvals import QUESTION
from ledger.models.effects import INTENT
from ledger.queries.effects import OWN, name_state
from ledger.queries.handoffs import read_told
from ledger.queries.paging import DEFAULT_LIMIT, Page, clamp_limit, read_seq
from ledger.queries.seen import explain_missing, require_payload, see_tasks
from ledger.transitions.mailbox import read_last_stored
from ledger.transitions.steering import read_text
from ledger.turns import KEY

MAX_OPENED = 1_000_000
"""Bytes of a turn that stands in the artifact store; a longer one is named, not opened."""

MAX_ANSWER = 24_000_000
"""Bytes of all such turns of an answer; from there on they are named only."""

_KNOWN = frozenset(
    "session began since messages calls spent open answers stuck heard children compaction".split()
)
_COLUMNS = ("seq", "turn", "round", "worker", "fence", "started_at", "finished_at")


def list_turns(
    task_id: UUID, *, superseded: bool = False, limit: int = DEFAULT_LIMIT, cursor: str = ""
) -> Page[dict[str, Any]]:
    """The turns of a task's agents, in order. Raises NotAllowed, InvalidInput.

    Each is `{seq, step, turn, round, session, began, messages, calls, spent, open, tokens, cost,
    total, …}`: `messages` as pydantic-ai writes them; a call has in `asked` the question that was
    asked about it. `total` is what the task's stored units had cost by then.
    """
    size = clamp_limit(limit)
    rows = _select(task_id).filter(seq__gt=read_seq(cursor)).order_by("seq")
    if not superseded:
        rows = rows.filter(superseded_in_round__isnull=True)
    turns = _show_turns(task_id, rows[: size + 1])
    return Page(turns[:size], str(turns[size - 1]["seq"]) if len(turns) > size else None)


def list_latest_turns(task_id: UUID, *, before: int = 0, limit: int = 20) -> list[dict[str, Any]]:
    """The last turns, newest first, superseded ones too; `before` a seq, if given."""
    rows = _select(task_id).order_by("-seq")
    if before:
        rows = rows.filter(seq__lt=before)
    return _show_turns(task_id, rows[:limit])[::-1]


def _select(task_id: UUID) -> QuerySet[StepOutput]:
    require_payload()
    rows = StepOutput.objects.filter(task=task_id, output__has_key=KEY)
    return rows.defer("log_tail")


def _show_turns(task_id: UUID, rows: Iterable[StepOutput]) -> list[dict[str, Any]]:
    found = sorted(rows, key=lambda row: row.seq)
    opened = _open_values(task_id, [(row.output or {}).get(KEY) for row in found])
    turns = [_show_turn(row, stored) for row, stored in zip(found, opened, strict=True)]
    told = read_told(task_id, [row.fence for row in found if row.fence])
    for row, turn in zip(found, turns, strict=True):
        turn["handoff"] = told.get(row.fence)
    _add_totals(task_id, found, turns)
    _add_questions(task_id, turns)
    _hide_children(turns)
    return turns


def _show_turn(row: StepOutput, stored: Any) -> dict[str, Any]:
    """One turn; whatever a person, or an older version, wrote in the place of its parts."""
    kept = stored if isinstance(stored, dict) else {}
    return {name: getattr(row, name) for name in _COLUMNS} | {
        "step": {"index": row.step_index, "name": row.step_name},
        "session": kept.get("session", 0),
        "began": kept.get("began", 0),
        "messages": _list_dicts(kept.get("messages")),
        "calls": _list_dicts(kept.get("calls")),
        "spent": kept.get("spent"),
        "open": _list_dicts(kept.get("open")),
        "stuck": kept.get("stuck", 0),
        "heard": _list_dicts(kept.get("heard")),
        "children": _list_dicts(kept.get("children")),
        "compaction": _show_compaction(kept.get("compaction")),
        "more": {name: value for name, value in kept.items() if name not in _KNOWN},
        "tokens": row.tokens,
        "cost": format_money(row.cost),
        "superseded": row.superseded_in_round is not None,
        "superseded_in_round": row.superseded_in_round,
    }


def _show_compaction(value: Any) -> dict[str, Any] | None:
    """Without the opening, which is sent again as it was; the artifact has it too."""
    if not isinstance(value, dict):
        return None
    return {name: one for name, one in value.items() if name != "opening"}


def _list_dicts(value: Any) -> list[dict[str, Any]]:
    return [dict(one) for one in value if isinstance(one, dict)] if isinstance(value, list) else []


def _open_values(task_id: UUID, values: Sequence[Any]) -> list[Any]:
    """The values, those that are artifacts of this task or its originals opened, in two queries."""
    keys = [artifacts.read_reference(one) for one in values]
    named = [key for key in keys if key]
    rows = Artifact.objects.select_related("blob").filter(media_type=artifacts.VALUE_TYPE)
    found = {str(row.pk): row for row in rows.filter(pk__in=named)} if named else {}
    family = {task_id}
    if any(row.task_id != task_id for row in found.values()):
        family |= set(queries.list_lineage(task_id))
    own = {key: row for key, row in found.items() if row.task_id in family}
    opened: list[Any] = []
    room = MAX_ANSWER
    for key, value in zip(keys, values, strict=True):
        if (row := own.get(key)) is None:
            opened.append(value)
        elif row.blob is None or row.blob.size > min(MAX_OPENED, room):
            opened.append({"artifact": key})
        else:
            room -= row.blob.size
            opened.append(_open_value(row))
    return opened


def _open_value(row: Artifact) -> Any:
    try:
        with artifacts.open_content(row) as file:
            return json.load(file)
    except (LedgerError, OSError, ValueError):
        return {"artifact": str(row.pk)}


def _add_totals(task_id: UUID, rows: list[StepOutput], turns: list[dict[str, Any]]) -> None:
    """`total`: what all stored units up to this one have used."""
    if not rows:
        return
    tokens, cost = _sum_before(task_id, rows[0].seq)
    units = StepOutput.objects.filter(task=task_id, seq__gte=rows[0].seq, seq__lte=rows[-1].seq)
    shown = {row.seq: turn for row, turn in zip(rows, turns, strict=True)}
    for seq, more, paid in units.order_by("seq").values_list("seq", "tokens", "cost"):
        tokens, cost = tokens + more, cost + paid
        if seq in shown:
            shown[seq]["total"] = {"tokens": tokens, "cost": format_money(cost)}


_SUMS: dict[UUID, tuple[int, int, int]] = {}
"""Of the transcripts that were read last: up to which unit a sum is known, tokens, money. An
output is never changed, so a page that follows a task of thousands adds up the new ones only."""

MAX_SUMS = 500


def _sum_before(task_id: UUID, seq: int) -> tuple[int, int]:
    """What the units before `seq` used."""
    known = _SUMS.get(task_id, (0, 0, 0))
    start, tokens, cost = known if known[0] < seq else (0, 0, 0)
    units = StepOutput.objects.filter(task=task_id, seq__gt=start, seq__lt=seq)
    more = units.aggregate(tokens=Sum("tokens"), cost=Sum("cost"))
    tokens, cost = tokens + (more["tokens"] or 0), cost + (more["cost"] or 0)
    if known[0] < seq:
        if len(_SUMS) >= MAX_SUMS:
            _SUMS.clear()
        _SUMS[task_id] = (seq - 1, tokens, cost)
    return tokens, cost


def _add_questions(task_id: UUID, turns: list[dict[str, Any]]) -> None:
    """`asked`: by the call's id the questions that people were asked, as they stand now."""
    named = [_list_asked(turn) for turn in turns]
    keys = set[str]().union(*named)
    columns = ("id", "subject", "status", "decision", "decided_by", "decided_at", "comment",
               "values", "proposal")  # fmt: skip
    asked: dict[str, list[dict[str, Any]]] = {}
    if keys:
        rows = Approval.objects.filter(task=task_id, kind=QUESTION, payload__call__in=sorted(keys))
        for row in rows.order_by("id").values(*columns, "payload__call"):
            asked.setdefault(row.pop("payload__call"), []).append(row)
    for turn, own in zip(turns, named, strict=True):
        turn["asked"] = {key: asked[key] for key in sorted(own) if key in asked}


def _hide_children(turns: list[dict[str, Any]]) -> None:
    """The child tasks that the caller does not see, or that are gone, are left unnamed."""
    named = [one for turn in turns for one in turn["children"]]
    keys = {key for one in named if (key := read_key(one.get("task")))}
    found = set(see_tasks().filter(pk__in=keys).values_list("pk", flat=True)) if keys else set()
    for one in named:
        one["task"] = key if (key := read_key(one.get("task"))) in found else None


def read_key(value: Any) -> UUID | None:
    """The key that a stored text is, if it is one."""
    try:
        return UUID(str(value))
    except ValueError:
        return None


def _list_asked(turn: dict[str, Any]) -> set[str]:
    """The calls of a turn that people may have been asked about."""
    calls = [*turn["open"], *(one for one in turn["calls"] if one.get("decision") != "allow")]
    parts = [part for one in turn["messages"] for part in _list_dicts(one.get("parts"))]
    denied = [part.get("tool_call_id") for part in parts if part.get("outcome") == "denied"]
    return {str(key) for key in [*(one.get("id") for one in calls), *denied] if key}


@dataclasses.dataclass(frozen=True, slots=True)
class Doing:
    """What an agent does right now: `tool` is empty while the model is asked."""

    tool: str
    since: Any
    key: int


def read_doing(task_id: UUID) -> tuple[Task, list[Doing]]:
    """The task (revision, status and holder only), and what its unit has begun and not finished.

    Raises TaskNotFound, NotAllowed.
    """
    columns = (
        "status status_reason revision fence lease_owner step_name turn round title workflow "
        "thinned_at thinned_days"
    )
    row = see_tasks().filter(pk=task_id).only(*columns.split()).first()
    if row is None:
        raise explain_missing(task_id)
    require_payload()
    if row.status != states.RUNNING:
        return row, []
    begun = Effect.objects.filter(
        task=task_id, step=row.step_name, turn=row.turn, round=row.round, status=INTENT
    )
    return row, [
        Doing(_name_tool(one), one.begun_at, one.pk)
        for one in begun.order_by("pk")
        if name_state(one, row) == INTENT and one.name.startswith((OWN, "tool."))
    ]


def _name_tool(effect: Effect) -> str:
    if effect.name.startswith(OWN):
        return ""
    args = effect.args if isinstance(effect.args, dict) else {}
    return str(args.get("tool") or effect.name.split(".")[1])


PENDING, TAKEN, TOLD, UNTOLD, TAKEN_BACK = "pending", "taken", "told", "untold", "withdrawn"
"""Of a message: it waits for the next turn; the unit that runs tells it; its turn is stored; the
task ended before; a person took it back."""


def list_messages(
    task_id: UUID, *, status: str = "", limit: int = DEFAULT_LIMIT
) -> list[dict[str, Any]]:
    """What people said to a task's agents, newest first: `{id, by, at, text, state}`.

    `status` is the task's, where its row was read. Raises TaskNotFound, NotAllowed.
    """
    status = status or str(queries.find_task(task_id).status)
    require_payload()
    rows = Signal.objects.filter(task=task_id, key__isnull=False, name__in=(MESSAGE, WITHDRAWN))
    found = list(rows.order_by("-id")[: clamp_limit(limit)])
    last = read_last_stored(task_id) if found else 0
    return [
        {"id": row.pk, "by": row.by, "at": row.at, "text": read_text(row),
         "state": _name_state(row, last, status)}
        for row in found
    ]  # fmt: skip


def _name_state(row: Signal, last: int, status: str) -> str:
    if row.name == WITHDRAWN:
        return TAKEN_BACK
    if row.consumed_seq is not None and row.consumed_seq < last:
        return TOLD
    if status in states.FINAL:
        return UNTOLD
    return PENDING if row.consumed_seq is None else TAKEN
