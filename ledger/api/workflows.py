"""/workflows, /workers, /stalled: what can be run, by whom, and what does not move."""

from __future__ import annotations

from typing import Any

from django.http import HttpRequest
from ninja import Router

from ledger import queries
from ledger.access import OPERATE, READ
from ledger.api.auth import require_scope
from ledger.api.bodies import DeclareDeadIn, TellWorkerIn
from ledger.api.schemas import FencedOut, PageOut, TaskBrief, ToldWorkersOut, WorkerOut, WorkflowOut
from ledger.queries import DEFAULT_LIMIT, Page
from ledger.transitions import workers

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


@router.post("/workers/{owner}/drain", response=ToldWorkersOut)
def drain_worker(
    request: HttpRequest, owner: str, body: TellWorkerIn | None = None
) -> dict[str, int]:
    """Let it end its unit and claim nothing more, or all of its cluster."""
    actor, told = require_scope(request, OPERATE), body or TellWorkerIn()
    return {"workers": workers.drain_worker(owner, actor=actor, **told.model_dump())}


@router.post("/workers/{owner}/undrain", response=ToldWorkersOut)
def undrain_worker(
    request: HttpRequest, owner: str, body: TellWorkerIn | None = None
) -> dict[str, int]:
    """Let it, or all of its cluster, claim again."""
    actor, told = require_scope(request, OPERATE), body or TellWorkerIn()
    return {"workers": workers.undrain_worker(owner, actor=actor, **told.model_dump())}


@router.post("/workers/{owner}/declare-dead", response=FencedOut)
def declare_dead(
    request: HttpRequest, owner: str, body: DeclareDeadIn | None = None
) -> dict[str, int]:
    """Take its leases away at once: the tasks are queued again, the process ends if it lives."""
    actor = require_scope(request, OPERATE)
    reason = (body or DeclareDeadIn()).reason
    return {"fenced": workers.declare_dead(owner, actor=actor, reason=reason)}


@router.get("/stalled", response=PageOut[TaskBrief])
def list_stalled(request: HttpRequest, limit: int = DEFAULT_LIMIT) -> Page[dict[str, Any]]:
    """Running tasks without progress for longer than they may be, the longest silent first."""
    require_scope(request, READ)
    return Page(queries.list_stalled(limit))
