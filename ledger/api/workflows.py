"""/workflows, /workers, /stalled: what can be run, by whom, and what does not move."""

from __future__ import annotations

from typing import Any

from django.http import HttpRequest
from ninja import Router

from ledger import queries
from ledger.access import READ
from ledger.api.auth import require_scope
from ledger.api.schemas import PageOut, TaskBrief, WorkerOut, WorkflowOut
from ledger.queries import DEFAULT_LIMIT, Page

router = Router(tags=["fleet"])


@router.get("/workflows", response=PageOut[WorkflowOut])
def list_workflows(request: HttpRequest) -> Page[dict[str, Any]]:
    """Every workflow version that the web side or a live worker knows."""
    require_scope(request, READ)
    return Page(queries.list_workflows())


@router.get("/workers", response=PageOut[WorkerOut])
def list_workers(request: HttpRequest, limit: int = DEFAULT_LIMIT) -> Page[dict[str, Any]]:
    """Worker processes, last seen first; `live` ones beat."""
    require_scope(request, READ)
    return queries.list_workers(limit)


@router.get("/stalled", response=PageOut[TaskBrief])
def list_stalled(request: HttpRequest, limit: int = DEFAULT_LIMIT) -> Page[dict[str, Any]]:
    """Running tasks without progress for longer than they may be, the longest silent first."""
    require_scope(request, READ)
    return Page(queries.list_stalled(limit))
