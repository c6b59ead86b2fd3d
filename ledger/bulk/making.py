"""An operation is made in one transaction, with all its items; and stopped."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any
from uuid import UUID

from django.db import IntegrityError, connection
from django.db.models import Exists, OuterRef

from ledger import canonical, clock, sql
from ledger.auditing import write_entry
from ledger.bulk.actions import BulkAction, find_action
from ledger.bulk.answers import ANSWERS, Asked, check_kind, look_at
from ledger.bulk.selecting import MAX_ITEMS, Seen, Selection, compile_rows, say_bound
from ledger.errors import IdempotencyConflict, InvalidInput, LedgerError, NotFound, TaskNotFound
from ledger.events import Actor
from ledger.models import Approval, BulkItem, BulkOperation
from ledger.models import bulk as words
from ledger.queries.bulk import see_operations
from ledger.queries.seen import require_payload
from ledger.transitions.moves import skip_locked
from ledger.transitions.operators import check_reason
from ledger.transitions.submit import check_key

MAX_OPEN = 50
"""Operations that are not done yet, of all people."""


class SelectionGrew(LedgerError):
    """More tasks match now than the caller was shown, or others."""

    code = "selection_grew"
    status = 409

    def __init__(self, seen: int, now: int, fresh: int = 0) -> None:
        others = f", {fresh:,} of them not among those" if fresh else ""
        super().__init__(
            f"It is for {now:,} tasks now{others}, and was for {seen:,} when you looked. "
            "Look again, then decide."
        )


def make_operation(
    name: str,
    selection: Selection,
    *,
    actor: Actor,
    arguments: Mapping[str, Any] | None = None,
    reason: str = "",
    key: str | None = None,
    expected: int | None = None,
    seen: Seen | None = None,
) -> tuple[BulkOperation, bool]:
    """(the operation, whether it is new): every task that is chosen is an item of it.

    What the action can't be done to is an item as well, skipped from the start. With `key` the same
    request gives the same operation. Raises InvalidInput, IdempotencyConflict, and SelectionGrew
    when it would be done to more than `expected`, or to one that is not among the `seen`.
    """
    action = find_action(name)
    given = action.read(arguments or {})
    body = [name, given, reason, [str(one) for one in selection.ids or ()], selection.pairs]
    row = _draft(name, given, reason, selection.describe(), actor, key, body)

    def store_items() -> int:
        applies = _store_items(row, action, selection)
        if expected is not None and applies > expected:
            raise SelectionGrew(expected, applies)
        if seen is not None and (fresh := seen.count_others(_list_pending(row))):
            raise SelectionGrew(len(seen), applies, fresh)
        return applies

    return _store_operation(row, store_items)


def make_answers(
    name: str,
    asked: Sequence[Asked],
    *,
    actor: Actor,
    comment: str = "",
    key: str | None = None,
    undo_seconds: float = 0.0,
) -> tuple[BulkOperation, bool]:
    """The same for one answer (`approve` or `reject`) to many questions, each an item.

    A question that can't be answered with the others is skipped from the start, one that is no
    longer what was shown refused. Raises InvalidInput, also for questions of several kinds, and
    IdempotencyConflict.
    """
    require_payload()  # an answer is about what was shown
    if name not in ANSWERS:
        raise InvalidInput("action", f"is {name!r:.60}; it takes one of {', '.join(ANSWERS)}")
    given = ANSWERS[name].read({"comment": comment})
    body = [name, given, [[str(one.id), one.digest] for one in asked]]
    if undo_seconds > 0:
        given["undo_seconds"] = undo_seconds
    row = _draft(name, given, "", {"approvals": len(asked)}, actor, key, body)

    def store_items() -> int:
        looked = look_at(name, asked, actor)
        check_kind(looked)
        if len({one.row.task_id for one in looked}) < len(looked):
            raise InvalidInput("approvals", "are several of one task; its open one is enough")
        BulkItem.objects.bulk_create(
            [
                _make_item(row, one.row, one.why, one.changed, digest)
                for one, digest in zip(looked, digests, strict=True)
            ]
        )
        row.total = len(looked)
        applies = len(_list_pending(row))
        if not applies:
            raise InvalidInput("approvals", f"there is none to {name}" + _say_why(row))
        return applies

    digests = [one.digest for one in asked]
    return _store_operation(row, store_items)


def _make_item(
    row: BulkOperation, approval: Approval, why: str, changed: bool, digest: str
) -> BulkItem:
    task = approval.task
    left_out = words.REFUSED if changed else words.SKIPPED
    return BulkItem(
        operation=row, task=task.pk, revision_seen=task.revision, status_seen=task.status,
        approval=approval.pk, digest=digest[:64], outcome=left_out if why else words.PENDING,
        why=why, done_at=row.created_at if changed else None,
    )  # fmt: skip


def _draft(
    name: str, given: dict[str, Any], reason: str, selection: dict[str, Any], actor: Actor,
    key: str | None, body: Any,
) -> BulkOperation:  # fmt: skip
    check_reason(reason)
    check_key(key, "Idempotency-Key")
    digest = hashlib.sha256(canonical.dump_json(_listed(body), "body").encode()).hexdigest()
    return BulkOperation(
        action=name, arguments=given, reason=reason, selection=selection, actor=str(actor),
        idempotency_key=key, body_digest=digest, total=0, created_at=clock.read(),
    )  # fmt: skip


def _store_operation(
    row: BulkOperation, store_items: Callable[[], int]
) -> tuple[BulkOperation, bool]:
    """The row with its items, which `store_items` stores and counts; or the one of its key."""
    if (known := _find_known(row)) is not None:
        return known, False
    try:
        with sql.atomic():
            if BulkOperation.objects.filter(status__in=words.OPEN).count() >= MAX_OPEN:
                raise InvalidInput("action", f"{MAX_OPEN} bulk operations are not done yet; wait, "
                                   "or stop one")  # fmt: skip
            BulkOperation.objects.bulk_create([row])
            applies = store_items()
            BulkOperation.objects.filter(pk=row.pk).update(total=row.total)
            what = "approvals" if row.action in ANSWERS else "tasks"
            write_entry(
                Actor.parse(row.actor), "bulk_started", f"bulk:{row.pk}", at=row.created_at,
                reason=row.reason or row.arguments.get("comment", ""),
                after={"action": row.action, "arguments": row.arguments, **row.selection,
                       what: applies},
            )  # fmt: skip
    except IntegrityError:  # the same request, sent twice at once
        if (known := _find_known(row)) is None:
            raise
        return known, False
    return row, True


def _list_pending(row: BulkOperation) -> list[UUID]:
    return list(row.items.filter(outcome=words.PENDING).values_list("task", flat=True))


def _listed(value: Any) -> Any:
    """Tuples as the lists that JSON knows."""
    return [_listed(one) for one in value] if isinstance(value, (list, tuple)) else value


def _find_known(row: BulkOperation) -> BulkOperation | None:
    key = row.idempotency_key
    if key is None:
        return None
    known = BulkOperation.objects.filter(actor=row.actor, idempotency_key=key).first()
    if known is not None and known.body_digest != row.body_digest:
        raise IdempotencyConflict(key)
    return known


def _store_items(row: BulkOperation, action: BulkAction, selection: Selection) -> int:
    """One statement for all of them; returns how many are to be done."""
    chosen, params = compile_rows(action, selection)
    pk = BulkOperation._meta.pk.get_db_prep_value(row.pk, connection)
    with connection.cursor() as cursor:
        cursor.execute(
            "INSERT INTO longwatch_bulk_item (operation_id, task, revision_seen, status_seen, "
            "approval, digest, outcome, why, done_at) "
            f"WITH chosen (id, revision, status, why) AS ({chosen}) "
            "SELECT %s, id, revision, status, NULL, '', "
            "CASE WHEN why = '' THEN 'pending' ELSE 'skipped' END, why, NULL FROM chosen",
            [*params, pk],
        )
    row.total = row.items.count()
    if row.total > MAX_ITEMS:
        raise InvalidInput("tasks", say_bound(f"More than {MAX_ITEMS:,}"))
    if selection.ids is not None:
        row.total += _store_missing(row, selection.ids)
    applies = row.items.filter(outcome=words.PENDING).count()
    if not applies:
        raise InvalidInput("tasks", f"there is none to {action.name}" + _say_why(row))
    return applies


def _store_missing(row: BulkOperation, ids: tuple[UUID, ...]) -> int:
    """Ids that are no task of the caller's: refused from the start."""
    missing = set(ids) - set(row.items.values_list("task", flat=True))
    BulkItem.objects.bulk_create(
        [
            BulkItem(operation=row, task=key, outcome=words.REFUSED, why=str(TaskNotFound(key)),
                     done_at=row.created_at)
            for key in ids if key in missing
        ]
    )  # fmt: skip
    return len(missing)


def _say_why(row: BulkOperation) -> str:
    first = row.items.exclude(why="").values_list("why", flat=True).first()
    return f" among the {row.total:,} chosen: {first}" if first else "; no task matches"


def stop_operation(operation_id: UUID, *, actor: Actor, reason: str = "") -> BulkOperation:
    """running -> stopped: what is done stays, no further task is begun.

    `stopping` for as long as a worker is in the middle of an item. Stopping twice is harmless.
    Raises NotFound.
    """
    check_reason(reason)
    with sql.atomic():
        row = see_operations().select_for_update().filter(pk=operation_id).first()
        if row is None:
            raise NotFound("bulk operation", operation_id)
        if row.status == words.RUNNING:
            BulkOperation.objects.filter(pk=row.pk).update(
                status=words.STOPPING, stopped_by=str(actor)
            )
            write_entry(actor, "bulk_stopped", f"bulk:{row.pk}", reason=reason)
    stop_pending(operation_id)
    return BulkOperation.objects.get(pk=operation_id)


def stop_pending(operation_id: UUID) -> int:
    """The items of a stopping operation that nobody is in the middle of are stopped; how many."""
    with sql.atomic():
        pending = BulkItem.objects.filter(operation=operation_id, outcome=words.PENDING)
        keys = list(skip_locked(pending).values_list("pk", flat=True))
        for start in range(0, len(keys), 1_000):
            some = pending.filter(pk__in=keys[start : start + 1_000])
            some.update(outcome=words.STOPPED, done_at=clock.now())
    close_operation(operation_id)
    return len(keys)


def close_operation(operation_id: UUID) -> bool:
    """running -> done, stopping -> stopped, once no item is left to be done."""
    pending = BulkItem.objects.filter(operation=OuterRef("pk"), outcome=words.PENDING)
    rows = BulkOperation.objects.filter(pk=operation_id).exclude(Exists(pending))
    ends = {words.RUNNING: words.DONE, words.STOPPING: words.STOPPED}
    with sql.atomic():
        return any(
            rows.filter(status=status).update(status=end, finished_at=clock.now())
            for status, end in ends.items()
        )
