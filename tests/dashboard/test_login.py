"""Signing in by password and by the one-time link; where one goes after."""

from __future__ import annotations

from typing import Any

import pytest
from django.conf import settings
from django.contrib.sessions.models import Session
from django.test import Client
from django.urls import reverse

from dashboard import login
from ledger import clock
from ledger.models import AuditEntry
from tests.dashboard.conftest import PASSWORD, make_user

LOGIN = "/login/"


@pytest.fixture
def user(db: None) -> Any:
    """An operator."""
    return make_user("operator")


def post(client: Client, name: str = "operator", password: str = PASSWORD, **more: str) -> Any:
    """Send the form."""
    return client.post(LOGIN, {"username": name, "password": password, **more})


def test_name_and_password_lead_to_the_page_asked_for(user: Any) -> None:
    client = Client()
    back = client.get("/approvals/")["Location"]
    assert client.get(back).status_code == 200
    response = post(client, next="/approvals/")
    assert (response.status_code, response["Location"]) == (302, "/approvals/")
    assert client.get("/approvals/").status_code == 200


@pytest.mark.parametrize(("name", "password"), [("operator", "wrong"), ("nobody", PASSWORD)])
def test_a_wrong_name_and_a_wrong_password_read_the_same(
    user: Any, name: str, password: str
) -> None:
    response = post(Client(), name, password)
    assert response.status_code == 422
    assert b"That name and password" in response.content


@pytest.mark.both_databases
def test_tries_are_counted_by_name_and_address(user: Any) -> None:
    client = Client()
    for left in ("4 tries left", "3 tries left", "2 tries left", "1 try left", "the last try"):
        assert left in post(client, password="wrong").content.decode()
    locked = post(client)  # the right password too, or the limit would limit nothing
    assert locked.status_code == 429
    assert "Too many tries with this name. Wait 10 minutes" in locked.content.decode()
    assert 590 <= int(locked["Retry-After"]) <= 600
    assert AuditEntry.objects.count() == 5  # a refused try is not one more
    # Somebody else, and the same person elsewhere, still get in.
    assert post(Client(), "nobody").status_code == 422
    assert client.post(LOGIN, {"username": "operator", "password": PASSWORD},
                       REMOTE_ADDR="192.0.2.7").status_code == 302  # fmt: skip
    clock.offset = 550.0
    assert "Wait a minute" in post(client).content.decode()
    clock.offset = 601.0
    assert post(client).status_code == 302


@pytest.mark.both_databases
def test_a_sign_in_forgets_the_tries_before(user: Any) -> None:
    for _ in range(4):
        post(Client(), password="wrong")
    assert post(Client()).status_code == 302
    assert "4 tries left" in post(Client(), password="wrong").content.decode()


def test_a_wrong_name_is_not_kept_in_words(user: Any) -> None:
    post(Client(), "my secret password", "x")
    entry = AuditEntry.objects.get()
    assert "secret" not in repr(vars(entry))
    assert (entry.action, entry.allowed, entry.address) == ("sign_in_try", False, "127.0.0.1")


@pytest.mark.parametrize(
    ("remote", "forwarded", "address"),
    [
        ("127.0.0.1", "203.0.113.9", "203.0.113.9"),
        ("127.0.0.1", "10.0.0.1, 203.0.113.9", "203.0.113.9"),
        ("127.0.0.1", "", "127.0.0.1"),
        ("198.51.100.4", "203.0.113.9", "198.51.100.4"),
    ],
)
def test_only_a_proxy_on_this_machine_names_the_address(
    user: Any, remote: str, forwarded: str, address: str
) -> None:
    data = {"username": "operator", "password": "wrong"}
    Client().post(LOGIN, data, REMOTE_ADDR=remote, headers={"X-Forwarded-For": forwarded})
    assert AuditEntry.objects.get().address == address


@pytest.mark.parametrize("stay", [False, True])
def test_a_session_ends_with_the_browser_unless_asked_otherwise(user: Any, stay: bool) -> None:
    client = Client()
    post(client, **({"stay": "on"} if stay else {}))
    age = client.cookies[settings.SESSION_COOKIE_NAME]["max-age"]
    assert age == (14 * 86_400 if stay else "")


def test_an_ended_session_says_so_and_where_one_returns(user: Any) -> None:
    never = Client().get(Client().get("/tasks/")["Location"])
    assert b"session has ended" not in never.content
    client = Client()
    client.force_login(user)
    Session.objects.all().delete()
    path = "/tasks/01a226da-0000-7000-8000-00000000db66/"
    where = client.get(path)["Location"]
    assert client.cookies.pop(settings.SESSION_COOKIE_NAME)["max-age"] == 0  # as a browser does
    wrong = post(client, password="wrong", next=path, ended="1")
    for response in (client.get(where), wrong):
        assert "Your session has ended." in response.content.decode()
        assert "01a226da…db66" in response.content.decode()
    assert post(client, next=path, ended="1")["Location"] == path


@pytest.mark.parametrize(
    "goal",
    ["https://evil.example/", "//evil.example/", "/\\evil.example", "javascript:alert(1)",
     "http:///evil.example", "evil.example", "/\t/evil.example", "", "///evil.example/",
     "/\\\\evil.example", "https:evil.example", "https:/evil.example", "#fragment", "JaVaScRiPt:1"],
)  # fmt: skip
@pytest.mark.case(68)
def test_nobody_is_sent_to_another_site(user: Any, goal: str) -> None:
    assert post(Client(), next=goal)["Location"] == "/"
    client = Client()
    client.force_login(user)
    assert client.get(LOGIN, {"next": goal})["Location"] == "/"


def test_the_link_signs_in_once(user: Any) -> None:
    link = login.make_link(user)
    first = Client()
    response = first.get(link)
    assert (response.status_code, response["Location"]) == (302, "/")
    assert first.get("/").status_code == 200
    second = Client()
    assert second.get(link).status_code == 410
    assert second.get("/").status_code == 302
    # The browser that spent it goes on: a reload is no reason to lock anybody out.
    assert first.get(link).status_code == 302


def test_only_a_get_spends_the_link(user: Any) -> None:
    link = login.make_link(user)
    assert Client().head(link).status_code == 405
    assert Client().post(link).status_code == 405
    assert Client().get(link).status_code == 302


def test_the_link_goes_to_the_page_asked_for_on_this_site(user: Any) -> None:
    assert Client().get(f"{login.make_link(user)}?next=/approvals/")["Location"] == "/approvals/"
    user.refresh_from_db()
    assert Client().get(f"{login.make_link(user)}?next=//evil.example")["Location"] == "/"


def test_a_link_of_ten_minutes_ago_is_dead(user: Any) -> None:
    tokens = login.tokens
    now = tokens._num_seconds(tokens._now())
    for age, lives in ((login.LINK_SECONDS - 30, True), (login.LINK_SECONDS + 5, False)):
        token = tokens._make_token_with_timestamp(user, now - age, tokens.secret)
        assert tokens.check_token(user, token) is lives


def test_a_new_password_kills_the_link(user: Any) -> None:
    link = login.make_link(user)
    user.set_password("another long password")
    user.save()
    assert Client().get(link).status_code == 410


def test_a_locked_account_has_no_link(user: Any) -> None:
    link = login.make_link(user)
    type(user).objects.filter(pk=user.pk).update(is_active=False)
    assert Client().get(link).status_code == 410


@pytest.mark.parametrize("key", ["!", "MTIz", "AAAA", "_w", "Mjk5OTk5OTk5OTk5OTk5OTk5OTk5"])
def test_a_made_up_link_is_no_link(user: Any, key: str) -> None:
    assert Client().get(reverse("dashboard:login-link", args=[key, "a-b"])).status_code == 410


def test_a_link_of_another_purpose_is_no_link(user: Any) -> None:
    """Django's own tokens for resetting passwords are made from the same facts."""
    from django.contrib.auth.tokens import default_token_generator

    key = login.make_link(user).split("/")[3]
    token = default_token_generator.make_token(user)
    assert Client().get(reverse("dashboard:login-link", args=[key, token])).status_code == 410


def test_of_two_that_follow_a_link_at_once_one_gets_in(
    user: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The other follows it between the check of the first and its write."""
    _, _, _, key, token, _ = login.make_link(user).split("/")
    check, others = login.tokens.check_token, []

    def check_then_lose(someone: Any, given: str) -> bool:
        good = check(someone, given)
        monkeypatch.undo()
        others.append(login.spend_link(key, given))
        return good

    monkeypatch.setattr(login.tokens, "check_token", check_then_lose)
    assert login.spend_link(key, token) is None
    assert others == [user]


def test_a_sign_in_within_the_second_kills_the_link(user: Any) -> None:
    """Django's hash keeps whole seconds of the last sign-in; ours keeps all of it."""
    client = Client()
    client.get(login.make_link(user))
    user.refresh_from_db()
    link = login.make_link(user)
    assert Client().get(link).status_code == 302
    assert Client().get(link).status_code == 410


def test_signing_out_is_a_form(user: Any) -> None:
    client = Client()
    client.force_login(user)
    assert client.get("/logout/").status_code == 405
    assert client.post("/logout/")["Location"] == LOGIN
    assert client.get("/").status_code == 302
