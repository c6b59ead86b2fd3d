"""Where a request comes in: its address and id, and the audit log's entry for one that is refused.

The API, the pages and the admin answer inside of `answer_request`; nothing below them knows of
requests.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from django.contrib.auth import SESSION_KEY
from django.core.exceptions import PermissionDenied
from django.http import HttpRequest, HttpResponseBase

from ledger.auditing import record_refusal
from ledger.calls import Call, answer_call, read_call
from ledger.errors import LedgerError, NotAllowed
from ledger.ids import read_id

HEADER = "X-Request-ID"
NOBODY = "anonymous"
_SANE = re.compile(r"[A-Za-z0-9._-]{1,64}")


@contextmanager
def answer_request(request: HttpRequest) -> Iterator[Call]:
    """What is done inside is on record with the request's address and id."""
    given = request.headers.get(HEADER, "")
    request_id = given if _SANE.fullmatch(given) else secrets.token_hex(8)
    with answer_call(Call(read_address(request), request_id)) as call:
        yield call


@contextmanager
def noting_refusals(request: HttpRequest) -> Iterator[None]:
    """What is done inside is on record with the request's address, a refusal too."""
    if read_call().request_id:  # the whole admin site does so already
        yield
        return
    with answer_request(request):
        try:
            yield
        except PermissionDenied:
            refuse_request(request, f"user:{request.user.pk}", "not allowed in the admin")
            raise


def tell_request_id(response: HttpResponseBase, call: Call) -> None:
    """Put the id into the answer, for whoever asks about it later."""
    response.headers[HEADER] = call.request_id


def read_address(request: HttpRequest) -> str:
    """Who asks: what a proxy on this machine says, as nobody else comes from loopback."""
    address = str(request.META.get("REMOTE_ADDR") or "")
    if address in {"", "127.0.0.1", "::1"}:
        forwarded = request.headers.get("X-Forwarded-For", "")
        return forwarded.rpartition(",")[2].strip() or address
    return address


def name_stranger(request: HttpRequest) -> str:
    """Whose session it is that is no longer good (`user:3`, deactivated say); else `anonymous`."""
    session: Any = getattr(request, "session", None)
    key = session.get(SESSION_KEY) if session is not None else None
    return f"user:{key}" if key else NOBODY


def refuse_request(request: HttpRequest, actor: Any, why: str) -> None:
    """Put a refused request on record, by what it asked for.

    Who shows nothing to be known by and only looks is no more than a visitor at the door.
    """
    if str(actor) == NOBODY and request.method in {"GET", "HEAD", "OPTIONS"}:
        return
    match = request.resolver_match
    keys: dict[str, Any] = match.kwargs if match else {}
    route = match.url_name if match else None
    record_refusal(
        actor, f"{request.method} {keys.get('name') or route or ''}".strip(), request.path,
        task=read_id(keys.get("task_id")), why=why,
    )  # fmt: skip


def audit_error(request: HttpRequest, error: LedgerError) -> None:
    """Put on record what is an attempt at something out of bounds, unless the ledger did.

    That is what is not allowed, and for who is limited to lanes also what is not found: whether it
    is there in another lane makes no difference, to them or here.
    """
    refused = isinstance(error, NotAllowed) and not error.audited
    if refused or (error.status == 404 and read_call().lanes is not None):
        refuse_request(request, read_call().actor or _name_user(request), str(error))


def _name_user(request: HttpRequest) -> str:
    user: Any = getattr(request, "user", None)
    return f"user:{user.pk}" if user is not None and user.is_authenticated else NOBODY
