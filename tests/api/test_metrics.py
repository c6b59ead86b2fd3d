"""Every figure of /metrics is what the ledger says, before and after its rows are added up."""

from __future__ import annotations

import datetime as dt
import threading
import uuid
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from django.db import connection, transaction
from django.db.models import Model
from django.test import Client
from django.test.utils import CaptureQueriesContext
from prometheus_client.openmetrics.parser import (
    text_string_to_metric_families as parse_openmetrics,
)
from prometheus_client.parser import text_string_to_metric_families

from ledger import clock, limits, queries, sql, states, tallies
from ledger.api import metrics
from ledger.errors import LeaseLost
from ledger.models import Event, Spend, StepOutput, Tally, Task
from ledger.sweeper import sweep
from ledger.tokens import make_token
from ledger.transitions import forks, holder, operators
from ledger.transitions.deleting import DEMO, delete_demo
from ledger.transitions.submit import submit_task
from ledger.workflows import Workflow, registered
from tests.api.conftest import Api
from tests.dashboard.fleet import make_worker
from tests.factories import (
    LEASE,
    OPERATOR,
    OTHER,
    ask,
    attempt,
    claim,
    complete,
    expire_lease,
    make_unit,
    make_workflow,
    submit,
)

pytestmark = [pytest.mark.both_databases, pytest.mark.django_db]

MOST_QUERIES = 6
"""Beside those that find the token."""


@pytest.fixture(autouse=True)
def fresh() -> Iterator[None]:
    """Nothing is held from one test to the next, and the clock is put back."""
    metrics.forget_metrics()
    yield
    metrics.forget_metrics()
    clock.offset = 0.0


@pytest.fixture
def flow(db: None) -> Iterator[Workflow]:
    workflow = make_workflow()
    with registered(workflow):
        yield workflow


class Scrape(dict[str, float]):
    """Samples by their text, such as `longwatch_reclaims_total{workflow="three"}`."""

    def __call__(self, name: str, **labels: str) -> float:
        """One sample; fails when there is none."""
        return self[f"longwatch_{name}{sorted(labels.items())}"]


def scrape(**headers: str) -> Scrape:
    """What a scraper with a token reads now."""
    metrics.forget_metrics()
    _, text = make_token("prometheus", ["read"], created_by="cli:test")
    answer = Client().get("/metrics", headers={"Authorization": f"Bearer {text}"} | headers)
    assert answer.status_code == 200, answer.content
    return read_text(answer.content.decode())


def read_text(text: str) -> Scrape:
    """The samples of an answer."""
    found = Scrape()
    for family in text_string_to_metric_families(text):
        assert family.documentation
        for sample in family.samples:
            found[f"{sample.name}{sorted(sample.labels.items())}"] = sample.value
    return found


def add_up() -> None:
    """What a sender does in its next looks."""
    for _ in range(3):
        clock.offset += 5
        while tallies.add_up():
            pass


def check_counters(found: Scrape, workflow: str = "three") -> None:
    """Each is what a full count of the ledger's rows says."""
    mine = {"task__workflow": workflow}
    kinds = Counter(Event.objects.filter(**mine).values_list("kind", flat=True))
    counted = {
        "tasks_submitted": Task.objects.filter(workflow=workflow).count(),
        "reclaims": kinds["reclaimed"], "attempts_failed": kinds["attempt_failed"],
        "releases": kinds["released"], "repairs": kinds["repaired"],
        "stale_writes_refused": kinds["stale_write_refused"],
    }  # fmt: skip
    assert {name: found(f"{name}_total", workflow=workflow) for name in counted} == counted
    ends = {status: found("tasks_ended_total", workflow=workflow, status=status)
            for status in states.FINISHED}  # fmt: skip
    assert ends == {status: kinds[status] for status in states.FINISHED}
    spent = list(Spend.objects.filter(**mine).exclude(lane=""))
    assert found("cost_total", workflow=workflow) == sum(row.cost for row in spent) / 1e9
    for way in ("in", "out"):
        amount = sum(getattr(row, f"tokens_{way}") for row in spent)
        assert found("tokens_total", workflow=workflow, direction=way) == amount
    worked = list(StepOutput.objects.filter(**mine, fence__gt=0))
    took = [(row.finished_at - row.started_at).total_seconds() for row in worked]
    check_histogram(found, "unit_duration_seconds", workflow, took)
    first = {row.task_id for row in worked if row.step_index == row.turn == row.round == 0}
    waited = []
    for task in Task.objects.filter(pk__in=first):
        queued = task.events.filter(fence=0, kind__in=["submitted", "promoted"]).latest("seq")
        assert task.started_at is not None
        waited.append((task.started_at - queued.at).total_seconds())
    check_histogram(found, "claim_latency_seconds", workflow, waited)


def check_histogram(found: Scrape, name: str, workflow: str, values: list[float]) -> None:
    for end in (*tallies.BUCKETS, float("inf")):
        text = "+Inf" if end == float("inf") else str(end)
        # A time on SQLite has milliseconds, and a sum of days is good to some of its own.
        exact = sum(value <= end for value in values)
        assert found(f"{name}_bucket", workflow=workflow, le=text) == exact, (name, end, values)
    assert found(f"{name}_count", workflow=workflow) == len(values)
    total = found(f"{name}_sum", workflow=workflow)
    assert total == pytest.approx(sum(values), abs=0.002 * (1 + len(values)))


def do_work(flow: Workflow) -> None:
    """Tasks in every status, and of everything that is counted at least one."""
    for _ in range(2):
        submit(flow)
        held = claim(flow)
        clock.offset += 2
        limits.record_spend(held, key="call", tokens_in=7, tokens_out=5, cost="1.25")
        complete(held, flow)
    submit(flow, not_before=clock.read() + dt.timedelta(seconds=90))
    clock.offset += 100
    sweep(reclaim=False)
    late = claim(flow)
    holder.record_failure(late, attempt(), retries=3, backoff=600)
    submit(flow)
    holder.fail_task(claim(flow), attempt())
    submit(flow)
    holder.record_failure(claim(flow), attempt(), retries=0, backoff=1)
    submit(flow)
    operators.cancel_task(submit(flow).id, actor=OPERATOR)
    lost = claim(flow)
    expire_lease()
    assert sweep().reclaimed == 1
    with pytest.raises(LeaseLost):
        holder.fail_task(lost, attempt())
    kept = claim(flow, OTHER)
    settled = sql.checkpoint_unit(kept, make_unit(kept, flow), lease_seconds=LEASE, groups=[])
    assert settled is not None
    forks.fork_task(kept.task_id, actor=OPERATOR, from_step="b")
    operators.restart_task(kept.task_id, actor=OPERATOR, to_step="a", note="again")
    submit(flow, priority=50)


def test_each_counter_is_what_the_ledger_says_and_outlives_its_rows(flow: Workflow) -> None:
    do_work(flow)
    before = scrape()
    check_counters(before)
    assert before("reclaims_total", workflow="three") == 1
    assert before("stale_writes_refused_total", workflow="three") == 1
    assert before("claim_latency_seconds_sum", workflow="three") < 100, "not_before is no wait"
    add_up()
    assert Tally.objects.get(name="cursor", detail="Event").value > 0
    assert not tallies.add_up(), "nothing is left to do"
    assert not [row for row in Tally.objects.all() if row.value < 0]
    check_counters(scrape())
    # What is not added up yet is not lost with its rows.
    task, _ = submit_task(workflow=flow, input={}, actor=DEMO, key="demo-x", priority=100)
    held = claim(flow)
    limits.record_spend(held, key="call", tokens_in=7, cost="3.00")
    complete(held, flow)
    last = scrape()
    check_counters(last)
    assert delete_demo(actor=OPERATOR)[0].why == ""
    assert not Task.objects.filter(pk=task.pk).exists()
    rest = {name: value for name, value in last.items() if "_total" in name or "_bucket" in name}
    now = scrape()
    assert {name: now[name] for name in rest} == rest
    add_up()
    now = scrape()
    assert {name: now[name] for name in rest} == rest


def test_each_gauge_is_what_the_pages_count(flow: Workflow) -> None:
    do_work(flow)
    make_worker(flow)
    submit(flow)
    ask(claim(flow), flow)
    unknown = make_workflow("unknown")
    submit(unknown)
    submit(flow)
    claim(flow)
    clock.offset += 30
    found = scrape()
    for workflow in ("three", "unknown"):
        counts = Counter(Task.objects.filter(workflow=workflow).values_list("status", flat=True))
        for status in (*states.UNFINISHED, states.DEAD, states.FAILED):
            assert found("tasks", workflow=workflow, status=status) == counts[status], status
    assert found("tasks_unclaimable") == 1
    assert found("approvals_waiting") == 1
    assert found("approvals_oldest_age_seconds") == pytest.approx(30, abs=3)
    assert found("queue_oldest_age_seconds", workflow="unknown") == pytest.approx(30, abs=3)
    assert found("queue_oldest_age_seconds", workflow="three") < 200, "whatever its priority"
    assert found("workers", state="live") + found("workers", state="late") == 1
    assert found("tasks_stalled") == 0
    clock.offset += 40
    assert scrape()("tasks_lost") == Task.objects.filter(status="running").count() == 1
    Task.objects.filter(status="running").update(
        last_progress_at=clock.now(-3600), lease_until=clock.now(60)
    )
    assert scrape()("tasks_stalled") == 1
    assert scrape()("tasks_capped", status="queued") == 0


def test_a_cap_is_said(flow: Workflow, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(queries.metrics, "QUEUED_CAP", 2)
    for _ in range(3):
        submit(flow)
    found = scrape()
    assert found("tasks", workflow="three", status="queued") == 2
    assert found("tasks_capped", status="queued") == 1


def test_the_queries_are_few_and_as_many_whatever_there_is(flow: Workflow) -> None:
    with CaptureQueriesContext(connection) as empty:
        scrape()
    make_worker(flow)
    do_work(flow)
    for lane in range(5):
        submit(flow, lane=f"lane-{lane}")
    with CaptureQueriesContext(connection) as full:
        scrape()
    assert len(full) <= len(empty) + 1, [one["sql"][:90] for one in full]
    made = ("api_token", "audit_entry")  # by the token of this test
    asked = [one["sql"] for one in full if "longwatch_" in one["sql"]]
    assert len([one for one in asked if not any(part in one for part in made)]) <= MOST_QUERIES


def test_who_asks_again_at_once_is_told_the_same_and_costs_nothing(flow: Workflow) -> None:
    first = scrape()
    submit(flow)
    _, text = make_token("second", ["read"], created_by="cli:test")
    with CaptureQueriesContext(connection) as asked:
        answer = Client().get("/metrics", headers={"Authorization": f"Bearer {text}"})
    assert read_text(answer.content.decode()) == first
    assert not [one for one in asked if "longwatch_task" in one["sql"]]
    assert scrape()("tasks_submitted_total", workflow="three") == 1


def test_workflows_beyond_a_hundred_are_counted_together(flow: Workflow) -> None:
    Tally.objects.bulk_create(
        Tally(name="event", workflow=f"w{n:03}", detail="created", value=1) for n in range(100)
    )
    for name in ("late", "later"):
        with registered(make_workflow(name)) if name != "late" else registered(flow):
            complete_one(make_workflow(name))
    found = scrape()
    assert found("tasks_ended_total", workflow="other", status="completed") == 2
    add_up()
    again = scrape()
    assert again("tasks_ended_total", workflow="other", status="completed") == 2
    assert again("tasks_submitted_total", workflow="w007") == 1
    assert len([name for name in again if name.startswith("longwatch_cost_total")]) == 101


def test_no_counter_falls_when_the_hundredth_workflow_comes(
    flow: Workflow, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those that came first keep their labels, by whoever reads and adds up, and in which order."""
    complete_one(flow)
    for _ in range(4):  # up to where other tests have left the ids
        clock.offset += 5
        while tallies.add_up():
            pass
    monkeypatch.setattr(tallies, "CHUNK", 2)
    Tally.objects.bulk_create(
        Tally(name="event", workflow=f"w{n:02}", detail="created", value=1) for n in range(97)
    )
    seen = scrape()
    for name in ("zeta", "mu", "alpha"):
        made = make_workflow(name)
        with registered(made):
            complete_one(made)
        seen = check_that_none_fell(seen)
    for _ in range(4):
        clock.offset += 5
        while tallies.add_up():
            seen = check_that_none_fell(seen)
    assert not tallies.add_up()
    assert seen("tasks_ended_total", workflow="zeta", status="completed") == 1
    assert seen("unit_duration_seconds_count", workflow="mu") == 1
    assert seen("tasks_submitted_total", workflow="w96") == 1
    assert seen("tasks_submitted_total", workflow="other") == 1


def check_that_none_fell(before: Scrape) -> Scrape:
    found = scrape()
    counted = [name for name in before if "_total" in name or "_bucket" in name]
    assert {name for name in counted if found.get(name, 0) < before[name]} == set()
    return found


def test_a_thousand_workflows_with_hostile_names_are_a_hundred_labels(flow: Workflow) -> None:
    row, count = submit(flow), 1_200
    names = ['"}\n# HELP x {"', "\\", "\u202e", "a b", *(f"w{n}" for n in range(count - 4))]
    copies = Task.objects.bulk_create(
        copy_row(row, pk=uuid.uuid4(), workflow=name, idempotency_key=None) for name in names
    )
    Event.objects.bulk_create(
        copy_row(row.events.get(), task_id=task.pk) for task in copies
    )  # fmt: skip
    before = scrape()
    add_up()
    for found in (before, scrape()):
        tasks = {
            name: value for name, value in found.items() if name.startswith("longwatch_tasks[")
        }
        queued = [value for name, value in tasks.items() if "'queued'" in name]
        assert len(queued) == tallies.LABELS + 1
        assert sum(queued) == count + 1
        assert found("tasks", workflow="three", status="queued") == 1
        assert found("tasks_submitted_total", workflow=names[0]) == 1
        assert found("tasks_submitted_total", workflow="other") == count + 1 - tallies.LABELS


def copy_row[T: Model](row: T, **changed: Any) -> T:
    """Another row, not stored yet, with the same values but for these."""
    values = {field.attname: getattr(row, field.attname) for field in row._meta.concrete_fields}
    values.pop("id", None)
    return type(row)(**(values | changed))


def complete_one(workflow: Workflow) -> None:
    submit(workflow)
    complete(claim(workflow), workflow)


def test_openmetrics_is_spoken_to_who_asks_for_it(flow: Workflow) -> None:
    do_work(flow)
    _, text = make_token("prometheus", ["read"], created_by="cli:test")
    answer = Client().get("/metrics", headers={
        "Authorization": f"Bearer {text}", "Accept": "application/openmetrics-text;version=1.0.0",
    })  # fmt: skip
    assert answer["Content-Type"].startswith("application/openmetrics-text")
    assert len(list(parse_openmetrics(answer.content.decode()))) > 15


def test_only_who_reads_all_lanes_is_shown_them(login: Callable[..., Api]) -> None:
    assert Client().get("/metrics").json()["code"] == "unauthenticated"
    assert Client().get("/metrics", headers={"Authorization": "Bearer lw_no"}).status_code == 401
    for scopes, more in ((["submit"], {}), (["read"], {"lanes": ["day"]})):
        _, text = make_token("one", scopes, created_by="cli:test", **more)
        answer = Client().get("/metrics", headers={"Authorization": f"Bearer {text}"})
        assert (answer.status_code, answer.json()["code"]) == (403, "not_allowed")
    _, text = make_token("blind", ["read"], created_by="cli:test", payload=False)
    sent = {"Authorization": f"Bearer {text}"}
    assert Client().get("/metrics", headers=sent).status_code == 200
    assert Client().head("/metrics", headers=sent).content == b""
    assert Client().post("/metrics", headers=sent).json()["code"] == "method_not_allowed"


@pytest.mark.postgresql
@pytest.mark.django_db(transaction=True)
def test_a_row_that_is_committed_late_is_not_passed_over(flow: Workflow) -> None:
    drawn, go = threading.Event(), threading.Event()

    def commit_late() -> None:
        try:
            with transaction.atomic():
                submit(flow)
                drawn.set()
                go.wait(30)
        finally:
            connection.close()

    thread = threading.Thread(target=commit_late)
    thread.start()
    try:
        assert drawn.wait(30)
        submit(flow)
        # By the clock on the wall, as the other's beginning does not move with ours.
        until = clock.read() + dt.timedelta(seconds=3)
        while clock.read() < until:
            assert not tallies.add_up(), "the one before may still come"
        assert scrape()("tasks_submitted_total", workflow="three") == 1
    finally:
        go.set()
        thread.join(30)
    assert scrape()("tasks_submitted_total", workflow="three") == 2
    add_up()
    assert Tally.objects.get(name="event", detail="created").value == 2
    assert scrape()("tasks_submitted_total", workflow="three") == 2
