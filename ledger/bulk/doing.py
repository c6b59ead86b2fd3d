"""The items are done by the workers' sweeps: one task a transaction, whoever comes first.

An item's outcome and the change of its task are one commit, so a worker that is killed at any
instant leaves an item either done or not begun.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import Any
from uuid import UUID

from django.contrib.auth import get_user_model
from django.db.models import Q

from ledger import clock, sql
from ledger.access import PAYLOAD, ROLES, Sight, find_sight, limit_sight
from ledger.bulk.actions import BulkAction, find_action
from ledger.bulk.answers import ANSWERS
from ledger.bulk.making import close_operation, stop_pending
from ledger.calls import Call, answer_call
from ledger.canonical import clean_text
from ledger.errors import LedgerError, NotAllowed, TaskNotFound
from ledger.events import Actor
from ledger.models import ApiToken, BulkItem, BulkOperation, Task
from ledger.models import bulk as words
from ledger.transitions.moves import skip_locked

log = logging.getLogger(__name__)

TURN_SECONDS = 0.25
"""How long one turn of a sweep goes on: the thread that sweeps also beats for a lease."""

MAX_WHY = 1_000

type Outcome = tuple[str, str]
"""What came of an item, and why."""


def name_call(operation_id: UUID) -> str:
    """What the audit log has as the request of each write that an operation makes."""
    return f"bulk:{operation_id}"


def do_pending(limit: int = 100) -> int:
    """Do items of the open operations, in turn, so that a large one keeps none waiting; how many.

    Safe from any number of processes: an item that somebody else is at is passed over.
    """
    until = time.monotonic() + TURN_SECONDS
    rows = BulkOperation.objects.filter(status__in=words.OPEN).order_by("id")
    after = dict.fromkeys(rows.values_list("pk", flat=True), 0)
    done = 0
    while after:
        for operation_id, last in list(after.items()):
            found = _do_next(operation_id, last)
            if found is None:
                del after[operation_id]
                _tidy(operation_id)
            else:
                after[operation_id], moved = found
                done += moved
        # At the end of a round, so that a slow database does not keep a turn from doing anything.
        if done >= limit or time.monotonic() >= until:
            break
    return done


def _tidy(operation_id: UUID) -> None:
    """What a stop left in the middle of an item, and the end of the operation."""
    if BulkOperation.objects.filter(pk=operation_id, status=words.STOPPING).exists():
        stop_pending(operation_id)
    else:
        close_operation(operation_id)


def _do_next(operation_id: UUID, after: int) -> tuple[int, bool] | None:
    """(number of the item behind `after`, whether it is done); None where there is no further."""
    pending = BulkItem.objects.filter(operation=operation_id, outcome=words.PENDING, pk__gt=after)
    key = 0
    try:
        with sql.atomic():
            item = skip_locked(pending.order_by("pk")).first()
            if item is None:
                return None
            key = item.pk
            # Read behind the item's lock: a stop that was told to its person is seen here.
            operation = BulkOperation.objects.get(pk=operation_id)
            if operation.status != words.RUNNING:
                return None
            outcome = _do_item(operation, item)
            if outcome is not None:
                _store(key, *outcome)
            return key, outcome is not None
    except Exception as error:
        if sql.is_outage(error) or not key:
            raise
        log.exception("item %s of the bulk operation %s can't be done", key, operation_id)
        _store(
            key, words.REFUSED, f"It failed by an error of the ledger's: {type(error).__name__}."
        )
        return key, True


def _store(key: int, outcome: str, why: str) -> None:
    BulkItem.objects.filter(pk=key, outcome=words.PENDING).update(
        outcome=outcome, why=clean_text(why, MAX_WHY), done_at=clock.now()
    )


def _do_item(operation: BulkOperation, item: BulkItem) -> Outcome | None:
    """What came of it; None where the task's row is locked, so that it is left for later."""
    name = operation.action
    action, actor = ANSWERS.get(name) or find_action(name), Actor.parse(operation.actor)
    rows = Task.objects.annotate(why=action.explain()).filter(pk=item.task)
    task = skip_locked(rows).first()
    if task is None:
        if Task.objects.filter(pk=item.task).exists():
            return None
        return words.REFUSED, str(TaskNotFound(item.task))
    sight = find_rights(actor)
    if action.scope not in sight.scopes:
        return words.REFUSED, str(lacks_scope(actor, action.scope))
    if sight.lanes is not None and task.lane not in sight.lanes:
        return words.REFUSED, str(TaskNotFound(item.task))
    if action.is_other(item.status_seen, task.status):
        return words.REFUSED, f"It was {item.status_seen} when it was chosen, and is {task.status}."
    if why := getattr(task, "why"):  # noqa: B009  an annotation
        return words.SKIPPED, why
    call = Call(
        request_id=name_call(operation.pk), actor=operation.actor, lanes=sight.lanes,
        payload=PAYLOAD in sight.scopes,
    )  # fmt: skip
    with answer_call(call):
        return _run(action, task, actor, operation, item)


def _run(
    action: BulkAction, task: Task, actor: Actor, operation: BulkOperation, item: BulkItem
) -> Outcome:
    given = operation.arguments
    if item.approval is not None:
        given = {**given, "approval": item.approval, "digest": item.digest}
    try:
        with sql.atomic():
            why = action.run(task, actor, operation.reason, given)
    except LedgerError as error:
        return words.REFUSED, str(error)
    return (words.SKIPPED, why) if why else (words.DONE, "")


def lacks_scope(actor: Actor, scope: str) -> NotAllowed:
    """Why nothing more is done for who made the operation."""
    return NotAllowed(f"{actor} has no longer the permission {scope}.")


def find_rights(actor: Actor) -> Sight:
    """What `actor` may do now: a person by role, a token while it is valid, a terminal all."""
    find: Callable[[str], Sight] | None = _FINDERS.get(actor.kind)
    return find(actor.id) if find else Sight()


def _find_user(key: str) -> Sight:
    try:
        user: Any = get_user_model()._default_manager.filter(pk=key).first()
    except (ValueError, TypeError):
        user = None
    return Sight() if user is None else find_sight(user)


def _find_token(key: str) -> Sight:
    lives = Q(expires_at__isnull=True) | Q(expires_at__gt=clock.now())
    row = ApiToken.objects.filter(lives, pk=key, revoked_at__isnull=True).first()
    return Sight() if row is None else limit_sight([*row.scopes, PAYLOAD], row.lanes, row.payload)


_FINDERS: dict[str, Callable[[str], Sight]] = {
    "user": _find_user,
    "token": _find_token,
    "cli": lambda key: Sight(ROLES["admin"]),
}
