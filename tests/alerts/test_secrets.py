"""Secrets of real processes: in no log, no command line, no alert that leaves the house."""

from __future__ import annotations

from pathlib import Path

import pytest

from ledger.tokens import make_token
from tests.alerts.kit import LOOPBACK, Receiver, make_rule, wait_until
from tests.crash.cluster_kit import SIGTERM
from tests.crash.flows import blabbing
from tests.crash.site_kit import SiteCluster, wait_for_status

pytestmark = pytest.mark.django_db(transaction=True)

IN_STEP, OF_DATABASE, OF_SITE = "canary-of-the-step", "canary-of-the-database", "canary-of-the-site"


@pytest.mark.case(67)
def test_no_secret_is_in_a_log_a_command_line_or_an_alert(
    site_env: dict[str, str], tmp_path: Path, receiver: Receiver
) -> None:
    rule = make_rule(receiver.url("ok"), "dead")
    _, token = make_token("ci", ["read"], created_by="cli:me")
    site_env |= {
        "LONGWATCH_DATABASE_URL": site_env["LONGWATCH_DATABASE_URL"].replace(
            "@", f":{OF_DATABASE}@"
        ),
        "LONGWATCH_SECRET_KEY": OF_SITE * 4,
        "LONGWATCH_SECRET_CANARY": IN_STEP,
        "LONGWATCH_ALERT_NETWORKS": LOOPBACK,
    }
    with SiteCluster(tmp_path, site_env) as cluster:
        wait_for_status(cluster.submit(blabbing), "dead")
        wait_until(lambda: receiver.at("ok"), "the alert has come")
        titles = [" ".join(process.cmdline()) for process in cluster.find_living()]
        cluster.signal(SIGTERM)
        assert cluster.wait_for_exit() == 0
    (alert,) = receiver.at("ok")
    assert "bad login with" in str(alert.json)
    assert len(titles) >= 5
    places = {"the log": cluster.read_log(), "a title": str(titles), "the alert": repr(alert)}
    assert rule.secret
    for secret in (IN_STEP, OF_DATABASE, OF_SITE, token, rule.secret):
        for name, text in places.items():
            assert secret not in text, f"{secret} is in {name}"
