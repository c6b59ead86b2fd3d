"""Users and roles without a shell."""

from __future__ import annotations

from typing import Any

import pytest
from django.contrib.auth.models import Group, User
from django.test import Client
from django.urls import reverse

from ledger.access import ROLES, list_scopes
from ledger.models import AuditEntry
from tests.admin.test_pages import locate
from tests.dashboard.conftest import PASSWORD, make_user


@pytest.fixture(autouse=True)
def roles(db: None) -> None:
    """The groups that migrations made; another test may have emptied the table since."""
    for name in ROLES:
        Group.objects.get_or_create(name=name)


def fill(person: User, **changes: Any) -> dict[str, Any]:
    """The form of a user's page, as it stands, with `changes`."""
    joined = person.date_joined
    return {
        "username": person.username, "first_name": "", "last_name": "", "email": "",
        "is_active": "on", "date_joined_0": f"{joined:%Y-%m-%d}",
        "date_joined_1": f"{joined:%H:%M:%S}",
        "groups": [str(pk) for pk in person.groups.values_list("pk", flat=True)], **changes,
    }  # fmt: skip


def find_group(name: str) -> str:
    return str(Group.objects.get(name=name).pk)


def test_a_group_that_is_made_or_renamed_is_in_the_audit_log(admin: Client) -> None:
    """Questions are for groups by their names, so a new name decides who may answer."""
    assert admin.post(locate(Group, "add"), {"name": "legal"}).status_code == 302
    key = find_group("legal")
    assert admin.post(locate(Group, "change", key), {"name": "law"}).status_code == 302
    rows = AuditEntry.objects.filter(target=f"group:{key}").order_by("id")
    assert list(rows.values_list("action", "before", "after")) == [
        ("add_group", None, {"name": "legal"}),
        ("change_group", {"name": "legal"}, {"name": "law"}),
    ]
    assert {row.actor.partition(":")[0] for row in rows} == {"user"}


def test_an_admin_adds_an_operator_who_then_signs_in(admin: Client) -> None:
    body = {"username": "eve", "password1": PASSWORD, "password2": PASSWORD,
            "usable_password": "true"}  # fmt: skip
    assert admin.post(locate(User, "add"), body).status_code == 302
    eve = User.objects.get(username="eve")
    assert list_scopes(eve) == frozenset()
    body = fill(eve, groups=[find_group("operator")])
    assert admin.post(locate(User, "change", eve.pk), body).status_code == 302

    client = Client()
    assert client.post("/login/", {"username": "eve", "password": PASSWORD}).status_code == 302
    assert client.get("/").status_code == 200
    assert client.get(reverse("admin:index"), follow=True).status_code == 403

    entries = (
        AuditEntry.objects.filter(allowed=True)
        .exclude(action__startswith="sign_in")
        .order_by("id")
        .values_list("action", "target", "after")
    )
    assert [(action, target) for action, target, _ in entries] == [
        ("add_user", f"user:{eve.pk}"), ("change_user", f"user:{eve.pk}"),
    ]  # fmt: skip
    assert entries[1][2]["groups"] == ["operator"]
    assert not entries[1][2]["superuser"]


def test_a_role_is_taken_away_at_once(admin: Client) -> None:
    person = make_user("operator", "leaver")
    client = Client()
    client.force_login(person)
    assert client.get("/").status_code == 200
    body = fill(person, is_active=None)
    del body["is_active"]
    assert admin.post(locate(User, "change", person.pk), body).status_code == 302
    assert client.get("/").status_code == 302


def test_an_admin_does_not_become_a_superuser(admin: Client) -> None:
    root = make_user("superuser")
    own = User.objects.get(username="admin")
    body = fill(own, is_superuser="on", is_staff="on")
    assert admin.post(locate(User, "change", own.pk), body).status_code == 302
    assert admin.post(locate(User, "change", root.pk), fill(root)).status_code == 403
    new = {"password1": PASSWORD + "x", "password2": PASSWORD + "x", "usable_password": "true"}
    path = reverse("admin:auth_user_password_change", args=[root.pk])
    assert admin.post(path, new).status_code == 403
    own.refresh_from_db()
    assert not own.is_superuser
    assert not own.is_staff
    assert User.objects.get(pk=root.pk).check_password(PASSWORD)


def test_a_superuser_makes_one(admin: Client) -> None:
    client = Client()
    client.force_login(make_user("superuser"))
    person = make_user("viewer", "second")
    body = fill(person, is_superuser="on")
    assert client.post(locate(User, "change", person.pk), body).status_code == 302
    assert User.objects.get(pk=person.pk).is_superuser


def test_whom_the_record_names_is_not_deleted(admin: Client) -> None:
    person = make_user("operator", "named")
    for row in (person, Group.objects.get(name="operator")):
        path = locate(type(row), "delete", row.pk)
        assert admin.post(path, {"post": "yes"}).status_code == 403
        body = {"action": "delete_selected", "_selected_action": [str(row.pk)], "post": "yes"}
        admin.post(locate(type(row), "changelist"), body)
        assert type(row).objects.filter(pk=row.pk).exists()


def test_roles_keep_their_names_and_other_groups_can_be_made(admin: Client) -> None:
    group = Group.objects.get(name="viewer")
    assert admin.post(locate(Group, "change", group.pk), {"name": "x"}).status_code == 403
    assert admin.post(locate(Group, "add"), {"name": "tenant a"}).status_code == 302
    assert Group.objects.filter(name="tenant a").exists()
    assert Group.objects.filter(name="viewer").exists()
