"""The hand-off: what the next session must see now, from durable state only, within a bound.

The same ledger gives the same bytes: nothing of it is a time of reading, a lease or an attempt. The
bound is in tokens, counted as the UTF-8 bytes of the text divided by four, rounded up; it holds for
the Markdown and for the JSON. What is least useful goes first, and the last section says so.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import re
from collections.abc import Iterable
from decimal import Decimal
from typing import Any
from uuid import UUID

from django.db.models import OuterRef, QuerySet
from django.db.models.functions import JSONObject

from ledger import clock, queries, sql
from ledger.bounds import MESSAGE, WITHDRAWN
from ledger.conf import format_money, load
from ledger.errors import InvalidInput, UnknownStep, UnknownWorkflow
from ledger.evaluators.findings import shorten_feedback
from ledger.models import (
    Approval,
    ApprovalVote,
    Artifact,
    Effect,
    Event,
    Handoff,
    Signal,
    StepOutput,
    Task,
)
from ledger.models.approvals import APPROVED, EXPIRED, REJECTED, SENT_BACK
from ledger.queries.counting import CountRows, Gather
from ledger.queries.effects import list_outside, name_state
from ledger.sql import Claimed
from ledger.turns import KEY, shorten_turn
from ledger.unitlog import LOG_TYPE

LEAST_TOKENS = 2_000
MOST_TOKENS = 1_000_000
VALUE_CHARACTERS = 2_000
"""Of one value, or an eighth of the bound; what a longer one has more is left out, and told."""

DECIDED = (APPROVED, REJECTED, SENT_BACK, EXPIRED)

READ = 200
"""Rows of each kind that are read, the latest ones."""

KEPT = 50
"""Texts of a task that are kept, the latest ones; of those before them only the digest."""

SECTIONS = {
    "artifacts": "Artifacts",
    "outputs": "Outputs that count",
    "children": "Child tasks",
    "signals": "Signals from outside",
    "effects": "Effects on the world outside",
    "decisions": "Decisions of people",
    "repairs": "Restarts, and what was found",
    "progress": "Progress",
    "objective": "Objective",
}
"""In the order in which they are left out: of each the oldest part first, or the largest value."""

SHOWN = tuple(
    "objective progress outputs children signals decisions repairs effects artifacts".split()
)

_UNSEEN = re.compile(
    "[\x00-\x1f\x7f-\x9f\xad\u061c\u180e\u200b-\u200f\u2028-\u202e\u2060-\u2069\ufeff\ufff9-\ufffb"
    "\U000e0000-\U000e007f]"
)
"""What some programs break a line at, and what turns or hides text: written out."""


@dataclasses.dataclass(frozen=True, slots=True)
class Sent:
    """A hand-off as text and as data, and the SHA-256 of the text."""

    markdown: str
    data: dict[str, Any]

    @property
    def digest(self) -> str:
        """SHA-256 of the Markdown, hex."""
        return hashlib.sha256(self.markdown.encode()).hexdigest()

    @property
    def tokens(self) -> int:
        """By the count of this module."""
        return count_tokens(self.markdown)


@dataclasses.dataclass(frozen=True, slots=True)
class Part:
    """One line of a section, as text and as data."""

    line: str
    data: Any

    @property
    def size(self) -> int:
        """Bytes, of whichever form is larger."""
        return max(len(self.line.encode()), len(_dump(self.data).encode())) + 1


def count_tokens(text: str) -> int:
    """UTF-8 bytes divided by four, rounded up: the same everywhere, and near what models count."""
    return -(-len(text.encode()) // 4)


def build_handoff(task_id: UUID, tokens: int | None = None, task: Task | None = None) -> Sent:
    """What a unit of the task is told now. Raises TaskNotFound, and InvalidInput for the bound.

    `task` is of `find_task` or `find_shown`, of who has just read it.
    """
    bound = load().handoff_tokens if tokens is None else tokens
    if isinstance(bound, bool) or not LEAST_TOKENS <= bound <= MOST_TOKENS:
        raise InvalidInput("tokens", f"takes a number from {LEAST_TOKENS} to {MOST_TOKENS}")
    task = task or queries.find_task(task_id)
    reader = _Reader(task, bound)
    head, (parts, totals) = reader.describe_head(), reader.read_parts()
    while True:
        sent = _write(reader, head, parts, totals, bound)
        over = max(len(sent.markdown.encode()), len(_dump(sent.data).encode())) - 4 * bound
        if over <= 0 or not _leave_out(parts, over):
            return sent


def record_handoff(held: Claimed, sent: Sent) -> None:
    """Put on record what this attempt was told; the same text once. Raises LeaseLost."""
    row = Handoff(
        task_id=held.task_id, step=held.step_name, turn=held.turn, round=held.round,
        fence=held.fence, digest=sent.digest, text=sent.markdown, at=clock.now(),
    )  # fmt: skip
    own = Handoff.objects.filter(task=held.task_id)
    with sql.hold_task(held.lease, "handoff"):
        Handoff.objects.bulk_create([row], ignore_conflicts=True)
        # Each call adds at most one, so these few are all that may still have a text.
        past = own.order_by("-id").values_list("pk", flat=True)[KEPT : KEPT + 4]
        own.filter(pk__in=list(past)).exclude(text="").update(text="")


# --- Reading ---


def _dump(value: Any) -> str:
    """JSON on one line, readable in any language, with nothing in it that is not seen."""
    whole = _write_out(value)
    return _reveal(json.dumps(whole, ensure_ascii=False, sort_keys=True, separators=(",", ":")))


def _reveal(text: str) -> str:
    return _UNSEEN.sub(lambda found: json.dumps(found[0])[1:-1], text)


def _write_out(value: Any) -> Any:
    """Numbers as PostgreSQL gives them back: digits, with neither exponent nor a zero's sign."""
    if isinstance(value, dict):
        return {key: _write_out(part) for key, part in value.items()}
    if isinstance(value, list):
        return [_write_out(part) for part in value]
    if isinstance(value, float):
        return int(Decimal(repr(value))) if abs(value) >= 1e16 else value + 0.0
    return value


class _Reader:
    """Tells what the ledger has of one task, every value within `most` characters."""

    def __init__(self, task: Task, bound: int) -> None:
        self.task = task
        self.most = min(VALUE_CHARACTERS, bound // 8)

    def read_parts(self) -> tuple[dict[str, list[Part]], dict[str, int]]:
        """Every section's parts in order, and how many there are in the ledger."""
        task = self.task
        outputs = StepOutput.objects.filter(task=task, superseded_in_round__isnull=True)
        rows: dict[str, tuple[Any, Any, str]] = {
            "outputs": (outputs.defer("log_tail"), self.tell_output, "seq"),
            "children": (self.find_children(outputs), self.tell_child, "id"),
            "signals": (self.list_signals(task), self.tell_signal, "id"),
            "decisions": (self.list_decisions(task), self.tell_decision, "id"),
            "repairs": (task.events.filter(kind="repaired"), self.tell_repair, "seq"),
            "artifacts": (self.list_artifacts(task), self.tell_artifact, "id"),
            "effects": (list_outside(task.pk), self.tell_effect, "id"),
        }  # fmt: skip
        progress = {key: one for key, one in task.progress.items() if key != KEY}
        values = {"objective": task.input, "progress": progress}
        parts = {name: self.tell_values(found) for name, found in values.items()}
        totals = {name: len(found) for name, found in parts.items()}
        for name, (query, tell, order) in rows.items():
            whole = CountRows(query.order_by().values("pk"))
            found = list(query.annotate(whole=whole).order_by(f"-{order}")[:READ])
            parts[name] = [tell(row) for row in found[::-1]]
            totals[name] = found[0].whole if found else 0
        return parts, totals

    def describe_head(self) -> dict[str, Any]:
        """What is always there."""
        task, error = self.task, self.task.error
        tokens = task.limit_tokens - task.used_tokens_in - task.used_tokens_out
        cost = task.limit_cost - task.used_cost - task.reserved_cost
        return {
            "task": str(task.pk), "title": _reveal(" ".join(task.title.split())),
            "workflow": task.workflow, "version": task.workflow_version,
            "step": task.step_name, "index": task.step_index, "of": task.total_steps,
            "turn": task.turn, "round": task.round,
            "feedback": self.shorten(shorten_feedback(task.feedback, self.most)),
            "last_error": error and self.shorten(f"{error['type']}: {error['message']}"),
            "left": {
                "units": max(0, task.limit_units - task.used_units),
                "tokens": max(0, tokens - task.reserved_tokens),
                "cost": format_money(max(0, cost)),
                "repairs": max(0, task.max_repairs - task.repair_count),
                "until": task.deadline_at and task.deadline_at.isoformat(),
            },
            "next": _name_following(task),
        }  # fmt: skip

    def tell_values(self, values: dict[str, Any]) -> list[Part]:
        """A part for each key, the largest first: so they are left out."""
        parts = [
            Part(
                f"- {self.clip(key)}: {self.clip(value)}",
                {"key": self.shorten(key), "value": self.shorten(value)},
            )
            for key, value in values.items()
        ]
        return sorted(parts, key=lambda part: (-part.size, part.line))

    def tell_output(self, row: StepOutput) -> Part:
        data = {"seq": row.seq, "step": row.step_name, "turn": row.turn}
        line = f"- {row.step_name}, turn {row.turn}"
        return self.make_part(line, data, "output", shorten_turn(row.output), mark=":")

    def find_children(self, outputs: QuerySet[StepOutput]) -> QuerySet[Task]:
        """Those of spawns that no restart superseded. Raises NotAllowed."""
        queries.require_family(self.task.pk, self.task)
        return self.task.children.filter(parent_seq__in=outputs.values("seq"))

    def tell_child(self, row: Task) -> Part:
        data = {"id": str(row.pk), "workflow": row.workflow, "title": row.title,
                "status": row.status, "reason": row.status_reason}  # fmt: skip
        line = f"- {row.workflow}, {_dump(row.title)}, {row.pk}: {row.status}"
        name = "error" if row.error else "result"
        return self.make_part(line, data, name, getattr(row, name))

    def list_signals(self, task: Task) -> Any:
        """Without messages to an agent that were taken back, or that it is told of itself next."""
        rows = task.signals.exclude(name=WITHDRAWN)
        return rows.exclude(name=MESSAGE, consumed_seq__isnull=True)

    def tell_signal(self, row: Signal) -> Part:
        state = "not read" if row.consumed_seq is None else "read"
        data = {"name": row.name, "by": row.by, "state": state}
        return self.make_part(f"- {row.name} by {row.by}, {state}", data, "data", row.data)

    def list_decisions(self, task: Task) -> QuerySet[Approval]:
        """Each with the votes that count, in `told_votes`."""
        votes = ApprovalVote.objects.filter(approval=OuterRef("pk"), voided_at__isnull=True)
        told = JSONObject(pk="pk", by="by", decision="decision", comment="comment")
        rows = task.approvals.filter(status__in=DECIDED).defer("body", "payload", "attached")
        return rows.annotate(told_votes=Gather(votes.order_by("pk").values(told=told)))

    def tell_decision(self, row: Any) -> Part:
        data = {"step": row.step, "subject": row.subject, "decision": row.status,
                "by": row.decided_by, "comment": self.shorten(row.comment)}  # fmt: skip
        line = f"- {row.step}, {_dump(row.subject)}: {row.status} by {row.decided_by}"
        line += f", who says {self.clip(row.comment)}" if row.comment else ""
        votes = [
            {name: one[name] for name in ("by", "decision", "comment")}
            for one in sorted(row.told_votes or (), key=lambda one: int(one["pk"]))
        ]
        if len(votes) > 1:
            data["votes"] = self.shorten(votes)
            line += f"; votes: {self.clip(votes)}"
        return self.make_part(line, data, "values", row.values or None)

    def tell_repair(self, row: Event) -> Part:
        by = "the workflow" if row.data.get("by_workflow") else row.actor
        data = {"to": row.data["to"], "round": row.data["round"], "by": by}
        line = f"- round {data['round']}, from {data['to']} on, by {by}"
        found = shorten_feedback(row.data.get("feedback"), self.most)
        return self.make_part(line, data, "feedback", found, mark="; found:")

    def tell_effect(self, row: Effect) -> Part:
        data = {"name": row.name, "step": row.step, "turn": row.turn, "round": row.round}
        # An intent in a worker's hands is that of the very unit that is told of it.
        state = name_state(row, self.task).replace("intent", "unknown")
        line = f"- {row.name} of {row.step}, turn {row.turn}, round {row.round}: {state}"
        return self.make_part(line, {**data, "state": state}, "result", row.result)

    def list_artifacts(self, task: Task) -> QuerySet[Artifact]:
        rows = task.artifacts.filter(blob__isnull=False).exclude(media_type=LOG_TYPE)
        return rows.select_related("blob")

    def tell_artifact(self, row: Artifact) -> Part:
        assert row.blob is not None
        data = {"id": str(row.pk), "name": row.name, "step": row.step,
                "media_type": row.media_type, "size": row.blob.size}  # fmt: skip
        line = f"- {_dump(row.name)} of {row.step}: {row.media_type}, {row.blob.size} bytes"
        return Part(f"{line}, {row.pk}", data)

    def make_part(
        self, line: str, data: dict[str, Any], name: str, value: Any, mark: str = ""
    ) -> Part:
        """A line with the value after `mark` (`; name:`), without it where there is none."""
        if value is None:
            return Part(line, {**data, name: None})
        told = f"{line}{mark or f'; {name}:'} {self.clip(value)}"
        return Part(told, {**data, name: self.shorten(value)})

    def clip(self, value: Any) -> str:
        """A value as JSON on one line, a long one without its end."""
        text = _dump(value)
        left = len(text) - self.most
        return text if left <= 0 else f"{text[: self.most]} … and {left} more characters"

    def shorten(self, value: Any) -> Any:
        """The same for the data."""
        text = _dump(value)
        if len(text) <= self.most:
            return json.loads(text)
        return {"$begins": text[: self.most], "characters": len(text)}


def _name_following(task: Task) -> list[str]:
    """The next steps, as this process or a live worker knows the code of the task's version."""
    try:
        workflow = queries.find_workflow(task.workflow, task.workflow_version)
        here = workflow.index_of(task.step_name)
    except (UnknownWorkflow, UnknownStep):
        return []
    return [one.name for one in workflow.steps[here + 1 : here + 6]]


# --- Writing ---


def _write(
    reader: _Reader, head: dict[str, Any], parts: dict[str, list[Part]], totals: dict[str, int],
    bound: int,
) -> Sent:  # fmt: skip
    gone = {name: n for name in SHOWN if (n := totals[name] - len(parts[name]))}
    lines = [*_write_head(head, reader)]
    for name in SHOWN:
        if parts[name]:
            lines += ["", f"## {SECTIONS[name]}", "", *(one.line for one in _order(name, parts))]
    lines += ["", "## What is left", "", *_write_left(head)]
    if gone:
        told = [f"- {SECTIONS[name]}: {n} of {totals[name]}" for name, n in gone.items()]
        lines += ["", f"## Left out, to keep to {bound} tokens", "", *told]
    data = head | {name: [one.data for one in _order(name, parts)] for name in SHOWN}
    return Sent("\n".join(lines) + "\n", data | {"left_out": gone, "bound": bound})


def _order(name: str, parts: dict[str, list[Part]]) -> Iterable[Part]:
    """Values by their key; rows as they happened."""
    by_key = name in {"objective", "progress"}
    return sorted(parts[name], key=lambda one: str(one.data["key"])) if by_key else parts[name]


def _write_head(head: dict[str, Any], reader: _Reader) -> Iterable[str]:
    yield f"# {head['title'] or head['workflow']}"
    yield ""
    yield f"Task {head['task']}, workflow {head['workflow']} version {head['version']}."
    where = f"Step {head['index'] + 1} of {head['of']}, {head['step']}"
    yield f"{where}; turn {head['turn']}, round {head['round']}."
    if reader.task.feedback is not None:
        feedback = shorten_feedback(reader.task.feedback, reader.most)
        yield f"Feedback to this step: {reader.clip(feedback)}"
    if head["last_error"]:
        yield f"The last attempt failed: {_dump(head['last_error'])}"


def _write_left(head: dict[str, Any]) -> Iterable[str]:
    left = head["left"]
    yield (
        f"Of the limits: {left['units']} units, {left['tokens']} tokens, {left['cost']} of money, "
        f"{left['repairs']} repairs{', until ' + left['until'] if left['until'] else ''}."
    )
    more = head["of"] - head["index"] - 1
    yield f"Steps after this one: {', '.join(head['next']) or more or 'none'}."


def _leave_out(parts: dict[str, list[Part]], over: int) -> bool:
    """Drop what is least useful until `over` bytes are gone; False when nothing is left."""
    dropped = False
    for name in SECTIONS:
        while parts[name] and over > 0:
            over -= parts[name].pop(0).size
            dropped = True
    return dropped
