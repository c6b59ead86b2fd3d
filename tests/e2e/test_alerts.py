"""From an alert's mail to a decided question, on a phone."""

from __future__ import annotations

import re
from typing import Any

import pytest

from ledger.alerts import routing
from ledger.models import Approval
from ledger.workflows import Workflow
from tests.alerts.conftest import mail_server  # noqa: F401  a fixture
from tests.alerts.kit import MailServer, make_rule, send_due
from tests.dashboard.conftest import PASSWORD, make_user
from tests.e2e.kit import strict_page, wait_until
from tests.factories import ask, claim, submit

pytestmark = pytest.mark.browser

PHONE = {
    "viewport": {"width": 390, "height": 844},
    "device_scale_factor": 2,
    "is_mobile": True,
    "has_touch": True,
}


def test_a_phone_gets_from_the_mail_to_a_decided_high_risk_question(
    browser: Any,
    live_server: Any,
    settings: Any,
    mail_server: MailServer,  # noqa: F811
    three: Workflow,
) -> None:
    settings.LONGWATCH_URL = live_server.url
    make_user("approver", "ann")
    make_rule("ann@here.example", "approval_requested", channel="email", risk="high")
    submit(three, title="Publish the timetable")
    asked = ask(claim(three), three, risk="high", body="It goes to **everybody**.")
    routing.route_outbox()
    assert [outcome.error for _, outcome in send_due()] == [""]
    (mail,) = mail_server.mails
    (link,) = re.findall(r"http\S+", mail.get_content())

    with strict_page(browser, **PHONE) as page:
        page.goto(link)
        page.get_by_label("User name").fill("ann")
        page.get_by_label("Password").fill(PASSWORD)
        page.get_by_role("button", name="Sign in").tap()
        page.wait_for_url(link)
        page.get_by_text("It goes to everybody").wait_for()
        wide = "document.documentElement.scrollWidth > document.documentElement.clientWidth"
        assert not page.evaluate(wide), "it has to be moved sideways"
        page.get_by_role("button", name="Approve…").tap()
        page.locator("#dialog[open]").get_by_role("button", name="Approve").tap()
        wait_until(lambda: Approval.objects.get(pk=asked.pk).status == "approved", 20)
        page.get_by_text("Approved by ann").locator("visible=true").first.wait_for()
    assert Approval.objects.get(pk=asked.pk).decided_by.startswith("user:")
