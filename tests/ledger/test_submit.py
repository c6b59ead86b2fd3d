"""Submissions: one task a key, also inside the caller's transaction; nothing half-made."""

from __future__ import annotations

import datetime as dt
import os
import uuid
from typing import Any

import pytest
from django.db import transaction
from pydantic import BaseModel

from ledger import client, clock, ids, states, sweeper
from ledger.errors import IdempotencyConflict, InvalidInput, LedgerError, PayloadTooLarge
from ledger.events import Actor
from ledger.models import Event, Task
from ledger.transitions.submit import submit_task
from ledger.workflows import Limits, Workflow, registered
from tests.factories import CLIENT, claim, complete, make_workflow, submit


def test_the_same_key_and_body_give_the_same_task(flow: Workflow) -> None:
    first, created = submit_task(workflow=flow, input={"a": 1}, actor=CLIENT, key="k")
    again, created_again = submit_task(workflow=flow, input={"a": 1}, actor=CLIENT, key="k")
    assert (first.pk, created, created_again) == (again.pk, True, False)
    assert (Task.objects.count(), Event.objects.count()) == (1, 1)


@pytest.mark.parametrize(
    "other",
    [{"input": {"a": 2}}, {"title": "x"}, {"lane": "x"}, {"priority": 1}, {"tags": ["x"]},
     {"limits_given": {"units": 5}}, {"max_repairs": 0}, {"version": "1"},
     {"not_before": dt.datetime(2030, 1, 1, tzinfo=dt.UTC)}],
    ids=str,
)  # fmt: skip
def test_the_same_key_with_another_body_is_refused(other: dict[str, Any], flow: Workflow) -> None:
    body: dict[str, Any] = {"workflow": flow, "input": {"a": 1}, "actor": CLIENT, "key": "k"}
    submit_task(**body)
    with pytest.raises(IdempotencyConflict):
        submit_task(**(body | other))
    assert Task.objects.count() == 1


def test_a_key_belongs_to_its_submitter(flow: Workflow) -> None:
    mine, _ = submit_task(workflow=flow, input={}, actor=CLIENT, key="k")
    theirs, created = submit_task(workflow=flow, input={}, actor=Actor("user", "9"), key="k")
    assert created
    assert mine.pk != theirs.pk


def test_a_key_outlives_its_task(flow: Workflow) -> None:
    task = submit(flow, key="k")
    complete(claim(flow), flow)
    again, created = submit_task(workflow=flow, input={}, actor=CLIENT, key="k")
    assert (again.pk, created, again.status) == (task.pk, False, states.COMPLETED)


def test_without_a_key_every_submission_is_a_task(flow: Workflow) -> None:
    assert submit(flow).pk != submit(flow).pk


def test_the_body_is_what_the_client_gave_under_a_newer_version_too(db: None) -> None:
    """A deploy between a request and its retry must not turn the retry into a conflict."""

    class Old(BaseModel):
        name: str

    class New(Old):
        depth: int = 3

    first = make_workflow("moving", input=Old)
    with registered(first):
        task = client.submit("moving", {"name": "x"}, key="k", actor=CLIENT)
    second = make_workflow("moving", input=New, version="2")
    with registered(first, second):
        assert client.submit("moving", {"name": "x"}, key="k", actor=CLIENT) == task
        with pytest.raises(IdempotencyConflict):
            client.submit("moving", {"name": "x"}, key="k", actor=CLIENT, version="2")
    assert Task.objects.get().input == {"name": "x"}


@pytest.mark.django_db(transaction=True)
def test_a_submission_shares_the_fate_of_the_callers_transaction(flow: Workflow) -> None:
    with transaction.atomic():
        submit(flow, key="k")
        transaction.set_rollback(True)  # the caller fails
    assert (Task.objects.count(), Event.objects.count()) == (0, 0)
    with transaction.atomic():
        kept = submit(flow, key="k")
    assert submit(flow, key="k").pk == kept.pk


@pytest.mark.django_db(transaction=True)
def test_a_refused_key_leaves_the_callers_transaction_usable(flow: Workflow) -> None:
    submit(flow, key="k")
    with transaction.atomic():
        with pytest.raises(IdempotencyConflict):
            submit(flow, key="k", title="another")
        with pytest.raises(InvalidInput):
            submit(flow, lane="")
        other = submit(flow, key="other")
    assert set(Task.objects.values_list("idempotency_key", flat=True)) == {"k", "other"}
    assert Task.objects.filter(pk=other.pk).exists()


@pytest.mark.parametrize(
    ("field", "given"),
    [
        ("title", {"title": "x" * 201}), ("title", {"title": "a\nb"}), ("title", {"title": 5}),
        ("title", {"title": "\x00"}), ("title", {"title": "\ud800"}),
        ("lane", {"lane": ""}), ("lane", {"lane": "x" * 101}), ("lane", {"lane": None}),
        ("priority", {"priority": 101}), ("priority", {"priority": -101}),
        ("priority", {"priority": 1.0}), ("priority", {"priority": True}),
        ("tags", {"tags": "abc"}), ("tags", {"tags": ["x"] * 21}), ("tags[1]", {"tags": ["a", ""]}),
        ("key", {"key": ""}), ("key", {"key": "x" * 201}), ("max_repairs", {"max_repairs": -1}),
        ("not_before", {"not_before": "tomorrow"}),
        ("not_before", {"not_before": dt.datetime.fromisoformat("2026-01-01")}),
        ("not_before", {"not_before": dt.datetime(9999, 1, 1, tzinfo=dt.UTC)}),
        ("limits.units", {"limits_given": {"units": "many"}}),
        ("input.a", {"input": {"a": float("nan")}}), ("input.a", {"input": {"a": "\x00"}}),
        ("input.a", {"input": {"a": b"bytes"}}),
    ],
    ids=str,
)  # fmt: skip
def test_what_is_wrong_is_named_and_nothing_is_stored(
    field: str, given: dict[str, Any], flow: Workflow
) -> None:
    with pytest.raises(InvalidInput) as caught:
        submit(flow, **given)
    assert caught.value.field == field
    assert Task.objects.count() == 0


def test_a_large_input_is_told_where_to_go(flow: Workflow) -> None:
    with pytest.raises(PayloadTooLarge, match="artifact"):
        submit(flow, input={"text": "x" * 300_000})
    submit(flow, input={"text": "x" * 200_000})


def test_a_deep_input_is_refused_not_followed(flow: Workflow) -> None:
    deep: Any = {}
    for _ in range(3000):
        deep = {"a": deep}
    with pytest.raises(LedgerError):
        submit(flow, input=deep)


@pytest.mark.parametrize(
    "given",
    [{}, {"not_before": dt.datetime(2030, 1, 1, tzinfo=dt.UTC), "tags": ["x"], "priority": 3},
     {"limits_given": {"deadline_at": dt.datetime(2030, 1, 1, tzinfo=dt.UTC), "wall": 7.5}}],
    ids=str,
)  # fmt: skip
def test_what_is_handed_back_is_what_is_stored(given: dict[str, Any], flow: Workflow) -> None:
    made = submit(flow, input={"a": [1, "é"]}, **given)
    names = [field.attname for field in Task._meta.concrete_fields]
    assert Task.objects.values(*names).get() == {name: getattr(made, name) for name in names}
    made.tags.append("changed")
    made.progress["changed"] = True
    other = submit(flow, key="other")
    assert (other.tags, other.progress) == ([], {})


def test_a_start_that_has_passed_is_now(flow: Workflow) -> None:
    task = submit(flow, not_before=dt.datetime(1, 1, 1, tzinfo=dt.UTC))
    assert (task.status, task.status_reason) == (states.QUEUED, "")


def test_a_later_start_waits_holding_nothing_and_takes_its_place_by_its_time(
    flow: Workflow,
) -> None:
    later = submit(flow, not_before=clock.read() + dt.timedelta(seconds=50))
    assert (later.status, later.status_reason) == (states.SCHEDULED, states.NOT_BEFORE)
    clock.offset += 100
    sooner = submit(flow)  # submitted after the other was due, before it was promoted
    assert sweeper.sweep().promoted == 1
    assert claim(flow).task_id == later.pk
    assert claim(flow).task_id == sooner.pk


def test_a_priority_is_worth_a_minute_of_waiting(flow: Workflow) -> None:
    first = submit(flow)
    clock.offset += 30
    urgent = submit(flow, priority=1)
    clock.offset += 31
    last = submit(flow, priority=1)
    assert [claim(flow).task_id for _ in range(3)] == [urgent.pk, first.pk, last.pk]


def test_a_submitters_limits_win_over_the_workflows_and_those_over_the_sites(
    settings: Any, db: None
) -> None:
    settings.LONGWATCH_LIMIT_TOKENS = 77
    flow = make_workflow("bounded", limits=Limits(units=5, cost="1.00"), max_repairs=9)
    with registered(flow):
        task = submit(flow, limits_given={"units": 6})
    task.refresh_from_db()
    assert (task.limit_units, task.limit_cost, task.limit_tokens) == (6, 1_000_000_000, 77)
    assert task.max_repairs == 9


def test_ids_rise_also_in_a_process_that_forked() -> None:
    before = ids.make_id()
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        made = [ids.make_id() for _ in range(3)]
        os.write(writer, b"".join(one.bytes for one in made))
        os._exit(0)
    os.close(writer)
    with os.fdopen(reader, "rb") as pipe:
        data = pipe.read()
    os.waitpid(child, 0)
    theirs = [uuid.UUID(bytes=data[at : at + 16]) for at in range(0, len(data), 16)]
    mine = [ids.make_id() for _ in range(3)]
    assert before < theirs[0] < theirs[1] < theirs[2]
    assert before < mine[0] < mine[1] < mine[2]
    assert len({*mine, *theirs}) == 6


def test_ids_rise_through_a_millisecond_and_a_clock_that_steps_back(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    made = [ids.make_id() for _ in range(20_000)]
    monkeypatch.setattr(ids.time, "time_ns", lambda: 0)
    made += [ids.make_id() for _ in range(20_000)]
    assert made == sorted(made)
    assert len(set(made)) == len(made)
    assert {(one.version, one.variant) for one in made} == {(7, uuid.RFC_4122)}
