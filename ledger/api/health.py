"""/healthz: can the product do its work? /readyz: can this web process? Open to balancers."""

from __future__ import annotations

from django.db import DatabaseError, InterfaceError, transaction
from django.http import HttpRequest, JsonResponse
from django.utils.cache import add_never_cache_headers

from ledger import queries
from ledger.outages import find_troubles, name_trouble

NO_WORKER = "no worker beats"


@transaction.non_atomic_requests
def show_readiness(request: HttpRequest) -> JsonResponse:
    """200, or 503 with the reason: the database can't be read, so that no page can be shown."""
    return _answer(find_troubles(writes=False))


@transaction.non_atomic_requests
def show_health(request: HttpRequest) -> JsonResponse:
    """200, or 503 with the reasons: the database can't be written, no worker beats."""
    return _answer(find_troubles(writes=True) or _find_worker_troubles())


def _find_worker_troubles() -> list[str]:
    try:
        return [] if queries.count_workers() else [NO_WORKER]
    except (DatabaseError, InterfaceError) as error:
        return [name_trouble(error)]


def _answer(reasons: list[str]) -> JsonResponse:
    body = {"status": "unavailable" if reasons else "ok", "reasons": reasons}
    response = JsonResponse(body, status=503 if reasons else 200)
    add_never_cache_headers(response)
    return response
