"""/healthz: can the product do its work? /readyz: can this web process? Open to balancers."""

from __future__ import annotations

import logging

from django.db import DatabaseError, InterfaceError, connection, transaction
from django.http import HttpRequest, JsonResponse
from django.utils.cache import add_never_cache_headers

from ledger import queries
from ledger.canonical import clean_text

logger = logging.getLogger(__name__)

NO_WORKER = "no worker beats"


@transaction.non_atomic_requests
def show_readiness(request: HttpRequest) -> JsonResponse:
    """200, or 503 with the reason: the database does not answer."""
    return _answer(_find_database_troubles())


@transaction.non_atomic_requests
def show_health(request: HttpRequest) -> JsonResponse:
    """200, or 503 with the reasons: the database is away, no worker beats."""
    return _answer(_find_database_troubles() or _find_worker_troubles())


def _find_database_troubles() -> list[str]:
    try:
        with connection.cursor() as cursor:
            cursor.execute("SELECT 1 FROM longwatch_task LIMIT 1")
        return []
    except (DatabaseError, InterfaceError) as error:
        logger.warning("The database does not answer: %s", clean_text(error, 500))
        connection.close()
        return [_name_trouble(str(error))]


def _name_trouble(message: str) -> str:
    """In words of our own: the driver's tell strangers hosts and user names."""
    if "too many" in message or "remaining connection slots" in message:
        return "database connections exhausted"
    if "no such table" in message or "does not exist" in message:
        return "the database has no ledger; run manage.py migrate"
    return "the database does not answer"


def _find_worker_troubles() -> list[str]:
    try:
        return [] if queries.count_workers() else [NO_WORKER]
    except (DatabaseError, InterfaceError) as error:
        return [_name_trouble(str(error))]


def _answer(reasons: list[str]) -> JsonResponse:
    body = {"status": "unavailable" if reasons else "ok", "reasons": reasons}
    response = JsonResponse(body, status=503 if reasons else 200)
    add_never_cache_headers(response)
    return response
