"""/audit: who did what, and who was refused. For admins, and tokens made with the scope `audit`."""

from __future__ import annotations

import datetime as dt
from typing import Any
from uuid import UUID

from django.http import HttpRequest
from ninja import Router

from ledger.access import AUDIT
from ledger.api.auth import require_scope
from ledger.api.schemas import AuditOut, PageOut
from ledger.errors import InvalidInput
from ledger.queries import DEFAULT_LIMIT, Page
from ledger.queries.audit import AuditFilter, list_audit

router = Router(tags=["audit"])


@router.get("", response=PageOut[AuditOut])
def list_entries(
    request: HttpRequest,
    actor: str = "",
    action: str = "",
    task: UUID | None = None,
    allowed: bool | None = None,
    since: dt.datetime | None = None,
    until: dt.datetime | None = None,
    limit: int = DEFAULT_LIMIT,
    cursor: str = "",
) -> Page[dict[str, Any]]:
    """The audit log, newest first; `actor` as `user:3` or `token:ID`, times with an offset."""
    require_scope(request, AUDIT)
    for name, moment in (("since", since), ("until", until)):
        if moment is not None and moment.tzinfo is None:
            raise InvalidInput(name, "needs an offset, such as 2026-01-31T12:00:00Z.")
    wanted = AuditFilter(actor, action, task, allowed, since, until)
    return list_audit(wanted, limit=limit, cursor=cursor)
