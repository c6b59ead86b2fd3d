"""nothing -> queued or scheduled: a client's submission."""

from __future__ import annotations

import contextlib
import dataclasses
import datetime as dt
import functools
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from django.db import IntegrityError, connection, transaction

from ledger import auditing, canonical, clock, conf, limits, queries, sql, states, uploads
from ledger.calls import read_call, sees_lane
from ledger.concurrency import read_key_columns
from ledger.errors import (
    IdempotencyConflict,
    InvalidInput,
    LedgerError,
    NotAllowed,
    PayloadTooLarge,
    UnparsableInput,
    Unserialisable,
)
from ledger.events import Actor
from ledger.ids import make_id
from ledger.models import Task
from ledger.transitions.moves import rank_at
from ledger.workflows import Workflow

FAR_FUTURE = dt.timedelta(days=3650)
MAX_BATCH = 1_000


@dataclasses.dataclass(frozen=True, slots=True)
class Draft:
    """A submission that is checked and not stored: the task's columns, who, and not before when."""

    columns: dict[str, Any]
    actor: Actor
    not_before: dt.datetime | None = None


def submit_task(**given: Any) -> tuple[Task, bool]:
    """Insert a task, or find the one that the same submitter made with the same key and body.

    Takes what `draft_task` takes and raises what it raises, and IdempotencyConflict when the key
    came with another body. Joins the caller's transaction. Returns (task, created).
    """
    draft = draft_task(**given)
    with _auditing(draft.actor) as made:
        task, created = store_draft(draft)
        made += [task] * created
    return task, created


@contextlib.contextmanager
def _auditing(actor: Actor) -> Iterator[list[Task]]:
    """One transaction with the audit log's entries of what is made inside, if a person does it."""
    made: list[Task] = []
    with sql.atomic() if actor.kind in auditing.PEOPLE else contextlib.nullcontext():
        yield made
        auditing.audit_submissions(made, actor)


def submit_tasks(items: Sequence[Mapping[str, Any]], *, actor: Actor) -> list[tuple[Task, bool]]:
    """All of `items`, or none: each is what `draft_task` takes, `workflow` also by name.

    Errors are those of `submit_task`, their field with `items.N.` before it. All are checked before
    the first is stored, so that a batch holds the database's lock for its inserts alone.
    """
    if not 1 <= len(items) <= MAX_BATCH:
        raise InvalidInput("items", f"takes 1 to {MAX_BATCH:,} tasks")
    find = functools.cache(queries.find_workflow)
    drafts = []
    for number, item in enumerate(items):
        with naming_item(f"items.{number}"):
            workflow = item["workflow"]
            if isinstance(workflow, str):
                workflow = find(workflow, item.get("version"))
            drafts.append(draft_task(**{**item, "workflow": workflow, "actor": actor}))
    # They run in the order given and are stored in the order of their keys: batches that share some
    # wait for each other's, and never in a circle.
    begun = clock.read()
    for number, draft in enumerate(drafts):
        rank = rank_at(begun, draft.columns["priority"]) + number
        draft.columns.update(id=make_id(), rank=rank)
    stored = {}
    with sql.atomic(), _auditing(actor) as made:
        for number in sorted(range(len(drafts)), key=lambda n: _read_key(drafts[n])):
            with naming_item(f"items.{number}"):
                stored[number] = store_draft(drafts[number])
        made += [stored[number][0] for number in sorted(stored) if stored[number][1]]
    return [stored[number] for number in range(len(drafts))]


def _read_key(draft: Draft) -> str:
    return draft.columns["idempotency_key"] or ""


@contextlib.contextmanager
def naming_item(place: str) -> Iterator[None]:
    """Errors inside say which item of several is wrong: their field begins with `place`."""
    try:
        yield
    except LedgerError as error:
        text = str(error) if error.field else f"key: {error}"
        error.field = f"{place}.{error.field or 'key'}"
        error.args = (f"{place}.{text}",)
        raise


def draft_task(
    *,
    workflow: Workflow,
    input: Any,
    actor: Actor,
    version: str | None = None,
    key: str | None = None,
    title: str = "",
    lane: str = "default",
    priority: int = 0,
    tags: Sequence[str] = (),
    limits_given: Mapping[str, Any] | None = None,
    max_repairs: int | None = None,
    not_before: dt.datetime | None = None,
    stall_after: float | None = None,
) -> Draft:
    """A submission, checked, with all that does not depend on what is stored already.

    The body is what the client gave, so that it is the same still under a newer workflow: `version`
    is the one that it named, if any, and the input counts before defaults are filled in. Raises
    InvalidInput naming the field, or PayloadTooLarge.
    """
    tunables = conf.load()
    stored_input = check_input(workflow, input)
    columns = read_columns(title, lane, priority, tags, key, max_repairs, not_before)
    columns |= limits.read_limits(_merge_limits(workflow, limits_given))
    body = {
        "workflow": workflow.name, "version": version,
        "input": input if isinstance(input, dict) else stored_input,
        "title": title, "lane": lane, "priority": priority, "tags": list(tags),
        "limits": {k: str(v) for k, v in dict(limits_given or {}).items()},
        "max_repairs": max_repairs, "not_before": str(not_before or ""),
    }  # fmt: skip
    if max_repairs is None:
        own = workflow.max_repairs
        columns["max_repairs"] = tunables.max_repairs if own is None else own
    columns |= {
        "workflow": workflow.name, "workflow_version": workflow.version,
        "definition_digest": workflow.digest(), "input": stored_input,
        "body_digest": canonical.digest_json(body), "submitted_by": str(actor),
        "total_steps": len(workflow.steps), "step_name": workflow.steps[0].name,
        "stall_after": stall_after or tunables.stall_seconds,
        "on_limit": workflow.on_limit, "self_approval": workflow.self_approval,
        **read_key_columns(workflow.concurrency, stored_input),
    }  # fmt: skip
    uploads.keep_named(stored_input)
    return Draft(columns, actor, not_before)


def store_draft(draft: Draft) -> tuple[Task, bool]:
    """Insert the draft, or find the task of its key: (task, created). Joins a transaction.

    Raises IdempotencyConflict.
    """
    found = find_same(draft.columns)
    if found is not None:
        return found, False
    # A refused key must not spoil the caller's transaction.
    spoils = draft.columns["idempotency_key"] is not None and connection.in_atomic_block
    try:
        with transaction.atomic() if spoils else contextlib.nullcontext():
            return _insert_task(dict(draft.columns), draft.actor, draft.not_before), True
    except IntegrityError:
        # Beaten by the same key in the same instant: the other one's row decides.
        found = find_same(draft.columns)
        if found is None:
            raise
        return found, False


def _insert_task(columns: dict[str, Any], actor: Actor, not_before: dt.datetime | None) -> Task:
    columns = {"id": make_id(), **columns, "status": states.QUEUED, "event_seq": 1}
    note = {"title": columns["title"], "lane": columns["lane"], "until": None}
    if not_before is not None and not_before > clock.read():
        columns |= {
            "status": states.SCHEDULED, "status_reason": states.NOT_BEFORE,
            "available_at": not_before, "rank": rank_at(not_before, columns["priority"]),
            "wall_left": columns["limit_wall"], "wall_until": None,
        }  # fmt: skip
        note["until"] = not_before.isoformat()
    return sql.insert_task(columns, str(actor), note)


def find_same(columns: Mapping[str, Any]) -> Task | None:
    """The task of this submitter and key; None without one.

    Reads submitted_by, idempotency_key and body_digest. Raises IdempotencyConflict.
    """
    key = columns["idempotency_key"]
    if key is None:
        return None
    task = Task.objects.filter(submitted_by=columns["submitted_by"], idempotency_key=key).first()
    if task is not None and task.body_digest != columns["body_digest"]:
        raise IdempotencyConflict(key)
    return task


def check_input(workflow: Workflow, input: Any) -> Any:
    """The JSON to store. Raises InvalidInput, UnparsableInput, PayloadTooLarge."""
    most = conf.load().input_bytes
    if isinstance(input, dict):
        check_value("input", input, most)
    cleaned = workflow.clean_input(input)
    return cleaned if cleaned is input else check_value("input", cleaned, most)


def _merge_limits(workflow: Workflow, given: Mapping[str, Any] | None) -> dict[str, Any]:
    """A submitter's limits win over the workflow's, field by field."""
    base = {name: getattr(workflow.limits, name) for name in limits.NAMES}
    return {**base, **{k: v for k, v in dict(given or {}).items() if v is not None}}


def check_value(field: str, value: Any, bound: int) -> Any:
    """`value` itself. Raises UnparsableInput, and PayloadTooLarge beyond `bound` bytes of JSON."""
    try:
        text = canonical.dump_json(value, field)
    except Unserialisable as error:
        raise UnparsableInput(error.path, error.why) from None
    if len(text) > bound:
        raise PayloadTooLarge(
            field, f"is {len(text)} bytes, the bound is {bound}. Upload it as an artifact instead."
        )
    return value


def _check_text(field: str, value: Any, longest: int, empty: bool = True) -> str:
    if not isinstance(value, str) or len(value) > longest or not (value or empty):
        least = 0 if empty else 1
        raise InvalidInput(field, f"takes a text of {least} to {longest} characters")
    try:
        canonical.check_json(value, field)
    except Unserialisable as error:
        raise UnparsableInput(field, error.why) from None
    if any(ord(letter) < 32 or ord(letter) == 127 for letter in value):
        raise InvalidInput(field, "contains control characters")
    return value


def check_key(key: Any, field: str = "key") -> str | None:
    """An idempotency key, or None. Raises InvalidInput naming `field`."""
    if key is None:
        return None
    if not _check_text(field, key, 200, empty=False).isprintable():
        raise InvalidInput(field, "takes printable characters only")
    return str(key)


def check_count(field: str, value: Any, least: int, most: int) -> int:
    """`value` as a count within the bounds. Raises InvalidInput naming `field`."""
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
        raise InvalidInput(field, f"takes a whole number from {least} to {most}")
    return value


def read_columns(
    title: Any, lane: Any, priority: Any, tags: Any, key: Any, max_repairs: Any, not_before: Any
) -> dict[str, Any]:
    """What is a column as it was given, checked; the key's is `idempotency_key`."""
    if not isinstance(tags, (list, tuple)) or len(tags) > 20:
        raise InvalidInput("tags", "takes a list of at most 20 texts")
    if not_before is not None:
        if not isinstance(not_before, dt.datetime) or not_before.tzinfo is None:
            raise InvalidInput("not_before", "needs an offset, such as 2026-01-31T12:00:00Z")
        if not_before > clock.read() + FAR_FUTURE:
            raise InvalidInput("not_before", "is more than ten years away")
    if isinstance(lane, str) and not sees_lane(lane):
        own = ", ".join(sorted(read_call().lanes or ()))
        raise NotAllowed(f"lane: {lane!r:.120} is none of yours, which are: {own}.")
    columns = {
        "title": _check_text("title", title, 200),
        "lane": _check_text("lane", lane, 100, empty=False),
        "priority": check_count("priority", priority, -100, 100),
        "tags": [_check_text(f"tags[{n}]", tag, 50, empty=False) for n, tag in enumerate(tags)],
        "idempotency_key": check_key(key),
    }
    if max_repairs is not None:
        columns["max_repairs"] = check_count("max_repairs", max_repairs, 0, 1000)
    return columns
