"""The database refuses the write that ends an attempt, while worker and heartbeat are well."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from django.db import connection

from ledger import clock, states
from ledger.models import Event, StepOutput, Task
from ledger.runner import Engine, run_attempt
from ledger.sweeper import sweep
from ledger.workflows import Again, RetryLater, Sleep, registered
from tests.factories import LEASE, OWNER, submit
from tests.ledger.journal import Journal
from tests.ledger.replay import check_columns

pytestmark = [pytest.mark.case(8), pytest.mark.django_db(transaction=True)]

Refuse = Callable[..., None]
LEAVES = "OLD.status = 'running' AND NEW.status <> 'running'"
WRITES = {
    "output": ("INSERT ON longwatch_step_output", ""),
    "leave": ("UPDATE ON longwatch_task", f"WHEN ({LEAVES})"),
    "failure": ("INSERT ON longwatch_event", "WHEN (NEW.kind = 'attempt_failed')"),
}
"""What may be refused: the output, the end of a lease by anybody, the record of a failure."""

POSTGRESQL = """
CREATE SEQUENCE refusals;
CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
  IF (SELECT {when} FROM nextval('refusals') AS n) THEN
    RAISE EXCEPTION 'refused' USING ERRCODE = '{code}';
  END IF;
  RETURN NEW;
END $$"""


@pytest.fixture
def refuse() -> Iterator[Refuse]:
    """Makes the database refuse some writes of WRITES: those whose number fits `when`."""
    made: list[str] = []

    def begin(*writes: str, when: str, code: str = "P0001") -> None:
        made.extend(writes)
        with connection.cursor() as cursor:
            if connection.vendor == "postgresql":
                cursor.execute(POSTGRESQL.format(when=when, code=code))
                body = "FOR EACH ROW {} EXECUTE FUNCTION refuse()"
            else:
                numbers = itertools.count(1)
                connection.connection.create_function(
                    "refuses", 0, lambda: eval(when, {"n": next(numbers)})
                )
                body = "FOR EACH ROW {} BEGIN SELECT RAISE(ABORT, 'refused') WHERE refuses(); END"
            for name in writes:
                what, only = WRITES[name]
                cursor.execute(f"CREATE TRIGGER refuse_{name} BEFORE {what} {body.format(only)}")

    yield begin
    with connection.cursor() as cursor:
        for name in made:
            table = WRITES[name][0].split()[-1]
            on = f" ON {table}" if connection.vendor == "postgresql" else ""
            cursor.execute(f"DROP TRIGGER refuse_{name}{on}")
        if connection.vendor == "postgresql":
            cursor.execute("DROP FUNCTION refuse; DROP SEQUENCE refusals")


def do_all(ctx: Any) -> Any:
    """Four turns with a release and a nap between them, then a timer."""
    if ctx.turn == 1 and ctx.attempt == 1:
        raise RetryLater(1)
    if ctx.turn < 3:
        return Again() if ctx.turn % 2 else Again(after=1)
    return Sleep(1)


@pytest.mark.postgresql
@pytest.mark.parametrize("code", ["40001", "40P01"])
def test_a_conflict_in_a_settle_is_tried_again_and_runs_nothing_twice(
    code: str, refuse: Refuse, resident: Callable[..., None]
) -> None:
    """Every third write that ends an attempt meets a serialisation failure or a deadlock."""
    journal = Journal(do_all)
    with registered(journal.flow):
        refuse("output", "leave", when="n % 3 = 1", code=code)
        keys = [submit(journal.flow).pk for _ in range(3)]
        resident(*keys)
    assert set(Task.objects.values_list("status", "attempts", "reclaims")) == {
        (states.COMPLETED, 0, 0)
    }
    # Each unit once; the one that asked to come later, once more.
    assert len(journal.runs) == StepOutput.objects.count() + len(keys)
    assert Event.objects.filter(kind="released").count() == len(keys)
    assert not Event.objects.filter(kind="stale_write_refused").exists()
    for task in Task.objects.all():
        check_columns(task)


def test_a_write_that_is_refused_for_a_while_costs_attempts_and_no_more(
    refuse: Refuse, resident: Callable[..., None]
) -> None:
    journal = Journal(lambda ctx: {})
    with registered(journal.flow):
        refuse("output", when="n <= 3")
        task = submit(journal.flow)
        resident(task.pk)
    task.refresh_from_db()
    assert task.status == states.COMPLETED
    assert [step for _, step, _ in journal.runs] == ["first"] * 4 + ["second"]
    failures = Event.objects.filter(kind="attempt_failed")
    assert failures.count() == 3
    assert all("refused" in event.data["error"]["message"] for event in failures)


@pytest.mark.parametrize(
    ("writes", "reason"),
    [(("output",), states.RETRIES_EXHAUSTED), (("output", "failure"), states.RECLAIMS_EXHAUSTED)],
    ids=["output", "and its failure"],
)
def test_a_write_that_is_refused_for_ever_leaves_no_lease_and_comes_to_an_end(
    writes: tuple[str, ...], reason: str, refuse: Refuse
) -> None:
    """Not even the failure can be written: the worker forgets the task, and beats no more for it,
    so its lease ends by itself."""
    journal = Journal(lambda ctx: {})
    engine = Engine(OWNER)
    with registered(journal.flow):
        refuse(*writes, when="n > 0")
        task = submit(journal.flow)
        for _ in range(4):
            held = engine.claim()
            assert held is not None
            assert run_attempt(engine, held) is None
            assert engine.heart.held is None
            clock.offset += LEASE + 1
            sweep()
        assert engine.claim() is None
    task.refresh_from_db()
    assert (task.status, task.status_reason) == (states.DEAD, reason)
    assert len(journal.runs) == 4
    assert not StepOutput.objects.exists()
    check_columns(task)
