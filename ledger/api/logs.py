"""/tasks/{id}/log: what an attempt logged and printed, also while it runs."""

from __future__ import annotations

from typing import Literal
from uuid import UUID

from django.http import HttpRequest, HttpResponse
from ninja import Router
from pydantic import BaseModel

from ledger import queries
from ledger.access import READ
from ledger.api.auth import require_scope

router = Router(tags=["tasks"])

_TEXT = {"responses": {200: {"content": {"text/plain": {"schema": {"type": "string"}}}}}}


class LogOut(BaseModel):
    """A part of a log; ask again with `after` = `next` for what comes then."""

    task: UUID
    step: str
    turn: int
    fence: int
    state: str
    text: str
    next: int
    artifact: UUID | None
    finished: bool


@router.get("/{task_id}/log", response=LogOut, openapi_extra=_TEXT)
def show_log(
    request: HttpRequest,
    task_id: UUID,
    unit: str = "",
    fence: int = 0,
    after: int = 0,
    format: Literal["json", "text"] = "json",
) -> HttpResponse | dict[str, object]:
    """The log of the unit that runs, or of the last attempt there was.

    Or of `unit` (`STEP:TURN`), or of one attempt (`fence`). As text it is all that there is, and
    `Longwatch-Next` says where it ends.
    """
    require_scope(request, READ)
    found = queries.read_log(
        task_id, unit=unit.replace("\0", ""), fence=fence, after=after, whole=format == "text"
    )
    if format == "json":
        return found
    headers = {"Longwatch-Next": str(found["next"]), "X-Content-Type-Options": "nosniff"}
    return HttpResponse(found["text"], "text/plain; charset=utf-8", headers=headers)
