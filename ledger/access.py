"""Who may do what: the scopes, and the roles (Django groups) that hold them."""

from __future__ import annotations

from typing import Any

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
