"""A task's life as spans: made by the ledger's own transitions, read back and put in order."""

from __future__ import annotations

import datetime as dt
import itertools
from typing import Any

import pytest

from dashboard.axis import make_axis
from dashboard.shown import show_row
from dashboard.waterfall import draw_rounds, draw_waterfall
from ledger import clock, conf, queries, sql, states, sweeper
from ledger.models import Approval, Task
from ledger.queries import timeline
from ledger.transitions import approvals, edits, holder, operators, sweeps
from ledger.workflows import Workflow
from tests.factories import (
    LEASE,
    OPERATOR,
    OTHER,
    ask,
    attempt,
    claim,
    complete,
    expire_lease,
    make_in,
    make_unit,
    submit,
)

pytestmark = [pytest.mark.both_databases, pytest.mark.django_db]


def build(task: Task) -> timeline.Timeline:
    """The timeline as of now, with what must be true of every one."""
    row = queries.find_task(task.pk)
    events = queries.list_record(task.pk)
    now: Any = row.read_at  # type: ignore[attr-defined]
    found = queries.build_timeline(row, queries.list_units(task.pk), events, now)
    assert all(found.start <= span.start <= span.end <= found.end for span in found.spans)
    assert [span.start for span in found.spans] == sorted(span.start for span in found.spans)
    assert all(span.took >= dt.timedelta() for span in found.spans)
    rounds = found.rounds
    assert (rounds[0][1], rounds[-1][2]) == (found.start, found.end)
    assert all(left[2] == right[1] for left, right in itertools.pairwise(rounds))
    return found


def say(found: timeline.Timeline) -> list[str]:
    """`kind step` of each span."""
    return [f"{span.kind} {span.step}" for span in found.spans]


def wait(seconds: float) -> None:
    """Move the database's clock."""
    clock.offset += seconds


def finish_unit(workflow: Workflow, seconds: float = 5, **options: Any) -> Any:
    """Claim, work for `seconds`, store the output; returns the claim."""
    held = claim(workflow, **options)
    wait(seconds)
    holder.settle_unit(held, make_unit(held, workflow))
    return held


def test_units_are_spans_as_long_as_they_ran(three: Workflow) -> None:
    task = submit(three)
    wait(30)
    finish_unit(three, 5)
    finish_unit(three, 7, owner=OTHER)
    found = build(task)
    assert say(found) == ["queued a", "done a", "done b", "queued c"]
    assert [round(span.took.total_seconds()) for span in found.spans[:3]] == [30, 5, 7]
    assert [span.worker for span in found.spans[1:3]] == ["host:1:boot-1", OTHER]
    assert [span.open for span in found.spans] == [False, False, False, True]


def test_what_runs_is_open_until_now(three: Workflow) -> None:
    task = submit(three)
    claim(three)
    wait(20)
    found = build(task)
    (running,) = found.spans
    assert (running.kind, running.open, running.end) == ("running", True, found.end)
    assert running.took.total_seconds() == pytest.approx(20, abs=5)


def test_a_task_that_was_never_claimed_is_queued_since_it_came(three: Workflow) -> None:
    task = submit(three)
    wait(40)
    (only,) = build(task).spans
    assert (only.kind, only.step) == ("queued", "a")
    assert only.took.total_seconds() == pytest.approx(40, abs=5)


def test_a_failed_attempt_is_followed_by_its_backoff(three: Workflow) -> None:
    task = submit(three)
    held = claim(three)
    wait(4)
    holder.record_failure(held, attempt(), retries=3, backoff=60)
    wait(20)
    found = build(task)
    assert say(found) == ["failed a", "backoff a"]
    assert found.spans[1].open
    assert found.spans[1].took.total_seconds() == pytest.approx(20, abs=5)
    wait(100)
    assert build(task).spans[1].took.total_seconds() == pytest.approx(60, abs=1)
    sweeper.sweep()
    finish_unit(three)
    found = build(task)
    assert say(found) == ["failed a", "backoff a", "queued a", "done a", "queued b"]
    assert not found.spans[1].open
    # It was due after 60 s; what came then was the wait for a worker.
    assert found.spans[1].took.total_seconds() == pytest.approx(60, abs=1)


def test_a_retry_ends_a_backoff_before_it_is_due(three: Workflow) -> None:
    task = submit(three)
    holder.record_failure(claim(three), attempt(), retries=3, backoff=600)
    wait(30)
    operators.retry_task(task.id, actor=OPERATOR)
    wait(30)
    found = build(task)
    assert say(found) == ["failed a", "backoff a", "queued a"]
    assert found.spans[1].took.total_seconds() == pytest.approx(30, abs=5)


def test_a_lost_worker_is_a_span_and_a_recovery_and_no_restart(three: Workflow) -> None:
    task = submit(three)
    held = claim(three)
    expire_lease()
    sweeps.reclaim_expired(LEASE)
    found = build(task)
    assert say(found) == ["lost a", "queued a"]
    assert found.restarts == []
    (recovery,) = found.recoveries
    assert (recovery.lost.worker, recovery.number, recovery.again) == (held.owner, 1, None)
    wait(3)
    finish_unit(three, 5, owner=OTHER)
    (recovery,) = build(task).recoveries
    assert recovery.again is not None
    assert (recovery.again.kind, recovery.again.worker) == ("done", OTHER)
    waited = recovery.again.start - recovery.lost.end
    assert waited.total_seconds() == pytest.approx(3, abs=2)


def test_a_late_write_of_a_lost_worker_is_marked(three: Workflow) -> None:
    task = submit(three)
    held = claim(three)
    expire_lease()
    sweeps.reclaim_expired(LEASE)
    with pytest.raises(Exception, match="lease"):
        holder.settle_unit(held, make_unit(held, three))
    assert len(build(task).refused) == 1


def test_a_release_is_a_span_of_its_own(three: Workflow) -> None:
    task = submit(three)
    held = claim(three)
    wait(2)
    holder.release_task(held, why="drained")
    assert say(build(task)) == ["released a", "queued a"]


def test_a_repair_supersedes_what_it_redoes(three: Workflow) -> None:
    task = submit(three)
    finish_unit(three)
    held = claim(three)
    unit = make_unit(held, three)
    holder.repair_task(held, unit, to_index=0, to_name="a", feedback={"findings": ["no source"]})
    finish_unit(three)
    found = build(task)
    assert say(found) == ["superseded a", "superseded b", "done a", "queued b"]
    assert [span.round for span in found.spans] == [0, 0, 1, 1]
    (restart,) = found.restarts
    assert (restart.step, restart.to, restart.round, restart.by_workflow) == ("b", "a", 1, True)
    assert restart.feedback == {"findings": ["no source"]}
    assert [number for number, _, _ in found.rounds] == [0, 1]
    assert found.recoveries == []


def test_no_word_of_a_short_round_stands_on_the_next_one(three: Workflow) -> None:
    task = submit(three)
    finish_unit(three)
    held = claim(three)
    holder.repair_task(held, make_unit(held, three), to_index=0, to_name="a", feedback=None)
    finish_unit(three, 60)
    found = build(task)
    drawn = draw_rounds(found, make_axis(found, True))
    assert [(number, word) for number, _, word in drawn] == [(0, "0"), (1, "round 1")]


def test_a_persons_restart_says_who(three: Workflow) -> None:
    task = submit(three)
    claim(three)
    operators.restart_task(task.id, to_step="a", note="again", actor=OPERATOR)
    (restart,) = build(task).restarts
    assert (restart.by, restart.by_workflow) == ("user:1", False)


def put_question(workflow: Workflow, **options: Any) -> Approval:
    found = ask(claim(workflow), workflow, **options)
    return Approval.objects.get(pk=found.pk)


def test_waiting_lasts_until_the_answer_acts(three: Workflow) -> None:
    task = submit(three)
    asked = put_question(three)
    wait(100)
    found = build(task)
    assert say(found) == ["done a", "waiting a"]
    assert found.spans[1].open
    approvals.decide_approval(
        asked.id, decision="approve", actor=OPERATOR, digest=asked.digest, undo_seconds=8
    )
    wait(20)
    assert build(task).spans[1].open
    assert sweeper.sweep()
    wait(50)
    found = build(task)
    assert say(found) == ["done a", "waiting a", "queued b"]
    assert not found.spans[1].open
    assert found.spans[1].took.total_seconds() == pytest.approx(120, abs=5)


def test_an_answer_that_acts_at_once_ends_the_waiting(three: Workflow) -> None:
    task = submit(three)
    asked = put_question(three)
    wait(100)
    approvals.decide_approval(asked.id, decision="approve", actor=OPERATOR, digest=asked.digest)
    wait(50)
    found = build(task)
    assert say(found) == ["done a", "waiting a", "queued b"]
    assert found.spans[1].took.total_seconds() == pytest.approx(100, abs=5)


def test_an_undone_answer_ends_nothing(three: Workflow) -> None:
    task = submit(three)
    asked = put_question(three)
    approvals.decide_approval(
        asked.id, decision="approve", actor=OPERATOR, digest=asked.digest, undo_seconds=8
    )
    approvals.undo_decision(asked.id, actor=OPERATOR)
    wait(60)
    found = build(task)
    assert say(found) == ["done a", "waiting a"]
    assert found.spans[1].open


def test_sent_back_names_the_person_and_the_round(three: Workflow) -> None:
    task = submit(three)
    asked = put_question(three, send_back_to="a")
    wait(10)
    approvals.decide_approval(
        asked.id, decision="send_back", actor=OPERATOR, digest=asked.digest, comment="shorter"
    )
    found = build(task)
    assert say(found)[:2] == ["superseded a", "waiting a"]
    (restart,) = found.restarts
    assert (restart.by, restart.round) == ("user:1", 1)
    assert restart.feedback["comment"] == "shorter"


def test_a_second_question_is_a_second_wait(three: Workflow) -> None:
    task = submit(three)
    first = put_question(three, then="again")
    wait(30)
    approvals.decide_approval(first.id, decision="approve", actor=OPERATOR, digest=first.digest)
    put_question(three)
    wait(30)
    found = build(task)
    assert say(found) == ["done a", "waiting a", "done a", "waiting a"]
    assert [span.open for span in found.spans] == [False, False, False, True]


def test_a_pause_lasts_until_it_is_resumed(three: Workflow) -> None:
    task = submit(three)
    operators.pause_task(task.id, actor=OPERATOR)
    wait(7_200)
    assert [(span.kind, span.open) for span in build(task).spans] == [("paused", True)]
    operators.resume_task(task.id, actor=OPERATOR)
    finish_unit(three)
    found = build(task)
    assert say(found) == ["paused a", "done a", "queued b"]
    assert found.spans[0].took.total_seconds() == pytest.approx(7_200, abs=5)


def test_a_pause_asked_while_it_runs_begins_at_the_units_end(three: Workflow) -> None:
    task = submit(three)
    held = claim(three)
    operators.pause_task(task.id, actor=OPERATOR)
    wait(10)
    assert say(build(task)) == ["running a"]
    holder.settle_unit(held, make_unit(held, three))
    wait(10)
    assert say(build(task)) == ["done a", "paused a"]


def test_an_admins_edit_ends_a_pause(three: Workflow) -> None:
    task = submit(three)
    operators.pause_task(task.id, actor=OPERATOR)
    wait(60)
    task.refresh_from_db()
    edits.edit_task(
        task.id, changes={"status": states.QUEUED}, actor=OPERATOR, reason="go on",
        revision=task.revision,
    )  # fmt: skip
    wait(60)
    found = build(task)
    assert say(found) == ["paused a", "queued a"]
    assert found.spans[0].took.total_seconds() == pytest.approx(60, abs=5)


@pytest.mark.parametrize("status", states.STATUSES)
def test_every_status_has_a_timeline(three: Workflow, status: str) -> None:
    task = make_in(status, three)
    wait(1_000)
    found = build(task)
    opened = [span.kind for span in found.spans if span.open]
    parked = {states.RUNNING: "running", **timeline.PARKED}
    assert opened == ([parked[status]] if status in parked else [])
    if status in states.FINISHED:
        ended = Task.objects.get(pk=task.pk).finished_at
        assert ended is not None
        assert abs(found.end - ended) < dt.timedelta(seconds=1)


def test_a_stalled_unit_is_drawn_from_its_last_move_on(three: Workflow) -> None:
    task = submit(three, stall_after=20.0)
    held = claim(three)
    wait(10)
    holder.report_progress(held.lease, 1, 5, "")
    assert [span.kind for span in build(task).spans] == ["running"]
    wait(30)
    ran, still = build(task).spans
    assert (ran.kind, ran.open, still.kind, still.open) == ("running", False, "stalled", True)
    assert ran.end == still.start
    assert round(ran.took.total_seconds(), -1) == 10
    assert round(still.took.total_seconds(), -1) == 30
    wait(LEASE)
    assert [span.kind for span in build(task).spans] == ["running"]  # lost, not stalled


def test_the_end_of_a_wait_that_gave_up_is_the_tasks_end(three: Workflow) -> None:
    task = submit(three)
    put_question(three, expires=60)
    wait(61)
    sweeper.sweep()
    wait(500)
    found = build(task)
    assert Task.objects.get(pk=task.pk).status == states.DEAD
    assert say(found) == ["done a", "waiting a"]
    assert found.spans[1].took.total_seconds() == pytest.approx(61, abs=5)
    assert not found.spans[1].open


def test_a_clock_that_stepped_back_makes_nothing_negative(three: Workflow) -> None:
    task = submit(three)
    held = claim(three)
    wait(-3_600)
    holder.record_failure(held, attempt(), retries=3, backoff=60)
    wait(-3_600)
    operators.retry_task(task.id, actor=OPERATOR)
    finish_unit(three)
    operators.pause_task(task.id, actor=OPERATOR)
    wait(-10)
    build(task)


def test_a_loop_that_sleeps_leaves_room_for_the_rest(three: Workflow) -> None:
    """Its timers are two events a unit, and would push everything else out of the bound."""
    task = submit(three)
    for turn in range(30):
        held = claim(three)
        loop = make_unit(held, three, next_index=0, next_name="a", next_turn=turn + 1)
        holder.settle_unit(held, loop, delay=1)
        wait(2)
        sweeps.promote_due()
    found = build(task)
    assert say(found) == ["done a"] * 30 + ["queued a"]
    assert [event["kind"] for event in queries.list_record(task.pk)] == ["submitted"]
    kinds = [event["kind"] for event in queries.list_record(task.pk, kind="promoted", limit=10)]
    assert kinds == ["promoted"] * 10


def test_the_log_of_a_failure_is_not_read(three: Workflow) -> None:
    task = submit(three)
    bad = holder.Attempt({"type": "Boom", "message": "m", "traceback": "t" * 99}, "log " * 99)
    holder.record_failure(claim(three), bad, retries=3, backoff=1)
    (event,) = queries.list_record(task.pk, kind="attempt_failed")
    assert event["data"]["error"] == {"type": "Boom", "message": "m"}
    assert "log_tail" not in event["data"]


def test_one_unit_is_read_whole(three: Workflow) -> None:
    task = submit(three)
    big = '{"id":12345678901234567890}'
    held = claim(three)
    unit = make_unit(held, three, output=big, log_tail="hello")
    sql.checkpoint_unit(held, unit, lease_seconds=LEASE, groups=[])
    if Task.objects.get(pk=task.pk).status == states.RUNNING:
        operators.retry_task(task.id, actor=OPERATOR)
    finish_unit(three)
    first, last = queries.list_units(task.pk)
    assert (first["chosen"], last["chosen"]) == (False, True)
    assert first["shown_output"] is None
    first, last = queries.list_units(task.pk, step="a")
    assert (first["chosen"], last["chosen"]) == (True, False)
    assert first["shown_output"] == {"id": 12345678901234567890}
    assert first["shown_log"] == "hello"
    assert not any(unit["chosen"] for unit in queries.list_units(task.pk, seq=999))


def test_past_runs_are_of_that_version_and_count_work_alone(three: Workflow) -> None:
    for seconds in (10, 20):
        submit(three)
        finish_unit(three, seconds)
        asked = put_question(three)
        wait(500)
        approvals.decide_approval(asked.id, decision="approve", actor=OPERATOR, digest=asked.digest)
        complete(claim(three), three)
    make_in(states.CANCELLED, three)
    runs = queries.read_past_runs("three", three.version).runs
    assert [round(seconds, -1) for seconds in runs] == [20, 10]
    assert queries.read_past_runs("three", "another").runs == []


def test_the_tag_tells_what_time_alone_has_done(three: Workflow) -> None:
    task = submit(three)
    held = claim(three)
    assert held.fence
    plain = queries.read_tag(task.pk)
    assert plain == queries.make_tag(queries.find_task(task.pk))
    wait(LEASE - queries.count_warning() + 2)
    assert queries.read_tag(task.pk) == f"{plain}.late"
    operators.cancel_task(task.id, actor=OPERATOR)
    wait(-40)
    plain = queries.read_tag(task.pk)
    wait(11 + 40)
    assert queries.read_tag(task.pk).endswith(".stop")
    assert not plain.endswith(".stop")
    wait(LEASE)
    assert queries.read_tag(task.pk).endswith(".lost.stop")
    assert conf.load().lease_seconds >= 3 * queries.count_warning()


def test_a_marks_word_does_not_lie_on_a_bar(three: Workflow) -> None:
    """Late in the picture the word stands before its mark, where the bar ends that it is about."""
    task = submit(three)
    held = claim(three)
    wait(200)
    holder.repair_task(held, make_unit(held, three), to_index=0, to_name="a", feedback={"x": 1})
    wait(2)
    row = queries.find_task(task.pk)
    units = queries.list_units(task.pk)
    names = [step.name for step in three.steps]
    shown = show_row(queries.task_json(row, queries.load_fleet()), clock.read())
    (first, *_) = draw_waterfall(build(task), shown, names, units).rows
    (note,) = first.notes
    assert (note.mark, note.before, note.text) == (True, True, "")
