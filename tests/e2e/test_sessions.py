"""Sessions that end or change hands while pages are open, and pages that are gone back to."""

from __future__ import annotations

import http.client
import http.server
import threading
from collections.abc import Iterator
from typing import Any
from urllib.parse import urlsplit

import pytest
from django.conf import settings
from django.contrib.sessions.models import Session
from django.test import Client

from ledger import states
from ledger.models import Approval
from ledger.workflows import Workflow
from tests.dashboard.conftest import PASSWORD, make_user
from tests.e2e.conftest import OpenPage
from tests.e2e.kit import strict_page, wait_until
from tests.factories import ask, claim, make_in, submit

pytestmark = pytest.mark.browser


def sign_in(page: Any, name: str) -> None:
    """By the form, in whatever tab this is."""
    page.get_by_label("User name").fill(name)
    page.get_by_label("Password").fill(PASSWORD)
    page.get_by_role("button", name="Sign in").click()
    page.wait_for_url(lambda url: "/login/" not in url)


def put_question(three: Workflow) -> Approval:
    """An open one."""
    submit(three)
    return Approval.objects.get(pk=ask(claim(three), three).pk)


@pytest.mark.case(68)
def test_polls_end_with_the_session_and_typed_words_are_sent_by_who_comes_back(
    open_page: OpenPage, three: Workflow
) -> None:
    """Lists go to the sign-in page whole; where something is typed a bar leads there."""
    asked = put_question(three)
    path = f"/approvals/{asked.id}/"
    with open_page("approver", "ann") as page:
        listed = page.context.new_page()
        listed.goto("/tasks/?lane=default")
        page.goto(path)
        page.get_by_label("Comment").fill("half a sentence")
        page.expected |= {401, 403}
        Session.objects.all().delete()
        page.bring_to_front()
        page.wait_for_selector("#signed-out:not([hidden])")
        listed.bring_to_front()
        listed.wait_for_url("**/login/?**")
        assert "next=%2Ftasks%2F%3Flane%3Ddefault" in listed.url
        assert listed.locator("form.lform").count() == 1
        assert listed.locator("nav.side").count() == 0
        sign_in(listed, "ann")
        assert listed.url.endswith("/tasks/?lane=default")
        page.bring_to_front()
        page.evaluate("document.dispatchEvent(new Event('visibilitychange'))")
        page.wait_for_selector("#signed-out[hidden]", state="attached")
        assert page.get_by_label("Comment").input_value() == "half a sentence"
        page.get_by_role("button", name="Approve", exact=True).click()
        page.wait_for_selector("#state[data-status=approved]")
    asked.refresh_from_db()
    assert (asked.status, asked.comment) == ("approved", "half a sentence")


@pytest.mark.case(68)
@pytest.mark.parametrize("who", ["same", "other"])
def test_a_form_acts_for_nobody_but_whom_it_was_made_for(
    open_page: OpenPage, three: Workflow, who: str
) -> None:
    """Somebody signs in in the second tab; the first one's form is sent before it polls again."""
    asked = put_question(three)
    make_user("approver", "ben")
    with open_page("approver", "ann") as page:
        page.goto(f"/approvals/{asked.id}/")
        page.get_by_label("Comment").fill("ann thinks so")
        page.expected |= {403, 412}
        page.evaluate("Object.defineProperty(document, 'hidden', {get: () => true})")  # no polls
        second = page.context.new_page()
        second.goto("/workers/")
        second.get_by_role("button", name="Sign out").click()
        second.wait_for_url("**/login/**")
        sign_in(second, "ann" if who == "same" else "ben")
        page.bring_to_front()
        page.get_by_role("button", name="Approve", exact=True).click()
        if who == "other":
            page.get_by_text("Somebody else is signed in now").wait_for()
            assert page.get_by_label("Comment").input_value() == "ann thinks so"
            asked.refresh_from_db()
            assert asked.status == "open"
            return
        page.get_by_text("Nothing was sent: send it once more").wait_for()
        page.get_by_role("button", name="Approve", exact=True).click()
        page.wait_for_selector("#state[data-status=approved]")
    asked.refresh_from_db()
    assert (asked.status, asked.comment) == ("approved", "ann thinks so")


class Cache(http.server.BaseHTTPRequestHandler):
    """A proxy that keeps every answer that does not forbid it, by its path alone."""

    goal = ""
    kept: dict[str, tuple[int, list[tuple[str, str]], bytes]] = {}

    def do_GET(self) -> None:
        """From what is kept, else from the site."""
        found = self.kept.get(self.path) or self.ask_site(b"")
        self.answer(*found)

    def do_POST(self) -> None:
        """Always from the site."""
        size = int(self.headers.get("Content-Length") or 0)
        self.answer(*self.ask_site(self.rfile.read(size)))

    def ask_site(self, body: bytes) -> tuple[int, list[tuple[str, str]], bytes]:
        """What the site says; kept unless it is forbidden."""
        site = http.client.HTTPConnection(urlsplit(self.goal).netloc, timeout=30)
        headers = {name: value for name, value in self.headers.items() if name != "Connection"}
        site.request(self.command, self.path, body, headers)
        answer = site.getresponse()
        found = (answer.status, answer.getheaders(), answer.read())
        site.close()
        if self.command == "GET" and "no-store" not in (answer.getheader("Cache-Control") or ""):
            self.kept[self.path] = found
        return found

    def answer(self, status: int, headers: list[tuple[str, str]], body: bytes) -> None:
        """To the browser."""
        self.send_response_only(status)
        for name, value in headers:
            if name not in {"Connection", "Transfer-Encoding", "Content-Length"}:
                self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *args: Any) -> None:
        """Nothing."""


@pytest.fixture
def cache(live_server: Any) -> Iterator[str]:
    """The address of a caching proxy before the site."""
    Cache.goal, Cache.kept = live_server.url, {}
    server = http.server.ThreadingHTTPServer(("localhost", 0), Cache)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield f"http://localhost:{server.server_port}"
    server.shutdown()
    server.server_close()
    thread.join(10)


@pytest.mark.case(70)
def test_back_forward_reload_and_a_second_tab_show_whole_pages_as_they_are_now(
    browser: Any, cache: str, three: Workflow
) -> None:
    """Through a proxy that keeps whatever it may."""
    client = Client()
    client.force_login(make_user("operator", "ann"))
    cookie = client.cookies[settings.SESSION_COOKIE_NAME]
    asked = put_question(three)
    make_in(states.DEAD, three)
    here = f"/approvals/{asked.id}/"
    with strict_page(browser, base_url=cache) as page:
        page.expected |= {409}
        page.context.add_cookies([{"name": cookie.key, "value": cookie.value, "url": cache}])

        def see(one: Any, path: str, shown: str) -> None:
            one.wait_for_url(lambda url: path in url)
            assert one.locator("nav.side").count() == 1  # a whole page, not a part of one
            one.wait_for_selector(shown)

        page.goto("/tasks/")
        page.goto("/tasks/?status=waiting")
        page.locator("a[data-row]").first.click()
        see(page, f"/tasks/{asked.task_id}/", "#task-vitals[data-status=waiting]")
        page.goto("/approvals/")
        page.goto(here)
        twin = page.context.new_page()
        twin.goto(here)
        twin.get_by_role("button", name="Approve", exact=True).wait_for()
        twin.evaluate("Object.defineProperty(document, 'hidden', {get: () => true})")  # no polls
        page.get_by_role("button", name="Approve", exact=True).click()
        page.wait_for_selector("#state[data-status=approved]")
        page.go_back()
        see(page, "/approvals/", "main >> text=No approvals waiting")
        page.go_back()
        page.go_back()
        see(page, "/tasks/?status=waiting", f"#row-{asked.task_id}")
        for _ in range(3):
            page.go_forward()
        see(page, here, "#state[data-status=approved]")
        page.reload()
        see(page, here, "#state[data-status=approved]")
        twin.get_by_role("button", name="Approve", exact=True).click()  # the old button
        twin.get_by_text("already approved").first.wait_for()
        assert {path.split("/")[1] for path in Cache.kept} <= {"static"}
        page.get_by_role("button", name="Sign out").click()
        page.wait_for_url("**/login/**")
        kept = page.evaluate("JSON.stringify([{...localStorage}, {...sessionStorage}])")
        assert kept == "[{},{}]"
        page.go_back()
        page.wait_for_url("**/login/**")
    wait_until(lambda: Approval.objects.get().status == "approved", 5)
