"""What is so for a while is told when it begins, once, whoever looks; and again the next time."""

from __future__ import annotations

import threading

from django.db import connection, connections

from ledger import clock, conf, sql, states
from ledger.alerts import conditions, retention, routing
from ledger.models import AlertCondition, AlertDelivery, Event, Outbox, Task, Worker
from ledger.models.alerts import SENT
from ledger.transitions import operators
from ledger.workflows import Workflow
from tests.alerts.kit import make_rule
from tests.factories import LEASE, OPERATOR, claim, make_in, submit


def tell() -> list[str]:
    """The kinds that are told now."""
    before = set(Outbox.objects.values_list("pk", flat=True))
    conditions.tell_conditions()
    return sorted(row.kind for row in Outbox.objects.exclude(pk__in=before))


def test_a_stalled_task_is_told_once_each_time_it_stalls(flow: Workflow) -> None:
    make_rule("http://a/", "stalled")
    task = make_in(states.RUNNING, flow)
    assert tell() == []
    Task.objects.update(lease_until=clock.now(9e6))
    clock.offset += task.stall_after + 1
    assert [tell(), tell()] == [["stalled"], []]
    row = Outbox.objects.get()
    assert (row.task, row.lane) == (task.id, "default")
    Task.objects.update(last_progress_at=clock.now())
    assert tell() == []
    clock.offset += task.stall_after + 1
    assert tell() == ["stalled"]


def test_nobody_looks_for_what_no_rule_wants(flow: Workflow) -> None:
    make_rule("http://a/", "dead")
    make_rule("http://a/", "stalled", enabled=False)
    task = make_in(states.RUNNING, flow)
    Task.objects.update(lease_until=clock.now(9e6))
    clock.offset += task.stall_after + 1
    assert tell() == []


def test_a_version_that_no_worker_knows_is_told_after_a_minute(flow: Workflow) -> None:
    make_rule("http://a/", "no_worker")
    submit(flow)
    assert tell() == []
    clock.offset += conditions.UNKNOWN_SECONDS + 1
    assert [tell(), tell()] == [["no_worker"], []]
    now = clock.read()
    knows = [{"workflow": flow.name, "version": flow.version, "digest": "", "steps": ["a"]}]
    Worker.objects.create(owner="w", host="h", pid=1, started_at=now, seen_at=now, knows=knows)
    assert tell() == []
    assert not AlertCondition.objects.exists()


def test_each_rule_judges_limits_by_its_own_number(flow: Workflow) -> None:
    low = make_rule("http://a/", "limit_near", percent=50)
    make_rule("http://a/", "limit_near", percent=90)
    make_rule("http://a/", "limit_near", percent=50, lane="other")
    submit(flow)
    Task.objects.update(used_tokens_in=3_000_000, used_tokens_out=2_000_000)
    assert [tell(), tell()] == [["limit_near"], []]
    row = Outbox.objects.get()
    assert row.only == low
    assert "50 % of its tokens" in row.data["note"]
    Task.objects.update(used_cost=conf.load().limit_cost_nano, used_units=9_999)
    assert tell() == ["limit_near"]
    routing.route_outbox()
    assert AlertDelivery.objects.count() == 2
    Task.objects.update(limit_cost=2**62, used_cost=2**61)  # no sum runs over
    operators.cancel_task(Task.objects.get().pk, actor=OPERATOR)
    assert tell() == []
    assert not AlertCondition.objects.exists()


def test_a_queue_that_waits_is_told_once_for_its_lane(flow: Workflow) -> None:
    make_rule("http://a/", "queue_old", minutes=10)
    for lane in ("a", "a", "b"):
        submit(flow, lane=lane)
    assert tell() == []
    clock.offset += 601
    assert [tell(), tell()] == [["queue_old"] * 2, []]
    notes = sorted(row.data["note"] for row in Outbox.objects.all())
    assert notes[0].startswith("Lane a: 2 queued for over 10 minutes")
    held = claim(flow, lane="b")
    sql.beat_leases(held.owner, [held.lease], LEASE)
    assert tell() == []
    assert AlertCondition.objects.count() == 1


def test_of_many_senders_one_tells(transactional_db: None) -> None:
    from tests.factories import make_workflow

    make_rule("http://a/", "queue_old", minutes=1)
    flow = make_workflow()
    for lane in "abcde":
        submit(flow, lane=lane)
    clock.offset += 61
    together = threading.Barrier(4)

    def look() -> None:
        together.wait(30)
        conditions.tell_conditions()
        connections.close_all()

    threads = [threading.Thread(target=look) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert Outbox.objects.count() == 5


def test_what_was_told_long_ago_is_forgotten_and_the_events_stay(flow: Workflow) -> None:
    rule = make_rule("http://a/")
    for _ in range(3):
        make_in(states.DEAD, flow)
    routing.route_outbox()
    events = Event.objects.count()
    AlertDelivery.objects.filter(seq__lte=2).update(state=SENT, settled_at=clock.now())
    assert retention.forget_old() == 0
    clock.offset += 86_400 * conf.load().alert_days + 1
    assert retention.forget_old() == 2
    assert list(rule.deliveries.values_list("seq", flat=True)) == [3]  # it still waits
    assert Event.objects.count() == events
    connection.check_constraints()
