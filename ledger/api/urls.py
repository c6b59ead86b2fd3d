"""Routes of the machine surface: the API below api/v1/, health outside it."""

from __future__ import annotations

from typing import Any

from django.http import HttpRequest, HttpResponse
from django.urls import URLPattern, URLResolver, path, re_path
from django.views.decorators.csrf import csrf_exempt
from ninja import NinjaAPI
from ninja.openapi.schema import OpenAPISchema

from ledger.api import (
    approvals,
    artifacts,
    audit,
    bulk,
    lanes,
    logs,
    metrics,
    tasks,
    transcripts,
    uploads,
    workflows,
)
from ledger.api.auth import SessionAuth, TokenAuth
from ledger.api.docs import PlainDocs
from ledger.api.errors import MEDIA_TYPE, install_handlers, show_unknown_path, wrap_view
from ledger.api.health import show_health, show_readiness
from ledger.api.parsing import SafeParser

PROBLEM = {
    "description": "A problem (RFC 9457); `code` is stable.",
    "content": {
        MEDIA_TYPE: {
            "schema": {
                "type": "object",
                "required": ["type", "title", "status", "detail", "code"],
                "properties": {
                    "type": {"type": "string"},
                    "title": {"type": "string"},
                    "status": {"type": "integer"},
                    "detail": {"type": "string"},
                    "code": {"type": "string"},
                    "field": {"type": "string"},
                },
            }
        }
    },
}


class LedgerAPI(NinjaAPI):
    """The API; its schema says of every operation that what goes wrong is a problem."""

    def get_openapi_schema(self, **options: Any) -> OpenAPISchema:
        """The OpenAPI document."""
        schema = super().get_openapi_schema(**options)
        for item in schema["paths"].values():
            for operation in item.values():
                operation["responses"]["default"] = PROBLEM
        return schema


api = LedgerAPI(
    title="Longwatch API",
    version="1",
    description="Submit, watch and steer tasks. Errors are problem details with a stable code.",
    urls_namespace="longwatch-api",
    auth=[TokenAuth(), SessionAuth()],
    parser=SafeParser(),
    docs=PlainDocs(),
)
install_handlers(api)
api.add_router("/tasks", tasks.router)
api.add_router("/tasks", logs.router)
api.add_router("/tasks", transcripts.router)
api.add_router("/bulk", bulk.router)
api.add_router("/approvals", approvals.router)
api.add_router("/artifacts", artifacts.router)
api.add_router("/uploads", uploads.router)
api.add_router("/audit", audit.router)
api.add_router("/lanes", lanes.router)
api.add_router("", workflows.router)


def _list_api_patterns() -> tuple[list[URLPattern | URLResolver], str, str]:
    patterns, app, namespace = api.urls
    for pattern in patterns:
        if isinstance(pattern, URLPattern):
            pattern.callback = wrap_view(pattern.callback)
    return patterns, app, namespace


def show_metrics(request: HttpRequest) -> HttpResponse:
    """What is no part of the API is answered by its rules: who may ask, what an error says."""
    try:
        return metrics.show_metrics(request)
    except Exception as error:
        return api.on_exception(request, error)


urlpatterns: list[URLPattern | URLResolver] = [
    path("api/v1/", _list_api_patterns()),
    # Exempt, as it does nothing: else a POST would be told of forms and CSRF by a page.
    re_path(r"^api/", csrf_exempt(wrap_view(show_unknown_path))),
    path("healthz", show_health),
    path("readyz", show_readiness),
    path("metrics", csrf_exempt(wrap_view(show_metrics)), name="metrics"),
]
