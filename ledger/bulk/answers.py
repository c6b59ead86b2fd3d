"""One answer to many questions: each of them as it was shown, each a vote of one person.

Together are approved only questions of low risk, without money or effects outside, and answered
only questions of one kind: what is decided in a list is decided by its first lines.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Iterable, Mapping, Sequence
from typing import Any
from uuid import UUID

from ledger import states
from ledger.access import APPROVE, list_memberships
from ledger.bulk.actions import BulkAction, check_names
from ledger.canonical import MAX_TEXT
from ledger.errors import ApprovalClosed, DigestMismatch, InvalidInput
from ledger.events import Actor
from ledger.models import Approval, Task
from ledger.models import approvals as kinds
from ledger.queries.seen import see_approvals
from ledger.tokens import find_principal
from ledger.transitions.approvals import decide_approval
from ledger.transitions.standing import find_submitters, find_voted

MAX_ANSWERS = 200
"""Questions of one operation: as many as the queue shows."""

CHANGED = "It has changed since you looked, or was asked anew; nobody answered for you."
LOW = "low"


@dataclasses.dataclass(frozen=True, slots=True)
class Asked:
    """A question, and the digest of what was shown of it."""

    id: UUID
    digest: str


@dataclasses.dataclass(frozen=True, slots=True)
class Looked:
    """A question as it is now, with its task; why it can't be answered with the others, if so.

    `changed` when what was shown is no longer what is asked.
    """

    row: Approval
    why: str = ""
    changed: bool = False

    @property
    def kind(self) -> tuple[str, str, str]:
        """What is answered together: the questions of one step of a workflow, of one sort."""
        return (self.row.task.workflow, self.row.step, self.row.kind)


def read_asked(given: Iterable[tuple[Any, Any]]) -> tuple[Asked, ...]:
    """(id, digest) pairs, each question once, in order. Raises InvalidInput."""
    pairs = list(given)
    if len(pairs) > MAX_ANSWERS:
        raise InvalidInput(
            "approvals", f"{len(pairs):,} are chosen, and one operation takes {MAX_ANSWERS}"
        )
    try:
        found = {UUID(str(key)): str(digest) for key, digest in pairs}
    except ValueError:
        raise InvalidInput("approvals", "takes ids of approvals, each with its digest") from None
    return tuple(Asked(key, digest) for key, digest in found.items())


def look_at(name: str, asked: Sequence[Asked], actor: Actor) -> list[Looked]:
    """The questions in the order given, each with why the answer `name` is not for it.

    Raises InvalidInput for an id that is none the caller sees.
    """
    by_key = see_approvals().select_related("task").in_bulk([one.id for one in asked])
    for one in asked:
        if one.id not in by_key:
            raise InvalidInput("approvals", f"there is no approval {one.id}")
    rows = list(by_key.values())
    me, names = find_principal(str(actor)), frozenset[str]()
    if any(row.assignees is not None for row in rows):
        names = list_memberships(str(actor))
    held = [row.task for row in rows if not row.self_approval]
    submitters = find_submitters((task.pk, task.parent_id, task.submitted_by) for task in held)
    voted = find_voted(str(actor), [row.pk for row in rows if row.votes_needed > 1])
    looked = []
    for one in asked:
        row = by_key[one.id]
        changed = row.status == kinds.VOID or row.digest != one.digest
        why = CHANGED if changed else _explain_state(row) or explain_alone(name, row)
        if not why and row.assignees is not None and names.isdisjoint(row.assignees):
            why = f"It is for {', '.join(row.assignees)}."
        if not why and submitters.get(row.task_id) == me:
            why = "You submitted it, so somebody else answers."
        if not why and row.pk in voted:
            why = "You have voted; it needs the votes of others."
        looked.append(Looked(row, why, changed))
    return looked


def _explain_state(row: Approval) -> str:
    task = row.task
    if row.status != kinds.OPEN:
        return str(ApprovalClosed(row.status, row.decided_by))
    if (task.status, task.status_reason) != (states.WAITING, states.APPROVAL):
        return f"Its task is {task.status}."
    return ""


def explain_alone(name: str, row: Approval) -> str:
    """Why a question is answered on its own page only; empty when it may be one of many."""
    if name != "approve":
        return ""
    if row.risk != LOW:
        return f"Its risk is {row.risk}; only low risk is approved together."
    if row.money or row.outside_effect:
        what = "money" if row.money else "an effect outside"
        return f"It is about {what}, so it is approved on its own page."
    return ""


def check_kind(looked: Sequence[Looked]) -> None:
    """Raise InvalidInput unless those that can be answered are of one kind."""
    found = sorted({one.kind for one in looked if not one.why})
    if len(found) > 1:
        said = "; ".join(f"{workflow}, {step}" for workflow, step, _ in found[:5])
        raise InvalidInput(
            "approvals", f"are of {len(found)} kinds ({said}); one operation answers one kind"
        )


def _read(name: str, given: Mapping[str, Any]) -> dict[str, Any]:
    check_names(given, "comment")
    comment = given.get("comment") or ""
    if not isinstance(comment, str) or len(comment) > MAX_TEXT:
        raise InvalidInput("arguments.comment", f"takes a text of at most {MAX_TEXT} characters")
    if name == "reject" and not comment.strip():
        raise InvalidInput("arguments.comment", "say why you reject them")
    return {"comment": comment} if comment else {}


def _answer(name: str, task: Task, actor: Actor, reason: str, given: dict[str, Any]) -> str:
    """Vote on the question of an item; its rules are looked at again under the task's lock."""
    row = see_approvals().get(pk=given["approval"])
    if row.status == kinds.VOID or row.digest != given["digest"]:
        raise DigestMismatch
    if why := explain_alone(name, row):
        return why
    decide_approval(
        row.pk, decision=name, actor=actor, digest=given["digest"],
        comment=given.get("comment", ""), undo_seconds=given.get("undo_seconds", 0.0),
    )  # fmt: skip
    return ""


ANSWERS = {
    name: BulkAction(
        name, functools.partial(_answer, name), (), alike=frozenset(states.STATUSES),
        read=functools.partial(_read, name), scope=APPROVE,
    )
    for name in ("approve", "reject")
}  # fmt: skip
"""Name -> what is done to the task of each question."""
