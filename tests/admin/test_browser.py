"""The admin in a browser: the site's strict policy, each page's own style and scripts."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from axe_playwright_python.sync_playwright import Axe
from django.conf import settings
from django.contrib import admin as django_admin
from django.contrib.auth.models import User
from django.test import Client
from django.urls import reverse

from ledger.models import Event, Task
from tests.admin.test_pages import locate
from tests.dashboard.conftest import make_user
from tests.e2e.kit import strict_page

pytestmark = pytest.mark.browser

type OpenPage = Callable[..., contextlib.AbstractContextManager[Any]]


@pytest.fixture
def open_admin(transactional_db: None, browser: Any, live_server: Any) -> OpenPage:
    """A page of a superuser, in which no console error is forgiven."""

    @contextlib.contextmanager
    def open_page(**options: Any) -> Iterator[Any]:
        client = Client()
        client.force_login(User.objects.filter(username="root").first() or make_user("superuser"))
        cookie = client.cookies[settings.SESSION_COOKIE_NAME]
        with strict_page(browser, base_url=live_server.url, **options) as page:
            page.context.add_cookies(
                [{"name": cookie.key, "value": cookie.value, "url": live_server.url}]
            )
            yield page

    return open_page


def test_every_page_keeps_to_the_policy(open_admin: OpenPage, full: Task) -> None:
    paths = [reverse("admin:index"), reverse("admin:password_change"), locate(User, "add")]
    with open_admin() as page:
        for model in django_admin.site._registry:
            paths.append(locate(model, "changelist"))
            if row := model._default_manager.order_by("pk").last():
                paths += [locate(model, "change", row.pk), locate(model, "history", row.pk)]
        for path in paths:
            answer = page.goto(path, wait_until="load")
            assert answer.status == 200, path
            assert "unsafe-inline" not in answer.headers["content-security-policy"]
            assert page.locator("#header").evaluate("e => getComputedStyle(e).display") == "flex"
    assert len(paths) > 30


OF_DJANGO = {"label-title-only"}
"""A list's search bar is named by an icon and described below: Django's own template."""


@pytest.mark.parametrize(("scheme", "width"), [("light", 1440), ("dark", 390)])
def test_the_pages_are_accessible_and_fit(
    open_admin: OpenPage, full: Task, scheme: str, width: int
) -> None:
    person = make_user("operator")
    size = {"width": width, "height": 900}
    with open_admin(color_scheme=scheme, viewport=size) as page:
        for path in (
            reverse("admin:index"), locate(Task, "changelist"), locate(Task, "change", full.pk),
            locate(Event, "change", full.events.latest("pk").pk), locate(User, "add"),
            locate(User, "change", person.pk),
        ):  # fmt: skip
            page.goto(path)
            found = {one["id"] for one in Axe().run(page).response["violations"]}
            assert found <= OF_DJANGO, path
            assert page.evaluate("document.documentElement.scrollWidth - innerWidth") <= 0


def test_a_task_is_edited_by_keyboard_and_the_page_says_what_is_wrong(
    open_admin: OpenPage, full: Task
) -> None:
    with open_admin() as page:
        page.goto(locate(Task, "change", full.pk))
        page.get_by_label("Title").fill("By hand")
        page.get_by_label("Priority").fill("500")
        page.get_by_label("Reason").fill("asked for by the client")
        page.get_by_label("Priority").press("Enter")
        page.get_by_text("priority: takes a whole number from -100 to 100.").wait_for()
        page.get_by_label("Priority").fill("5")
        page.get_by_label("Priority").press("Enter")
        page.locator("ul.messagelist").get_by_text("was changed successfully").wait_for()
    full.refresh_from_db()
    assert (full.title, full.priority) == ("By hand", 5)


def test_a_date_is_picked_with_the_mouse(open_admin: OpenPage, full: Task) -> None:
    with open_admin() as page:
        page.goto(locate(Task, "change", full.pk))
        page.get_by_label("Reason").fill("later")
        row = page.locator(".field-deadline_at")
        row.get_by_role("link", name="Tomorrow").or_(
            row.get_by_role("button", name="Tomorrow")
        ).or_(row.get_by_text("Today")).first.click()
        row.get_by_text("Now").first.click()
        assert page.locator("#id_deadline_at_0").input_value()
        assert page.locator("#id_deadline_at_1").input_value()
