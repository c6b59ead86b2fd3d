"""The rules of the ledger that `ledger_check` tries to break, each on tasks of its own."""

from __future__ import annotations

import itertools
from collections.abc import Callable

from ledger import clock, limits, sql, states
from ledger.errors import (
    ApprovalClosed,
    DigestMismatch,
    IdempotencyConflict,
    LeaseLost,
    LimitReached,
    StaleRevision,
    WrongStatus,
)
from ledger.events import Actor
from ledger.management.checking import (
    ACTOR,
    Bench,
    check,
    expect,
    expect_constraint,
    expect_refusal,
    make_unit,
    read_elsewhere,
    read_row,
    wait_for,
)
from ledger.models import Spend, StepOutput, Task
from ledger.transitions import approvals, asking, holder, operators, sweeps
from ledger.workflows import AskApproval

A, B = "check:1:a", "check:2:b"

type Rule = Callable[[Bench], None]

RULES: list[tuple[str, Rule]] = []


def add_rule(name: str) -> Callable[[Rule], Rule]:
    """Put a rule on the list, in the order in which they stand here."""

    def add(rule: Rule) -> Rule:
        RULES.append((name, rule))
        return rule

    return add


@add_rule("an unexpired lease can't be stolen")
def try_stealing(bench: Bench) -> None:
    bench.submit()
    held = bench.take(A)
    expect(bench.claim(B) is None, "a second worker claimed it")
    expect(sweeps.reclaim_task(held.task_id, 60.0) is None, "a sweeper reclaimed it")
    row = read_row(held.task_id)
    expect((row.lease_owner, row.fence) == (A, held.fence), f"it is held by {row.lease_owner!r}")


@add_rule("an expired lease can be reclaimed")
def try_reclaiming(bench: Bench) -> None:
    bench.submit()
    held = bench.take(A, 0.05)
    bench.lose(held.task_id)
    row = read_row(held.task_id)
    expect((row.status, row.reclaims) == (states.QUEUED, 1), f"it is {row.status}")
    again = bench.take(B)
    expect(again.fence > held.fence, "the fence did not rise")
    expect((again.step_name, again.turn) == ("one", 0), "another unit was claimed")


@add_rule("only the owner may heartbeat")
def try_beating(bench: Bench) -> None:
    bench.submit()
    held = bench.take(A)
    before = read_row(held.task_id)
    expect(not sql.beat_leases(B, [held.lease], bench.lease_seconds), "another worker extended it")
    old = sql.Lease(held.task_id, held.fence - 1, A)
    expect(not sql.beat_leases(A, [old], bench.lease_seconds), "an old fence extended it")
    expect(read_row(held.task_id).lease_until == before.lease_until, "the lease moved")
    beaten = sql.beat_leases(A, [held.lease], bench.lease_seconds)
    until = read_row(held.task_id).lease_until
    expect([one.task_id for one in beaten] == [held.task_id], "its owner could not extend it")
    expect(until is not None and until >= (before.lease_until or until), "the lease was shortened")


@add_rule("a worker that lost its lease writes nothing")
def try_stale_writes(bench: Bench) -> None:
    bench.submit()
    stale = bench.take(A, 0.05)
    bench.lose(stale.task_id)
    fresh = bench.take(B)
    unit = make_unit(1, late=True)
    error = {"type": "Late", "message": "late", "step": "one", "turn": 0, "attempt": 1}
    attempt = holder.Attempt(error)
    expect(bench.checkpoint(stale, unit) is None, "its output was stored")
    ask = AskApproval("Late?")

    def hold() -> None:
        with sql.hold_task(stale.lease, "artifact"):
            pass

    for what, write in (
        ("its output", lambda: holder.settle_unit(stale, unit)),
        ("its failure", lambda: holder.record_failure(stale, attempt, retries=3, backoff=1.0)),
        ("its end", lambda: holder.fail_task(stale, attempt)),
        ("its release", lambda: holder.release_task(stale, why="late")),
        ("its progress", lambda: holder.report_progress(stale.lease, 1.0, 2.0, "late")),
        ("its question", lambda: asking.ask_approval(stale, unit, ask, check)),
        ("its artifact", hold),
    ):
        expect_refusal(LeaseLost, what, write)
    expect(not sql.beat_leases(A, [stale.lease], 60.0), "its heartbeat was taken")
    row = read_row(stale.task_id)
    expect((row.lease_owner, row.fence) == (B, fresh.fence), "the new holder was touched")
    expect((row.progress, row.attempts) == ({}, 0), "the task was touched")
    expect(not StepOutput.objects.filter(task=row).exists(), "an output is there")


@add_rule("the fence rises with every attempt")
def try_fences(bench: Bench) -> None:
    bench.submit()
    first = bench.take(A)
    fences = [first.fence]
    settled = bench.checkpoint(first, make_unit(1))
    expect(settled is not None and settled.kept_fence is not None, "a checkpoint was refused")
    assert settled is not None
    assert settled.kept_fence is not None
    fences.append(settled.kept_fence)
    operators.retry_task(first.task_id, actor=ACTOR)
    fences += [read_row(first.task_id).fence, bench.take(B).fence]
    expect(all(a < b for a, b in itertools.pairwise(fences)), f"fences were {fences}")


@add_rule("an output is durable and seen by other sessions")
def try_durability(bench: Bench) -> None:
    bench.submit()
    held = bench.take(A)
    expect(bench.checkpoint(held, make_unit(1, n=7)) is not None, "a checkpoint was refused")
    rows = StepOutput.objects.filter(task=held.task_id, superseded_in_round__isnull=True)
    seen = read_elsewhere(lambda: list(rows.values_list("step_name", "turn", "output")))
    expect(seen == [("one", 0, {"n": 7})], f"another session sees {seen}")


@add_rule("at most one live output per unit")
def try_second_output(bench: Bench) -> None:
    bench.submit()
    held = bench.take(A)
    expect(bench.checkpoint(held, make_unit(1)) is not None, "a checkpoint was refused")
    row = StepOutput.objects.get(task=held.task_id)
    row.pk, row.seq = None, row.seq + 1_000
    expect_constraint("a second one", lambda: StepOutput.objects.bulk_create([row]))


@add_rule("a lease exists exactly while a task runs")
def try_orphan_lease(bench: Bench) -> None:
    rows = Task.objects.filter(pk=bench.submit().pk)
    until = clock.now(60.0)
    expect_constraint(
        "a lease on a queued task", lambda: rows.update(lease_owner=A, lease_until=until)
    )
    bench.take(A)
    expect_constraint("running without a lease", lambda: rows.update(lease_until=None))


@add_rule("one unit per claim advances one step and queues again")
def try_turns(bench: Bench) -> None:
    first, second = bench.submit(), bench.submit()
    held = bench.take(A)
    expect(held.task_id == first.pk, "the older task was not first")
    settled = bench.checkpoint(held, make_unit(1), look=True)
    expect(settled is not None, "the settle was refused")
    claimed = settled.claimed if settled else None
    expect(claimed is not None and claimed.task_id == second.pk, "the other one was not claimed")
    row = read_row(first)
    place = (row.status, row.step_index, row.step_name, row.turn)
    expect(place == (states.QUEUED, 1, "two", 0), f"it is {place}")
    expect(StepOutput.objects.filter(task=first).count() == 1, "it has more or fewer outputs")


@add_rule("progress survives a new worker")
def try_progress(bench: Bench) -> None:
    bench.submit()
    held = bench.take(A)
    holder.settle_unit(held, make_unit(1, kept="yes"))
    again = bench.take(B)
    expect((again.step_name, again.progress) == ("two", {"kept": "yes"}), f"{again.progress}")


@add_rule("repairs are bounded")
def try_repairs(bench: Bench) -> None:
    task = bench.submit(max_repairs=1)
    for expected in ((states.QUEUED, "", 1), (states.DEAD, states.REPAIRS_EXHAUSTED, 1)):
        holder.settle_unit(bench.take(A), make_unit(1))
        holder.repair_task(
            bench.take(B), make_unit(1), to_index=0, to_name="one", feedback={"why": "check"}
        )
        row = read_row(task)
        seen = (row.status, row.status_reason, row.repair_count)
        expect(seen == expected, f"it is {seen}")
    live = StepOutput.objects.filter(task=task, superseded_in_round__isnull=True)
    expect(StepOutput.objects.filter(task=task).count() == 4, "an output is gone")
    expect(live.count() == 1, f"{live.count()} outputs are live")


@add_rule("retries are bounded")
def try_retries(bench: Bench) -> None:
    task = bench.submit()
    error = {"type": "Check", "message": "check", "step": "one", "turn": 0, "attempt": 1}
    attempt = holder.Attempt(error)
    holder.record_failure(bench.take(A), attempt, retries=1, backoff=0.01)
    expect(read_row(task).status_reason in {states.BACKOFF, ""}, "it does not back off")

    def is_due() -> bool:
        sweeps.promote_due()
        return read_row(task).status == states.QUEUED

    wait_for(is_due, "it was not queued again")
    holder.record_failure(bench.take(B), attempt, retries=1, backoff=0.01)
    row = read_row(task)
    seen = (row.status, row.status_reason)
    expect(seen == (states.DEAD, states.RETRIES_EXHAUSTED), f"it is {seen}")


@add_rule("a completed task is never claimed")
def try_completed(bench: Bench) -> None:
    task = bench.submit()
    settled = bench.checkpoint(bench.take(A), make_unit(0, result='{"done":true}'), look=True)
    expect(settled is not None, "it could not complete")
    row = read_row(task)
    expect((row.status, row.result) == (states.COMPLETED, {"done": True}), f"it is {row.status}")
    expect(bench.claim(B) is None, "it was claimed")
    for what, write in (
        ("a cancel", operators.cancel_task),
        ("a retry", operators.retry_task),
        ("a pause", operators.pause_task),
    ):
        expect_refusal(WrongStatus, what, lambda write=write: write(task.pk, actor=ACTOR))  # type: ignore[misc]


@add_rule("a cancel ends a task at its next boundary")
def try_cancel(bench: Bench) -> None:
    task = bench.submit()
    held = bench.take(A)
    operators.cancel_task(task.pk, actor=ACTOR)
    expect(read_row(task).cancel_requested, "the flag is not set")
    expect(bench.checkpoint(held, make_unit(1)) is None, "the unit went on")
    holder.settle_unit(held, make_unit(1))
    expect(read_row(task).status == states.CANCELLED, "it is not cancelled")
    expect(bench.claim(B) is None, "it was claimed")


@add_rule("an operator decides on what was shown")
def try_old_revision(bench: Bench) -> None:
    task = bench.submit()
    seen = read_row(task).revision
    operators.pause_task(task.pk, actor=ACTOR, revision=seen)
    expect_refusal(
        StaleRevision,
        "an old revision",
        lambda: operators.resume_task(task.pk, actor=ACTOR, revision=seen),
    )


@add_rule("a question waits without a worker and is decided once")
def try_approval(bench: Bench) -> None:
    task = bench.submit()
    ask = AskApproval("Is it so?")
    request = asking.ask_approval(bench.take(A), make_unit(0), ask, check)
    assert request is not None
    row = read_row(task)
    seen = (row.status, row.lease_owner, row.lease_until)
    expect(seen == (states.WAITING, "", None), f"it is {seen}")
    expect(bench.claim(B) is None, "it was claimed")
    other = Actor("cli", f"{ACTOR.id}.approver")

    def decide(digest: str) -> None:
        approvals.decide_approval(request.pk, decision="approve", actor=other, digest=digest)

    expect_refusal(DigestMismatch, "an answer to another text", lambda: decide("0" * 64))
    decide(request.digest)
    expect_refusal(ApprovalClosed, "a second answer", lambda: decide(request.digest))
    row = read_row(task)
    expect((row.status, row.step_name) == (states.QUEUED, "two"), f"it is {row.status}")


@add_rule("the same key gives the same task")
def try_key(bench: Bench) -> None:
    first = bench.submit(key=bench.lane)
    expect(bench.submit(key=bench.lane).pk == first.pk, "a second task was made")
    expect_refusal(
        IdempotencyConflict, "another body", lambda: bench.submit(key=bench.lane, title="other")
    )


@add_rule("money is counted once, and by whoever spent it")
def try_spend(bench: Bench) -> None:
    task = bench.submit(limits_given={"cost": "1.00"})
    held = bench.take(A)
    for _ in range(2):
        limits.record_spend(held, key="call", cost="0.75")
    operators.retry_task(task.pk, actor=ACTOR)
    expect_refusal(
        LimitReached, "a passed limit", lambda: limits.record_spend(held, key="late", cost="0.75")
    )
    row = read_row(task)
    expect(row.used_cost == 1_500_000_000, f"{row.used_cost} nano-units are on record")
    expect(Spend.objects.filter(task=task, stale=True).count() == 1, "a late amount is not marked")
