"""`manage.py ledger_check` sees a broken contract, and leaves nothing behind."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from django.core.management import call_command
from django.db import connection

from ledger.management import checking
from ledger.management.rules import RULES
from ledger.models import Approval, ApprovalVote, Event, Spend, StepOutput, Task
from ledger.transitions import sweeps

pytestmark = pytest.mark.both_databases

TABLES = (Task, StepOutput, Event, Approval, ApprovalVote, Spend)


def run_check() -> tuple[int, list[str]]:
    """Exit code and lines."""
    out = io.StringIO()
    try:
        call_command("ledger_check", stdout=out)
    except SystemExit as ended:
        return int(ended.code or 0), out.getvalue().splitlines()
    return 0, out.getvalue().splitlines()


@contextmanager
def without_constraint(model: Any, name: str) -> Iterator[None]:
    """The table as it is without one of its constraints."""
    every = model._meta.constraints
    constraint = next(one for one in every if one.name == name)
    # SQLite makes the table anew from what the model says now.
    model._meta.constraints = [one for one in every if one is not constraint]
    try:
        with connection.schema_editor() as editor:
            editor.remove_constraint(model, constraint)
        yield
    finally:
        model._meta.constraints = every
        with connection.schema_editor() as editor:
            editor.add_constraint(model, constraint)


def test_a_sound_database_keeps_every_rule(transactional_db: None) -> None:
    code, lines = run_check()
    assert (code, len(lines)) == (0, len(RULES))
    assert all(line.startswith("ok   ") for line in lines), lines
    assert [table.objects.count() for table in TABLES] == [0] * len(TABLES)


@pytest.mark.parametrize(
    ("model", "constraint", "rule"),
    [
        (StepOutput, "longwatch_output_live", "at most one live output per unit"),
        (Task, "longwatch_task_lease_iff_running", "a lease exists exactly while a task runs"),
    ],
)
def test_a_dropped_constraint_is_a_broken_rule(
    transactional_db: None, model: Any, constraint: str, rule: str
) -> None:
    with without_constraint(model, constraint):
        code, lines = run_check()
        assert code == 1
        failed = [line for line in lines if line.startswith("FAIL ")]
        assert len(failed) == 1, lines
        assert failed[0].startswith(f"FAIL {rule}: ")
        assert [table.objects.count() for table in TABLES] == [0] * len(TABLES)
    assert run_check()[0] == 0


@pytest.mark.parametrize(
    ("break_it", "rule"),
    [
        # Each undoes one guard of the ledger, as a bad edit or a bad merge would.
        (lambda patch: patch.setattr(sweeps, "find_expired", lambda *_: []), ""),
        (
            lambda patch: patch.setattr(
                "ledger.transitions.holder.lock_held",
                lambda lease, what: checking_lock(lease),
            ),
            "a worker that lost its lease writes nothing",
        ),
    ],
)
def test_a_missing_guard_is_a_broken_rule(
    transactional_db: None,
    monkeypatch: pytest.MonkeyPatch,
    break_it: Callable[[pytest.MonkeyPatch], None],
    rule: str,
) -> None:
    break_it(monkeypatch)
    code, lines = run_check()
    failed = [line for line in lines if line.startswith("FAIL ")]
    assert bool(code) == bool(rule)
    assert all(rule in line for line in failed[:1]), failed
    assert Task.objects.count() == 0


def checking_lock(lease: Any) -> Any:
    """The lock of the row without the holder's guard."""
    from ledger.transitions.moves import lock_task

    return lock_task(lease.task_id)


def test_a_task_that_a_sweep_takes_away_is_tried_again(transactional_db: None) -> None:
    tries: list[str] = []

    def rule(bench: checking.Bench) -> None:
        bench.submit()
        held = bench.take("check:1:a", 0.05)
        tries.append(bench.lane)
        if len(tries) == 1:
            bench.lose(held.task_id)
            checking.expect(False, "it is gone")

    assert checking.run_rule(rule) == ""
    assert len(tries) == 2
    checking.delete_rows()
    assert not Task.objects.exists()


def test_the_rows_of_others_stay(transactional_db: None) -> None:
    other = checking.Bench()
    task = other.submit()
    assert run_check()[0] == 0
    assert Task.objects.filter(pk=task.pk).exists()
