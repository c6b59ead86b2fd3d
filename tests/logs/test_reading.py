"""Who reads a log, which part of it, and what following one costs."""

from __future__ import annotations

import io
import time
from collections.abc import Iterator
from typing import Any

import pytest
from django.core.management import call_command
from django.test import Client

from ledger import artifacts, livelogs, queries, registry, sql
from ledger.errors import LeaseLost
from ledger.livelogs import Follower
from ledger.models import LiveLog, Task
from ledger.queries.logs import MAX_BYTES
from ledger.steplog import Running
from ledger.tokens import make_token
from ledger.transitions import holder
from ledger.unitlog import LOG_TYPE, UnitLog
from ledger.workflows import Workflow
from tests.factories import LEASE, claim, make_unit, make_workflow, submit

pytestmark = [pytest.mark.both_databases, pytest.mark.django_db]


@pytest.fixture
def three(settings: Any, tmp_path: Any) -> Iterator[Workflow]:
    settings.LONGWATCH_ARTIFACTS = str(tmp_path)
    workflow = make_workflow("three")
    with registry.registered(workflow):
        yield workflow


def run(three: Workflow, *lines: str) -> tuple[Task, sql.Claimed, Running]:
    """A task whose unit runs and has said this."""
    task = submit(three)
    held = claim(three)
    running = Running(held.lease, held.step_name, 0, held.turn, UnitLog(), time.monotonic() - 2)
    running.log.add(0.0, "OUT", lines)
    return task, held, running


def settle(held: sql.Claimed, three: Workflow, log: UnitLog) -> None:
    unit = make_unit(held, three, log_tail=log.read_tail())
    holder.settle_unit(held, unit)


def ask(token: str, task: Task, **query: Any) -> Any:
    return Client().get(f"/api/v1/tasks/{task.pk}/log", query,
                        headers={"Authorization": f"Bearer {token}"})  # fmt: skip


def test_a_unit_that_says_nothing_new_costs_no_statement(
    three: Workflow, django_assert_num_queries: Any
) -> None:
    _, held, running = run(three, "one")
    now: list[Running | None] = [running._replace(began=time.monotonic())]
    follower = Follower(lambda: now[0])
    with django_assert_num_queries(0):
        follower.tick()  # it may be over in a moment
        now[0] = None
        follower.tick()
        now[0] = running._replace(log=UnitLog())
        follower.tick()
    now[0] = running
    follower.tick()
    assert LiveLog.objects.get().text == "00:00:00 OUT one"
    running.log.add(0.0, "OUT", ["two"])
    with django_assert_num_queries(0):
        follower.tick()  # within the same second
    follower._due = 0.0
    follower.tick()
    assert LiveLog.objects.get().text.endswith("two")
    settle(held, three, running.log)
    now[0], follower._due = None, 0.0
    follower.tick()
    assert not LiveLog.objects.exists()
    with django_assert_num_queries(0):
        follower._due = 0.0
        follower.tick()


def test_a_stale_holder_shows_nothing_and_rows_of_lost_attempts_are_bounded(
    three: Workflow, settings: Any
) -> None:
    settings.LONGWATCH_MAX_RELEASES = 1_000
    task, held, running = run(three, "first")
    livelogs.write_row(running)
    for number in range(livelogs.MAX_KEPT + 3):
        holder.release_task(held, why="drain")
        with pytest.raises(LeaseLost):
            livelogs.write_row(running)
        held = claim(three)
        running = running._replace(lease=held.lease, log=UnitLog())
        running.log.add(0.0, "OUT", [f"again {number}"])
        livelogs.write_row(running)
    assert LiveLog.objects.count() == livelogs.MAX_KEPT
    states = [one.state for one in queries.list_attempts(task.pk)]
    assert states == ["released"] * (livelogs.MAX_KEPT + 3) + ["running"]
    before = queries.read_log(task.pk, fence=held.fence - 1)
    assert (before["state"], before["text"][:26]) == ("released", "00:00:00 OUT again 21\n")


def test_a_log_is_read_piece_by_piece_and_by_who_may_see_contents(three: Workflow) -> None:
    task, held, running = run(three, *(f"line {number} {'x' * 80}" for number in range(9_000)))
    livelogs.write_row(running)
    token = make_token("all", ["read"], created_by="cli:x")[1]
    live = ask(token, task).json()
    assert (live["state"], live["step"]) == ("running", "a")
    assert live["text"].startswith("… "), "the beginning is not there while it runs"
    whole = running.log.read_whole()
    stored = artifacts.save_artifact(held, "log.txt", whole, LOG_TYPE)
    settle(held, three, running.log)
    at, text = 0, ""
    while (part := ask(token, task, unit="a:0", after=at).json())["next"] > at:
        assert len(part["text"]) <= MAX_BYTES
        at, text = part["next"], text + part["text"]
    assert (text, part["artifact"], part["state"]) == (whole, str(stored.pk), "done")
    told = ask(token, task, format="text", after=live["next"] - 100)
    assert told["Content-Type"] == "text/plain; charset=utf-8"
    assert whole.encode().endswith(told.content)
    assert (len(told.content), told["Longwatch-Next"]) == (100, str(at))

    assert ask(token, task, unit="b").status_code == 404
    assert ask(token, task, unit="a:x").status_code == 422
    assert ask(token, task, after=-1).status_code == 422
    blind = make_token("blind", ["read"], payload=False, created_by="cli:x")[1]
    assert ask(blind, task).status_code == 403
    other = make_token("other", ["read"], lanes=["other"], created_by="cli:x")[1]
    assert ask(other, task).status_code == 404


def test_the_log_of_a_failure_and_of_nothing(three: Workflow) -> None:
    task = submit(three)
    assert queries.read_log(task.pk)["fence"] == 0
    held = claim(three)
    assert queries.read_log(task.pk) | {"task": ""} == {
        "task": "", "step": "a", "turn": 0, "fence": 1, "state": "running", "text": "", "next": 0,
        "artifact": None, "finished": False,
    }  # fmt: skip
    holder.record_failure(held, holder.Attempt({"type": "X"}, "its end"), retries=0, backoff=1)
    found = queries.read_log(task.pk)
    assert (found["state"], found["text"], found["finished"]) == ("failed", "its end\n", True)


def test_the_command_prints_one_attempt_or_all_to_the_end(three: Workflow) -> None:
    task, held, running = run(three, "of a")
    settle(held, three, running.log)
    held = claim(three)
    running.log.add(0.0, "OUT", ["of b"])
    unit = make_unit(held, three, log_tail=running.log.read_tail(), result="{}")
    sql.checkpoint_unit(held, unit, lease_seconds=LEASE, groups=[])
    out, err = io.StringIO(), io.StringIO()
    call_command("logs", str(task.pk), "--unit", "a:0", stdout=out, stderr=err)
    assert out.getvalue() == "00:00:00 OUT of a\n"
    assert "a:0" in err.getvalue()
    out = io.StringIO()
    call_command("logs", str(task.pk), "--follow", "--fence", "1", stdout=out, stderr=err)
    assert out.getvalue() == "00:00:00 OUT of a\n" * 2 + "00:00:00 OUT of b\n"
