"""From a mail on a phone to a decided question: the link, the sign-in, the answer."""

from __future__ import annotations

from typing import Any

import pytest

from dashboard.login import make_link
from ledger.models import Approval
from ledger.workflows import Workflow
from tests.dashboard.conftest import PASSWORD, make_user
from tests.e2e.kit import strict_page, wait_until
from tests.factories import ask, claim, submit

pytestmark = [pytest.mark.browser, pytest.mark.django_db(transaction=True)]
PHONE = {"viewport": {"width": 390, "height": 800}, "has_touch": True}


@pytest.mark.parametrize("way", ["password", "one-time link"])
def test_a_link_in_a_mail_leads_through_the_sign_in_to_a_decision(
    way: str, browser: Any, live_server: Any, three: Workflow
) -> None:
    ann = make_user("approver", "ann")
    submit(three, title="Ferry timetables")
    asked = ask(claim(three), three, risk="high", body="Publish them?", send_back_to="a")
    path = f"/approvals/{asked.pk}/"
    with strict_page(browser, base_url=live_server.url, **PHONE) as page:
        if way == "password":
            page.goto(path)
            page.get_by_label("User name").fill("ann")
            page.get_by_label("Password").fill(PASSWORD)
            page.get_by_role("button", name="Sign in").tap()
        else:
            page.goto(f"{make_link(ann)}?next={path}")
        page.wait_for_url(f"**{path}")
        page.get_by_role("heading", name="Go on?", exact=True).wait_for()
        assert page.evaluate("document.documentElement.scrollWidth") <= 390
        page.get_by_role("button", name="Approve").tap()
        page.locator("#dialog").get_by_role("button", name="Approve").tap()
        page.locator("#state").get_by_text("Approved").wait_for()
    wait_until(lambda: Approval.objects.get(pk=asked.pk).decided_by == f"user:{ann.pk}", 20)
