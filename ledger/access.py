"""Who may do what: four scopes, and the roles (Django groups) that hold them."""

from __future__ import annotations

from typing import Any

READ = "read"
SUBMIT = "submit"
OPERATE = "operate"
APPROVE = "approve"
SCOPES = (READ, SUBMIT, OPERATE, APPROVE)

ROLES: dict[str, frozenset[str]] = {
    "viewer": frozenset({READ}),
    "approver": frozenset({READ, APPROVE}),
    "operator": frozenset(SCOPES),
    "admin": frozenset(SCOPES),
}
"""Name of a Django group -> the scopes of its members; each role includes the ones before it."""


def list_scopes(user: Any) -> frozenset[str]:
    """The scopes of a signed-in person; a superuser has all, who is in no group has none."""
    if not user.is_authenticated or not user.is_active:
        return frozenset()
    if getattr(user, "is_superuser", False):
        return frozenset(SCOPES)
    groups = getattr(user, "groups", None)  # a foreign user model may have none
    names = groups.filter(name__in=ROLES).values_list("name", flat=True) if groups else ()
    return frozenset().union(*(ROLES[name] for name in names))


def is_admin(user: Any) -> bool:
    """True for who may edit raw rows, people and roles: superusers and the group `admin`.

    Kept on the user object, as Django keeps permissions: a page of the admin asks thirty times.
    """
    if not user.is_authenticated or not user.is_active:
        return False
    if not hasattr(user, "_longwatch_admin"):
        groups = getattr(user, "groups", None)
        user._longwatch_admin = getattr(user, "is_superuser", False) or bool(
            groups and groups.filter(name="admin").exists()
        )
    return bool(user._longwatch_admin)
