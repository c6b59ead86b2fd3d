"""Who calls: a bearer token or the site's session, and what that may do."""

from __future__ import annotations

import dataclasses
from typing import Any

from django.conf import settings
from django.http import HttpRequest
from ninja.errors import AuthenticationError
from ninja.security import APIKeyCookie, HttpBearer
from ninja.utils import check_csrf

from ledger.access import PAYLOAD, Sight, find_sight, limit_sight
from ledger.api.edge import NOBODY, name_stranger, refuse_request
from ledger.calls import narrow_call
from ledger.errors import NotAllowed
from ledger.events import Actor
from ledger.tokens import find_token, name_token


class CsrfFailed(NotAllowed):
    """A write by a browser's session that does not prove it came from our pages."""

    code = "csrf_failed"


@dataclasses.dataclass(frozen=True, slots=True)
class Caller:
    """Who is on record for what the request does, and the scopes it has."""

    actor: Actor
    scopes: frozenset[str]


class TokenAuth(HttpBearer):
    """`Authorization: Bearer …`; a header that is wrong is refused, whatever the session says."""

    def __call__(self, request: HttpRequest) -> Caller | None:
        """The token's caller, or None when there is no such header."""
        if "Authorization" not in request.headers:
            return None
        caller = super().__call__(request)
        if caller is None:
            text = request.headers["Authorization"].rpartition(" ")[2]
            refuse_request(request, name_token(text) or NOBODY, "no valid token")
            raise AuthenticationError
        return caller  # type: ignore[no-any-return]

    def authenticate(self, request: HttpRequest, token: str) -> Caller | None:
        """The caller that a valid token stands for."""
        row = find_token(token.strip())
        if row is None:
            return None
        scopes = [*row.scopes, PAYLOAD]
        return _enter(Actor("token", str(row.pk)), limit_sight(scopes, row.lanes, row.payload))


class SessionAuth(APIKeyCookie):
    """The signed-in person of the pages; writes need the CSRF token that pages have."""

    param_name = settings.SESSION_COOKIE_NAME

    def __call__(self, request: HttpRequest) -> Caller | None:
        """The person's caller, or None when nobody is signed in."""
        return self.authenticate(request, None)

    def authenticate(self, request: HttpRequest, key: str | None) -> Caller | None:
        """As above. A stranger is told to sign in before anything about CSRF."""
        user: Any = getattr(request, "user", None)
        if user is None or not user.is_authenticated:
            refuse_request(request, name_stranger(request), "not signed in")
            return None
        if check_csrf(request) is not None:
            raise CsrfFailed("Send the CSRF token of your session in X-CSRFToken.")
        return _enter(Actor("user", str(user.pk)), find_sight(user))


def _enter(actor: Actor, sight: Sight) -> Caller:
    """The caller; from here on the request sees no more than it does."""
    narrow_call(str(actor), sight.lanes, PAYLOAD in sight.scopes)
    return Caller(actor, sight.scopes)


def require_scope(request: HttpRequest, scope: str) -> Actor:
    """The actor of a request that may do what `scope` covers. Raises NotAllowed."""
    actor, _ = require_any(request, scope)
    return actor


def require_any(request: HttpRequest, *scopes: str) -> tuple[Actor, frozenset[str]]:
    """The actor of a request with one of `scopes`, and all scopes it has. Raises NotAllowed."""
    caller: Caller = request.auth  # type: ignore[attr-defined]
    if caller.scopes.isdisjoint(scopes):
        wanted = " or ".join(map(repr, scopes))
        raise NotAllowed(f"This needs the scope {wanted}, which the caller does not have.")
    return caller.actor, caller.scopes
