"""Who may do what: the scopes, and the roles (Django groups) that hold them."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Iterable, Sequence
from typing import Any

from django.contrib.auth import get_user_model

READ = "read"
SUBMIT = "submit"
OPERATE = "operate"
APPROVE = "approve"
SCOPES = (READ, SUBMIT, OPERATE, APPROVE)

AUDIT = "audit"
"""To read the audit log: of everybody, so not for who is limited to lanes or sees no contents."""

TOKEN_SCOPES = (*SCOPES, AUDIT)
"""What a token can have."""

ADMIN = "admin"
"""To edit raw rows, people and roles: for people only."""

PAYLOAD = "payload"
"""To be shown contents, not only statuses, times and names. Had unless it is taken away."""

ROLES: dict[str, frozenset[str]] = {
    "viewer": frozenset({READ, PAYLOAD}),
    "approver": frozenset({READ, APPROVE, PAYLOAD}),
    "operator": frozenset({*SCOPES, PAYLOAD}),
    "admin": frozenset({*SCOPES, PAYLOAD, AUDIT, ADMIN}),
}
"""Name of a Django group -> the scopes of its members; each role includes the ones before it."""


LIKES = ("zone", "hours", "theme", "density", "keys", "view")
"""What a person chooses of how the pages look: the columns of a Preference."""


@dataclasses.dataclass(frozen=True, slots=True)
class Sight:
    """What a person may do, and in which lanes (None: all).

    `likes` is what they have chosen of LIKES, empty for nothing; None when it was not read.
    """

    scopes: frozenset[str] = frozenset()
    lanes: frozenset[str] | None = None
    likes: dict[str, Any] | None = dataclasses.field(default=None, compare=False)


def find_sight(user: Any) -> Sight:
    """Of a signed-in person; a superuser has all, who is in no group has no scope. One query."""
    if not user.is_authenticated or not user.is_active:
        return Sight()
    if getattr(user, "is_superuser", False):
        return Sight(ROLES["admin"])
    columns = ["longwatch_reach__lanes", "longwatch_reach__payload"]
    columns += [f"longwatch_preference__{name}" for name in LIKES]
    if hasattr(user, "groups"):  # a foreign user model may have none
        columns.append("groups__name")
    rows: list[Any] = list(_select_columns(get_user_model(), tuple(columns)).filter(pk=user.pk))
    names = [name for row in rows for name in row[2 + len(LIKES) :]]
    scopes = frozenset().union(*(ROLES.get(name, ()) for name in names))
    first: list[Any] = list(rows[0]) if rows else [None, True, *(None for _ in LIKES)]
    lanes, payload, chosen = first[0], first[1], first[2 : 2 + len(LIKES)]
    likes = dict(zip(LIKES, chosen, strict=True)) if chosen[1] is not None else {}
    return dataclasses.replace(limit_sight(scopes, lanes, payload is not False), likes=likes)


@functools.cache
def _select_columns(users: Any, columns: tuple[str, ...]) -> Any:
    """Never read itself; each poll asks for them, and finding the tables to join takes long."""
    return users._default_manager.values_list(*columns)


def limit_sight(scopes: Iterable[str], lanes: Iterable[str] | None, payload: bool) -> Sight:
    """The scopes within a reach: who does not see everything administers nothing."""
    kept = frozenset(scopes) - (frozenset() if payload else {PAYLOAD})
    if lanes is not None or not payload:
        kept -= {ADMIN, AUDIT}
    return Sight(kept, None if lanes is None else frozenset(lanes))


def list_scopes(user: Any) -> frozenset[str]:
    """The scopes of a signed-in person; see `find_sight`."""
    return find_sight(user).scopes


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


def list_memberships(actor: str) -> frozenset[str]:
    """What an actor may be asked as: by itself, and as a member of its groups (`group:legal`)."""
    users: Any = get_user_model()
    kind, _, key = actor.partition(":")
    if kind != "user" or not hasattr(users, "groups"):
        return frozenset({actor})
    names = users._default_manager.filter(pk=key, is_active=True).values_list("groups__name")
    return frozenset({actor, *(f"group:{name}" for (name,) in names if name)})
