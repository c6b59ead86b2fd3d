"""API tokens: hashed, scoped, expiring, shown once."""

from __future__ import annotations

import contextlib
import datetime as dt
import hashlib
import secrets
from collections.abc import Iterable, Sequence
from typing import Any
from uuid import UUID

from django.db import IntegrityError
from django.db.models import BooleanField, ExpressionWrapper, Q

from ledger import clock, sql
from ledger.access import AUDIT, TOKEN_SCOPES
from ledger.auditing import write_entry
from ledger.calls import read_call
from ledger.errors import AlreadySettled, InvalidInput, NotFound
from ledger.models import ApiToken

PREFIX = "lw_"
"""Lets a scanner for leaked secrets know one when it sees one."""

MAX_DAYS = 3650
MAX_LANES = 100
MAX_OVERLAP = dt.timedelta(days=30)
USE_NOTED_EVERY = 60.0
"""Seconds: `last_used_at` is that coarse, so that a busy client does not write at each call."""


def make_token(
    name: str,
    scopes: Sequence[str],
    *,
    created_by: str,
    days: int | None = None,
    lanes: Sequence[str] | None = None,
    payload: bool = True,
    owner: str = "",
    key: UUID | None = None,
) -> tuple[ApiToken, str]:
    """A new token and its text, which is kept nowhere. Raises InvalidInput.

    With `lanes` nothing exists for it outside of them; without `payload` it sees no contents. An
    `owner` (`user:3`) is who it works for: neither answers what the other submitted. `key` becomes
    its id; AlreadySettled when there is one of it, so that a form sent twice makes one.

    256 random bits need no slow hash: there is nothing to guess that a salt would slow down.
    """
    unknown = sorted(set(scopes) - set(TOKEN_SCOPES))
    if unknown or not scopes:
        wrong = f"{unknown[0]!r} is no scope" if unknown else "is empty"
        raise InvalidInput("scope", f"{wrong}; give one or more of {', '.join(TOKEN_SCOPES)}.")
    if AUDIT in scopes and not (payload and lanes is None):
        raise InvalidInput("scope", "audit is for tokens that see every lane and all contents.")
    if not 1 <= len(name) <= 100 or not name.isprintable():
        raise InvalidInput("name", "takes 1 to 100 printable characters.")
    if days is not None and not 1 <= days <= MAX_DAYS:
        raise InvalidInput("days", f"takes 1 to {MAX_DAYS}.")
    lanes = None if lanes is None else check_lanes(lanes)
    text = PREFIX + secrets.token_urlsafe(32)
    now = clock.read()
    row = ApiToken(
        **({} if key is None else {"id": key}),
        name=name,
        digest=_hash_text(text),
        scopes=[scope for scope in TOKEN_SCOPES if scope in scopes],
        lanes=lanes,
        payload=payload,
        created_by=created_by,
        owner=owner[:200],
        created_at=now,
        expires_at=None if days is None else now + dt.timedelta(days=days),
    )
    try:
        with sql.atomic():
            ApiToken.objects.bulk_create([row])
            write_entry(
                created_by, "create_token", name_row(row), at=now, after=describe_token(row)
            )
    except IntegrityError:  # also of the same form, sent twice at once
        if key is None:
            raise
        raise AlreadySettled(f"The making of the token {name}") from None
    return row, text


def check_lanes(lanes: Sequence[str]) -> list[str]:
    """Names of lanes, each once, in order. Raises InvalidInput."""
    names = sorted({lane.strip() for lane in lanes} - {""})
    wrong = [name for name in names if len(name) > 100 or not name.isprintable()]
    if wrong or not 1 <= len(names) <= MAX_LANES:
        raise InvalidInput("lane", f"takes 1 to {MAX_LANES} names of at most 100 characters.")
    return names


def find_token(text: str) -> ApiToken | None:
    """The valid token with this text; None for an unknown, expired or revoked one."""
    lives = Q(expires_at__isnull=True) | Q(expires_at__gt=clock.now())
    idle = Q(last_used_at__isnull=True) | Q(last_used_at__lt=clock.now(-USE_NOTED_EVERY))
    rows = ApiToken.objects.filter(lives, digest=_hash_text(text), revoked_at__isnull=True)
    row = rows.annotate(idle=ExpressionWrapper(idle, BooleanField())).first()
    if row is not None and row.idle:
        # Only now and then: on SQLite even an update of no row takes the one write lock.
        ApiToken.objects.filter(idle, pk=row.pk).update(
            last_used_at=clock.now(), last_used_from=read_call().address[:64]
        )
    return row


def rotate_token(
    wanted: str,
    *,
    by: str,
    overlap: dt.timedelta,
    days: int | None = None,
    key: UUID | None = None,
) -> tuple[ApiToken, str]:
    """A new token in the place of the valid one with this id or (only) name, and its text.

    The old one ends after `overlap`, or earlier if it would anyway; until then both are good. The
    new one has its rights and its owner, and lasts `days`, or as long as the old one was made for.
    `key` as of `make_token`. Raises NotFound, AlreadySettled, and InvalidInput for an overlap out
    of 0 to 30 days or a name that several have.
    """
    if not dt.timedelta() <= overlap <= MAX_OVERLAP:
        raise InvalidInput("overlap", "takes 0 to 720 hours.")
    with sql.atomic():
        old = _find_valid(wanted)
        lives = old.expires_at - old.created_at if old.expires_at else None
        row, text = make_token(
            old.name, old.scopes, created_by=by, lanes=old.lanes, payload=old.payload,
            owner=old.owner, key=key,
            days=days if days or lives is None else max(1, round(lives / dt.timedelta(days=1))),
        )  # fmt: skip
        ends = row.created_at + overlap
        if old.expires_at is None or old.expires_at > ends:
            ApiToken.objects.filter(pk=old.pk, revoked_at__isnull=True).update(expires_at=ends)
            before, old.expires_at = describe_token(old), ends
            write_entry(
                by, "rotate_token", name_row(old), reason=f"{name_row(row)} takes its place",
                before=before, after=describe_token(old),
            )  # fmt: skip
    return row, text


def _find_valid(wanted: str) -> ApiToken:
    rows = ApiToken.objects.select_for_update().filter(
        Q(expires_at__isnull=True) | Q(expires_at__gt=clock.now()), revoked_at__isnull=True
    )
    try:
        found = list(rows.filter(pk=UUID(wanted)))
    except ValueError:
        found = list(rows.filter(name=wanted)[:2])
    if not found:
        raise NotFound("valid token", wanted)
    if len(found) > 1:
        raise InvalidInput("name", "several valid tokens have it; give the id.")
    return found[0]


def name_token(text: str) -> str:
    """`token:ID` of a text that is a token's, also of one that ended; else empty."""
    key = ApiToken.objects.filter(digest=_hash_text(text)).values_list("pk", flat=True).first()
    return f"token:{key}" if key else ""


def revoke_token(token_id: UUID, *, by: str) -> bool:
    """Make a token invalid for good, on record; False when there is none to revoke."""
    with sql.atomic():
        row = ApiToken.objects.filter(pk=token_id, revoked_at__isnull=True).first()
        if row is None or not ApiToken.objects.filter(pk=row.pk, revoked_at__isnull=True).update(
            revoked_at=clock.now()
        ):
            return False
        write_entry(by, "revoke_token", name_row(row), reason=row.name)
    return True


def find_principal(actor: str) -> str:
    """Who stands behind an actor (`user:3`, `token:ID`): of a token with an owner that one."""
    return find_principals([actor])[actor]


def find_principals(actors: Iterable[str]) -> dict[str, str]:
    """The same of many, with one statement where there is a token among them."""
    found = {actor: actor for actor in actors}
    tokens: dict[UUID, str] = {}
    for actor in found:
        kind, _, text = actor.partition(":")
        if kind == "token":
            with contextlib.suppress(ValueError):
                tokens[UUID(text)] = actor
    if tokens:
        owners = ApiToken.objects.filter(pk__in=tokens).values_list("pk", "owner")
        found |= {tokens[key]: owner for key, owner in owners if owner}
    return found


def name_row(row: ApiToken) -> str:
    """The token as actors and targets are written: `token:ID`."""
    return f"token:{row.pk}"


def describe_token(row: ApiToken) -> dict[str, Any]:
    """What of a token is on record: nothing that its text could be found by."""
    return {
        "name": row.name,
        "scopes": row.scopes,
        "lanes": row.lanes,
        "payload": row.payload,
        "owner": row.owner,
        "expires_at": row.expires_at.isoformat() if row.expires_at else None,
    }


def _hash_text(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()
