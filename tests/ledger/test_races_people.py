"""Copies, edits and changes at the instant of something else: one order of the two, never a mix."""

from __future__ import annotations

from functools import partial

import pytest

from ledger import conf
from ledger.errors import InvalidInput, LeaseLost, NotEditable, StaleRevision
from ledger.models import Task
from ledger.sql import Claimed
from ledger.transitions import holder, operators
from ledger.workflows import Workflow
from tests.factories import OPERATOR, claim, make_unit, submit
from tests.ledger.copying import edit, find_seq, fork
from tests.ledger.replay import check_columns
from tests.ledger.test_races import check_all
from tests.ledger.threads import Crew

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.timeout(240)]
TRIALS = 30


def hold_second(flow: Workflow) -> Claimed:
    """A task at its second step, held by a worker."""
    submit(flow)
    held = claim(flow)
    holder.settle_unit(held, make_unit(held, flow))
    return claim(flow)


def cancel_queued() -> None:
    """Out of the way of the next trial."""
    for task in Task.objects.filter(status="queued"):
        operators.cancel_task(task.pk, actor=OPERATOR)


def test_an_edit_and_a_settle_come_one_after_the_other(flow: Workflow, together: Crew) -> None:
    for _ in range(TRIALS):
        held = hold_second(flow)
        seq = find_seq(held.task_id, "a")
        edited, settled = together(
            partial(edit, held.task_id, seq, {"mine": 1}),
            partial(holder.settle_unit, held, make_unit(held, flow)),
        )
        assert isinstance(edited, Task)
        assert settled is None or isinstance(settled, LeaseLost)
        assert (edited.status, edited.step_name, edited.round) == ("queued", "b", 1)
        assert edited.progress == {"mine": 1}
        live = edited.outputs.filter(superseded_in_round=None)
        assert [row.output for row in live] == [{"mine": 1}]
        assert edited.outputs.filter(step_name="b").count() == (settled is None)
        operators.cancel_task(held.task_id, actor=OPERATOR)
    check_all()


def test_of_two_edits_of_one_output_one_is_told_of_the_other(
    flow: Workflow, together: Crew
) -> None:
    for _ in range(TRIALS):
        held = hold_second(flow)
        seq = find_seq(held.task_id, "a")
        results = together(*[partial(edit, held.task_id, seq, {"by": n}) for n in range(3)])
        (won,) = (result for result in results if isinstance(result, Task))
        lost = [result for result in results if result is not won]
        assert all(isinstance(one, NotEditable | StaleRevision) for one in lost)
        assert won.events.filter(kind="edited").count() == 1
        assert won.outputs.filter(superseded_in_round=None).count() == 1
        operators.cancel_task(held.task_id, actor=OPERATOR)
    check_all()


def test_a_copy_is_made_before_or_after_a_restart(flow: Workflow, together: Crew) -> None:
    for _ in range(TRIALS):
        held = hold_second(flow)
        copy, _ = together(
            partial(fork, held.task_id, "b"),
            partial(operators.restart_task, held.task_id, to_step="a", note="", actor=OPERATOR),
        )
        if isinstance(copy, Task):
            assert [row.step_name for row in copy.outputs.all()] == ["a"]
            check_columns(copy)
        else:
            assert isinstance(copy, StaleRevision | InvalidInput)
            assert not Task.objects.filter(copied_from=held.task_id).exists()
        cancel_queued()
    check_all()


def test_a_copy_has_what_was_there_before_an_edit_or_after_it(
    flow: Workflow, together: Crew
) -> None:
    for _ in range(TRIALS):
        held = hold_second(flow)
        seq = find_seq(held.task_id, "a")
        *copies, _ = together(
            *[partial(fork, held.task_id, "b")] * 4, partial(edit, held.task_id, seq, {"mine": 1})
        )
        for copy in copies:
            if isinstance(copy, Task):
                assert [row.output for row in copy.outputs.all()] == [copy.progress]
            else:
                assert isinstance(copy, StaleRevision)
        cancel_queued()
    check_all()


def test_changes_at_once_add_up(flow: Workflow, together: Crew) -> None:
    task = submit(flow)
    base = task.rank
    for trial in range(TRIALS):
        together(*[
            partial(operators.change_task, task.pk, priority=n * 10 + trial, actor=OPERATOR)
            for n in range(4)
        ])  # fmt: skip
        task.refresh_from_db()
        assert task.rank + task.priority * conf.RANK_PER_PRIORITY == base
    assert claim(flow).task_id == task.pk
    check_all()
