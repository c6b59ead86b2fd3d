"""Signing in by password and by the one-time link; where one goes after."""

from __future__ import annotations

from typing import Any

import pytest
from django.test import Client
from django.urls import reverse

from dashboard import login
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


@pytest.mark.parametrize(
    "goal",
    ["https://evil.example/", "//evil.example/", "/\\evil.example", "javascript:alert(1)",
     "http:///evil.example", "evil.example", "/\t/evil.example", ""],
)  # fmt: skip
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
