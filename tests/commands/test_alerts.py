"""`manage.py alerts`: what was given up is seen and sent again from a terminal."""

from __future__ import annotations

import pytest
from django.core.management import CommandError

from ledger import states
from ledger.alerts import routing
from ledger.models import AlertDelivery, Outbox
from ledger.models.alerts import DEAD, PENDING
from tests.alerts.kit import make_rule
from tests.commands.test_terminal import run
from tests.factories import make_in, make_workflow

pytestmark = pytest.mark.both_databases


def test_what_was_given_up_is_sent_again_from_a_terminal(db: None) -> None:
    rule = make_rule("https://hooks.example/KEY")
    for _ in range(3):
        make_in(states.DEAD, make_workflow())
    routing.route_outbox()
    AlertDelivery.objects.update(state=DEAD, error="answered 500\n\x1b[2J")
    listed, _ = run("alerts", "list")
    assert f"{rule.pk}  on  0 wait, 3 given up  https://hooks.example/…  on call" in listed
    dead, _ = run("alerts", "dead")
    assert f"{rule.pk}  2  dead  answered 500 [2J\n" in dead
    assert "KEY" not in listed + dead
    assert run("alerts", "replay", str(rule.pk), "--number", "2")[0].startswith("1 ")
    assert AlertDelivery.objects.get(state=PENDING).seq == 2
    assert run("alerts", "replay", str(rule.pk))[0].startswith("2 ")
    with pytest.raises(CommandError, match="given up nothing"):
        run("alerts", "replay", str(rule.pk))


def test_a_test_is_asked_for_from_a_terminal(db: None) -> None:
    rule = make_rule("https://hooks.example/")
    out, _ = run("alerts", "test", str(rule.pk))
    assert str(Outbox.objects.get(only=rule, kind="test").pk) == out.strip()
    with pytest.raises(CommandError, match="no alert rule"):
        run("alerts", "test", "00000000-0000-0000-0000-000000000007")
