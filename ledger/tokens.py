"""API tokens: hashed, scoped, expiring, shown once."""

from __future__ import annotations

import datetime as dt
import hashlib
import secrets
from collections.abc import Sequence
from uuid import UUID

from django.db.models import BooleanField, ExpressionWrapper, Q

from ledger import clock
from ledger.access import SCOPES
from ledger.errors import InvalidInput
from ledger.models import ApiToken

PREFIX = "lw_"
"""Lets a scanner for leaked secrets know one when it sees one."""

MAX_DAYS = 3650
USE_NOTED_EVERY = 60.0
"""Seconds: `last_used_at` is that coarse, so that a busy client does not write at each call."""


def make_token(
    name: str, scopes: Sequence[str], *, created_by: str, days: int | None = None
) -> tuple[ApiToken, str]:
    """A new token and its text, which is kept nowhere. Raises InvalidInput.

    256 random bits need no slow hash: there is nothing to guess that a salt would slow down.
    """
    unknown = sorted(set(scopes) - set(SCOPES))
    if unknown or not scopes:
        wrong = f"{unknown[0]!r} is no scope" if unknown else "is empty"
        raise InvalidInput("scope", f"{wrong}; give one or more of {', '.join(SCOPES)}.")
    if not 1 <= len(name) <= 100 or not name.isprintable():
        raise InvalidInput("name", "takes 1 to 100 printable characters.")
    if days is not None and not 1 <= days <= MAX_DAYS:
        raise InvalidInput("days", f"takes 1 to {MAX_DAYS}.")
    text = PREFIX + secrets.token_urlsafe(32)
    now = clock.read()
    row = ApiToken(
        name=name,
        digest=_hash_text(text),
        scopes=[scope for scope in SCOPES if scope in scopes],
        created_by=created_by,
        created_at=now,
        expires_at=None if days is None else now + dt.timedelta(days=days),
    )
    ApiToken.objects.bulk_create([row])
    return row, text


def find_token(text: str) -> ApiToken | None:
    """The valid token with this text; None for an unknown, expired or revoked one."""
    lives = Q(expires_at__isnull=True) | Q(expires_at__gt=clock.now())
    idle = Q(last_used_at__isnull=True) | Q(last_used_at__lt=clock.now(-USE_NOTED_EVERY))
    rows = ApiToken.objects.filter(lives, digest=_hash_text(text), revoked_at__isnull=True)
    row = rows.annotate(idle=ExpressionWrapper(idle, BooleanField())).first()
    if row is not None and row.idle:
        # Only now and then: on SQLite even an update of no row takes the one write lock.
        ApiToken.objects.filter(idle, pk=row.pk).update(last_used_at=clock.now())
    return row


def revoke_token(token_id: UUID) -> bool:
    """Make a token invalid for good; False when there is none to revoke."""
    lives = ApiToken.objects.filter(pk=token_id, revoked_at__isnull=True)
    return bool(lives.update(revoked_at=clock.now()))


def _hash_text(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()
