"""The sender as a process of a real cluster: killed, stopped, beside endpoints that hang."""

from __future__ import annotations

import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ledger import clock
from ledger.models import AlertDelivery, AlertRule, Outbox
from ledger.models.alerts import PENDING, SENT
from tests.alerts.kit import LOOPBACK, Receiver, make_rule, wait_until
from tests.crash.cluster_kit import is_alive
from tests.crash.site_kit import SiteCluster

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def start(site_env: dict[str, str], tmp_path: Path) -> Callable[..., SiteCluster]:
    """Makes a cluster whose tries at an alert take at most a second, unless told otherwise."""

    def make(**more: Any) -> SiteCluster:
        environment = {"LONGWATCH_ALERT_NETWORKS": LOOPBACK, "LONGWATCH_ALERT_SECONDS": "1"}
        return SiteCluster(tmp_path, site_env, **(environment | more))

    return make


def post_events(count: int) -> None:
    now = clock.read()
    Outbox.objects.bulk_create(
        Outbox(at=now, kind="dead", data={"title": "x"}) for _ in range(count)
    )


@pytest.mark.case(62)
def test_a_sender_killed_between_post_and_mark_sends_again_under_the_same_id(
    start: Callable[..., SiteCluster], receiver: Receiver
) -> None:
    rule = make_rule(receiver.url("held"))
    post_events(1)
    with start(LONGWATCH_ALERT_SECONDS=2) as cluster:
        wait_until(lambda: receiver.at("held"), "the POST has come")
        (sender,) = cluster.list_pids("sender")
        cluster.signal(signal.SIGKILL, sender)
        wait_until(lambda: not is_alive(sender), "it is gone")
        receiver.holds.set()
        wait_until(lambda: rule.deliveries.filter(state=SENT).exists(), "it is sent after all")
        assert cluster.list_pids("sender") not in ([], [sender])
        first, second = receiver.at("held")
        assert first.headers["webhook-id"] == second.headers["webhook-id"]
        assert first.json == second.json
        assert AlertDelivery.objects.get().attempts == 2
        cluster.prove_it_works_on()
        cluster.signal(signal.SIGTERM)
        assert cluster.wait_for_exit() == 0


@pytest.mark.case(62)
def test_endpoints_that_hang_or_drip_hold_up_neither_others_nor_tasks_nor_the_stop(
    start: Callable[..., SiteCluster], receiver: Receiver
) -> None:
    bad = [make_rule(receiver.url(path)) for path in ("hang", "drip", "huge", "loop", "close")]
    good = make_rule(receiver.url("ok"))
    post_events(20)
    with start() as cluster:
        cluster.prove_it_works_on()
        wait_until(lambda: good.deliveries.filter(state=SENT).count() == 20, "the good one has all")
        numbers = [one.json["sequence"] for one in receiver.at("ok")]
        assert numbers == list(range(1, 21))
        for rule in bad:
            wait_until(lambda rule=rule: _has_failed(rule), rule.target)  # type: ignore[misc]
        cluster.signal(signal.SIGTERM)
        assert cluster.wait_for_exit() == 0
    assert "no answer within 1 s" in _find_error(bad[0])
    assert "no answer within 1 s" in _find_error(bad[1])
    assert "redirects are not followed" in _find_error(bad[3])


def _has_failed(rule: AlertRule) -> bool:
    rule.refresh_from_db()
    # The one of a giant answer said 200 and was left at that.
    return rule.failures > 0 or rule.deliveries.filter(state=SENT).count() > 0


def _find_error(rule: AlertRule) -> str:
    return str(rule.deliveries.filter(state=PENDING).earliest("seq").error)
