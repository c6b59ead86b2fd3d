"""From an event to an endpoint: once, in order, again after a failure, given up, brought back."""

from __future__ import annotations

import contextlib
import random

import pytest
from django.db import connection

from ledger import clock, conf, outbox, sql, states
from ledger.alerts import deliveries, routing, rules
from ledger.alerts.deliveries import Outcome
from ledger.models import AlertDelivery, AlertRule, Outbox
from ledger.models.alerts import DEAD, PENDING, SENT
from ledger.transitions import operators, sweeps
from ledger.workflows import Workflow
from tests.alerts.kit import Receiver, make_rule, pass_backoff, send_due
from tests.factories import (
    LEASE,
    OPERATOR,
    ask,
    claim,
    complete,
    expire_lease,
    make_in,
    submit,
)


def fill_outbox(count: int) -> None:
    now = clock.read()
    Outbox.objects.bulk_create(
        Outbox(at=now, kind="dead", data={"title": "x"}) for _ in range(count)
    )
    while routing.route_outbox():
        pass


def list_states(rule: AlertRule) -> list[str]:
    return list(rule.deliveries.order_by("seq").values_list("state", flat=True))


def test_an_alert_is_put_down_in_the_transaction_of_its_event(flow: Workflow) -> None:
    task = submit(flow)
    with contextlib.suppress(RuntimeError), sql.atomic():
        operators.cancel_task(task.id, actor=OPERATOR)
        raise RuntimeError
    assert not Outbox.objects.exists()
    operators.cancel_task(task.id, actor=OPERATOR)
    assert [(row.kind, row.task) for row in Outbox.objects.all()] == [("cancelled", task.id)]


def test_the_plain_course_of_a_task_puts_nothing_down(flow: Workflow) -> None:
    submit(flow)
    complete(claim(flow), flow)
    assert not Outbox.objects.exists()


def test_only_the_second_loss_at_a_step_is_told(flow: Workflow) -> None:
    task = submit(flow)
    for told in (0, 1, 1):
        claim(flow)
        expire_lease()
        assert sweeps.reclaim_task(task.id, LEASE) == states.QUEUED
        assert Outbox.objects.filter(kind=outbox.LOST_TWICE).count() == told


@pytest.mark.case(62)
def test_what_is_told_is_numbered_signed_and_links_to_the_page(
    flow: Workflow, receiver: Receiver
) -> None:
    rule = make_rule(receiver.url("ok"), "approval_requested", "dead")
    asked = ask(claim_new(flow), flow, risk="high")
    make_in(states.DEAD, flow)
    assert routing.route_outbox() == 2
    assert [outcome.error for _ in range(2) for _, outcome in send_due()] == ["", ""]
    first, second = (one.json for one in receiver.got)
    assert (first["type"], first["sequence"]) == ("approval_requested", 1)
    assert (second["type"], second["sequence"]) == ("dead", 2)
    assert first["url"] == f"https://longwatch.example/approvals/{asked.id}/"
    assert first["data"]["risk"] == "high"
    assert second["data"]["error"]["message"] == "it broke"
    assert list_states(rule) == [SENT, SENT]
    assert send_due() == []


def claim_new(flow: Workflow) -> sql.Claimed:
    submit(flow)
    return claim(flow)


@pytest.mark.case(52)
def test_a_cancel_is_told_once_however_often_it_is_asked(
    flow: Workflow, receiver: Receiver
) -> None:
    make_rule(receiver.url("ok"), "cancelled")
    for status in (states.QUEUED, states.WAITING, states.SCHEDULED, states.DEAD):
        task = make_in(status, flow)
        for _ in range(2):
            operators.cancel_task(task.id, actor=OPERATOR)
    while routing.route_outbox() or send_due():
        pass
    assert [one.json["type"] for one in receiver.got] == ["cancelled"] * 4
    assert len({one.json["task"] for one in receiver.got}) == 4


def test_a_rule_is_told_what_passes_its_filters(flow: Workflow) -> None:
    taken = {
        "all": make_rule("http://a/", "dead", "approval_requested"),
        "lane": make_rule("http://a/", "dead", lane="default"),
        "tag": make_rule("http://a/", "approval_requested", tag="nightly"),
        "risk": make_rule("http://a/", "approval_requested", risk="high"),
    }
    refusing = [
        make_rule("http://a/", "failed"),
        make_rule("http://a/", "dead", lane="other"),
        make_rule("http://a/", "dead", workflow="other"),
        make_rule("http://a/", "dead", enabled=False),
    ]
    submit(flow, tags=["nightly"])
    ask(claim(flow), flow, risk="medium")
    ask(claim_new(flow), flow, risk="high")
    make_in(states.DEAD, flow)
    routing.route_outbox()
    counts = {name: rule.deliveries.count() for name, rule in taken.items()}
    assert counts == {"all": 3, "lane": 1, "tag": 1, "risk": 1}
    assert not AlertDelivery.objects.filter(rule__in=refusing).exists()


@pytest.mark.case(62)
def test_a_dead_endpoint_backs_off_as_a_whole_and_holds_nobody_up(
    flow: Workflow, receiver: Receiver
) -> None:
    dead, alive = make_rule(receiver.url("500")), make_rule(receiver.url("ok"))
    fill_outbox(400)
    for _ in range(20):
        send_due()
    assert len(receiver.at("500")) == 1  # one try for 400 events, then its backoff
    assert [one.json["sequence"] for one in receiver.at("ok")] == list(range(1, 21))
    for _ in range(conf.load().alert_attempts):
        pass_backoff()
        send_due()
    assert len(receiver.at("500")) == conf.load().alert_attempts
    assert len({one.headers["webhook-id"] for one in receiver.at("500")}) == 1
    assert {one.json["sequence"] for one in receiver.at("500")} == {1}
    assert set(list_states(dead)) == {DEAD}
    last = dead.deliveries.order_by("seq").last()
    assert last is not None
    assert "given up after 16 failures in a row; answered 500" in last.error
    assert PENDING in list_states(alive)
    assert DEAD not in list_states(alive)


@pytest.mark.case(62)
def test_what_was_given_up_is_sent_when_a_person_says_so(
    flow: Workflow, receiver: Receiver
) -> None:
    rule = make_rule(receiver.url("ok"))
    fill_outbox(3)
    AlertDelivery.objects.update(state=DEAD, attempts=16)
    AlertRule.objects.update(failures=16, next_at=clock.now(3600))
    assert rules.replay_dead(rule.pk, OPERATOR, 1) == 1
    send_due()
    assert list_states(rule) == [SENT, DEAD, DEAD]
    assert rules.replay_dead(rule.pk, OPERATOR) == 2
    assert len(send_due() + send_due()) == 2
    assert [one.json["sequence"] for one in receiver.got] == [1, 2, 3]


@pytest.mark.case(62)
def test_an_endpoint_that_flaps_gets_everything_in_order(
    flow: Workflow, receiver: Receiver
) -> None:
    rule = make_rule(receiver.url("flap"))
    fill_outbox(4)
    for _ in range(8):
        send_due()
        pass_backoff()
    assert list_states(rule) == [SENT] * 4
    numbers = [one.json["sequence"] for one in receiver.got]
    assert numbers == [1, 1, 2, 2, 3, 3, 4, 4]
    ids = [one.headers["webhook-id"] for one in receiver.got]
    assert ids[0] == ids[1] != ids[2]


def test_one_event_that_is_refused_does_not_end_the_others(
    flow: Workflow, receiver: Receiver
) -> None:
    rule = make_rule(receiver.url("404"))
    fill_outbox(2)
    for _ in range(deliveries.MAX_REFUSALS):
        send_due()
        pass_backoff()
    assert list_states(rule) == [DEAD, PENDING]


def test_the_backoff_doubles_up_to_an_hour_and_is_spread() -> None:
    tunables = conf.load()
    random.seed(7)
    for failures, longest in ((1, 5.0), (2, 10.0), (5, 80.0), (11, 3600.0), (10**6, 3600.0)):
        found = [deliveries.choose_backoff(failures, tunables) for _ in range(200)]
        assert longest / 2 <= min(found) < longest * 0.6
        assert longest * 0.9 < max(found) <= longest


@pytest.mark.case(62)
def test_what_a_killed_sender_held_is_taken_again_and_its_own_end_is_void(
    flow: Workflow, receiver: Receiver
) -> None:
    rule = make_rule(receiver.url("ok"))
    fill_outbox(1)
    (first,) = deliveries.take_due(16)
    assert deliveries.take_due(16) == []
    clock.offset += 3 * conf.load().alert_seconds + 1
    (second,) = deliveries.take_due(16)
    assert (second.message.id, second.seq) == (first.message.id, first.seq)
    assert not deliveries.settle_delivery(first, Outcome("late"))
    assert deliveries.settle_delivery(second, Outcome())
    assert list_states(rule) == [SENT]
    assert AlertDelivery.objects.get().attempts == 2


@pytest.mark.case(62)
def test_an_alert_of_a_task_that_is_gone_is_told(flow: Workflow, receiver: Receiver) -> None:
    make_rule(receiver.url("ok"))
    task = make_in(states.DEAD, flow)
    with connection.cursor() as cursor:
        for table in ("longwatch_event", "longwatch_step_output"):
            cursor.execute(f"DELETE FROM {table}")
        cursor.execute("DELETE FROM longwatch_task")
    routing.route_outbox()
    assert [outcome for _, outcome in send_due()] == [Outcome()]
    assert receiver.got[0].json["task"] == str(task.id)


def test_after_a_rotation_both_secrets_sign_for_a_day(flow: Workflow, receiver: Receiver) -> None:
    rule = make_rule(receiver.url("ok"))
    old, new = rule.secret, rules.rotate_secret(rule.pk, OPERATOR)
    fill_outbox(2)
    (job,) = deliveries.take_due(16)
    assert job.keys == (new, old)
    deliveries.settle_delivery(job, Outcome())
    clock.offset += rules.OLD_SECRET_HOURS * 3600 + 1
    (job,) = deliveries.take_due(16)
    assert job.keys == (new,)
