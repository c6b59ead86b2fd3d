"""What a person does about alerts and news; tests/e2e/test_actions.py drives it in three ways."""

from __future__ import annotations

from collections.abc import Callable

from ledger import clock, states
from ledger.alerts import routing
from ledger.models import AlertDelivery, AlertRule, Outbox, Visit
from ledger.models.alerts import DEAD, PENDING
from ledger.transitions.visits import AWAY_SECONDS
from ledger.workflows import Workflow
from tests.alerts.kit import make_rule
from tests.e2e.hands import Mouse
from tests.e2e.kit import wait_until
from tests.factories import make_in

SECONDS = 30.0
PLACE = "https://hooks.example/longwatch"


def make(hands: Mouse, three: Workflow) -> None:
    hands.page.goto("/alerts/")
    hands.press("New rule", "link")
    hands.write("Name", "On call")
    hands.write("To", "ann@here.example")
    hands.tick("Task gave up")
    hands.press("Make rule")
    hands.find("On call", "link").wait_for()
    rule = AlertRule.objects.get()
    assert (rule.kinds, rule.target, rule.enabled) == (["dead"], "ann@here.example", True)


def edit(hands: Mouse, three: Workflow) -> None:
    make_rule(PLACE)
    hands.page.goto("/alerts/")
    hands.press("on call", "link")
    hands.write("Lane", "nightly")
    hands.press("Save rule")
    wait_until(lambda: AlertRule.objects.get().lane == "nightly", SECONDS)


def renew_secret(hands: Mouse, three: Workflow) -> None:
    rule = make_rule(PLACE)
    hands.page.goto(f"/alerts/{rule.pk}/")
    hands.press("New secret")
    shown = hands.page.locator("#secret")
    shown.wait_for()
    assert shown.inner_text() == AlertRule.objects.get().secret != rule.secret
    hands.press("I have kept it")
    hands.find("Rules", "heading").wait_for()


def remove(hands: Mouse, three: Workflow) -> None:
    rule = make_rule(PLACE)
    hands.page.goto(f"/alerts/{rule.pk}/")
    hands.press("Remove rule")
    hands.page.get_by_text("Nobody is told of anything").wait_for()
    assert AlertRule.objects.get().removed_at


def send_test(hands: Mouse, three: Workflow) -> None:
    make_rule(PLACE)
    hands.page.goto("/alerts/")
    hands.press("Send a test of on call")
    hands.page.get_by_text("The test waits for the sender").wait_for()
    assert Outbox.objects.get().kind == "test"


def replay(hands: Mouse, three: Workflow) -> None:
    make_rule(PLACE)
    for _ in range(2):
        make_in(states.DEAD, three)
    routing.route_outbox()
    AlertDelivery.objects.update(state=DEAD)
    hands.page.goto("/alerts/")
    hands.press("Send again number 1 of on call")
    wait_until(lambda: AlertDelivery.objects.get(seq=1).state == PENDING, SECONDS)
    hands.press("Send all again of on call")
    wait_until(lambda: AlertDelivery.objects.get(seq=2).state == PENDING, SECONDS)


def put_away(hands: Mouse, three: Workflow) -> None:
    hands.page.goto("/since/")
    make_in(states.DEAD, three)
    Visit.objects.update(seen_at=clock.now(-AWAY_SECONDS - 60))
    hands.page.goto("/" if hands.script else "/since/")
    hands.press("Seen")
    wait_until(lambda: not Visit.objects.filter(since__isnull=False).exists(), SECONDS)


SCRIPTS: dict[str, Callable[[Mouse, Workflow], None]] = {
    "alert.make": make, "alert.edit": edit, "alert.new-secret": renew_secret,
    "alert.remove": remove, "alert.test": send_test, "alert.replay": replay,
    "since.put-away": put_away,
}  # fmt: skip
