"""Who may do what: the scopes, and the roles (Django groups) that hold them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from django.contrib.auth import get_user_model

READ = "read"
SUBMIT = "submit"
OPERATE = "operate"
APPROVE = "approve"
SCOPES = (READ, SUBMIT, OPERATE, APPROVE)
"""What a token can have."""

ADMIN = "admin"
"""To edit raw rows, people and roles: for people only."""

ROLES: dict[str, frozenset[str]] = {
    "viewer": frozenset({READ}),
    "approver": frozenset({READ, APPROVE}),
    "operator": frozenset(SCOPES),
    "admin": frozenset({*SCOPES, ADMIN}),
}
"""Name of a Django group -> the scopes of its members; each role includes the ones before it."""


def list_scopes(user: Any) -> frozenset[str]:
    """The scopes of a signed-in person; a superuser has all, who is in no group has none."""
    if not user.is_authenticated or not user.is_active:
        return frozenset()
    if getattr(user, "is_superuser", False):
        return ROLES["admin"]
    groups = getattr(user, "groups", None)  # a foreign user model may have none
    names = groups.filter(name__in=ROLES).values_list("name", flat=True) if groups else ()
    return frozenset().union(*(ROLES[name] for name in names))


def is_admin(user: Any) -> bool:
    """Whether the person has the scope ADMIN.

    Kept on the user object, as Django keeps permissions: a page of the admin asks thirty times.
    """
    if not hasattr(user, "_longwatch_admin"):
        user._longwatch_admin = ADMIN in list_scopes(user)
    return bool(user._longwatch_admin)


def is_assigned(actor: str, assignees: Sequence[str] | None) -> bool:
    """Whether a question for `assignees` (`user:3`, `token:ID`, `group:legal`; None: all) is for
    the `actor` (`user:3`)."""
    if assignees is None or actor in assignees:
        return True
    names = [one.partition(":")[2] for one in assignees if one.startswith("group:")]
    users: Any = get_user_model()
    kind, _, key = actor.partition(":")
    if kind != "user" or not names or not hasattr(users, "groups"):
        return False
    members = users._default_manager.filter(groups__name__in=names, is_active=True)
    return bool(members.filter(pk=key).exists())
