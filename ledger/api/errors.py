"""Errors as RFC 9457 problem details: `type title status detail code`, and `field` if one is wrong.

`code` is stable and in snake_case; `detail` is a sentence for people. Where several fields are
wrong, `errors` lists them all and `field` is the first.
"""

from __future__ import annotations

import functools
import logging
import re
from collections.abc import Callable, Mapping
from http import HTTPStatus
from typing import Any

from django.core.exceptions import RequestDataTooBig, SuspiciousOperation
from django.db import DatabaseError, InterfaceError, transaction
from django.http import (
    Http404,
    HttpRequest,
    HttpResponse,
    HttpResponseBase,
    StreamingHttpResponse,
    UnreadablePostError,
)
from django.http.multipartparser import MultiPartParserError
from django.http.request import RawPostDataException
from django.utils.cache import add_never_cache_headers
from ninja import NinjaAPI
from ninja.errors import AuthenticationError, HttpError, ValidationError
from ninja.responses import Response

from ledger.api.edge import answer_request, audit_error, tell_request_id
from ledger.api.parsing import clean_name
from ledger.canonical import clean_text
from ledger.errors import LedgerError, StoreUnavailable
from ledger.outages import draw_retry_after, name_trouble
from ledger.sql import is_outage

logger = logging.getLogger(__name__)

MEDIA_TYPE = "application/problem+json"
MAX_ERRORS = 20
MAX_DRAIN = 64 << 20
"""Bytes of a refused body that are read and thrown away."""


def make_problem(
    status: int,
    code: str,
    detail: str,
    *,
    headers: Mapping[str, str] | None = None,
    **more: Any,
) -> HttpResponse:
    """The answer to a request that went wrong; `more` are further members of the problem."""
    title = HTTPStatus(status).phrase
    body = {"type": "about:blank", "title": title, "status": status, "detail": detail, "code": code}
    return Response(body | more, status=status, content_type=MEDIA_TYPE, headers=headers)


def install_handlers(api: NinjaAPI) -> None:
    """Map every exception that a view of `api` may raise to a problem."""
    handlers: dict[type[Exception], Callable[[HttpRequest, Any], HttpResponse]] = {
        LedgerError: _show_ledger_error,
        StoreUnavailable: _show_store_error,
        ValidationError: _show_invalid,
        HttpError: _show_http_error,
        Http404: _show_missing,
        RequestDataTooBig: _show_too_large,
        SuspiciousOperation: _show_bad_request,
        MultiPartParserError: _show_bad_request,
        UnreadablePostError: _show_bad_request,
        RawPostDataException: _show_wrong_type,
        DatabaseError: _show_database_error,
        InterfaceError: _show_database_error,
        Exception: _show_fault,
    }
    for kind, handler in handlers.items():
        api.add_exception_handler(kind, handler)


def wrap_view(view: Callable[..., HttpResponseBase]) -> Callable[..., HttpResponseBase]:
    """A view of the API as the URL configuration gets it.

    Never inside a transaction of the site's (ATOMIC_REQUESTS): a long poll would hold it open.
    A wrong method is a problem too, HEAD is a GET without its body, and nothing is cached unless
    the view says so.
    """

    @functools.wraps(view)
    def run_view(request: HttpRequest, *args: Any, **kwargs: Any) -> HttpResponseBase:
        head = request.method == "HEAD"
        if head:
            request.method = "GET"
        with answer_request(request) as call:
            response = view(request, *args, **kwargs)
        tell_request_id(response, call)
        if response.status_code == HTTPStatus.METHOD_NOT_ALLOWED:
            allow = response.headers["Allow"]
            detail = f"{request.method} is not possible here; {allow} is."
            response = make_problem(405, "method_not_allowed", detail, headers={"Allow": allow})
        if not response.has_header("Cache-Control"):
            add_never_cache_headers(response)
        if response.status_code >= HTTPStatus.BAD_REQUEST:
            _drain(request)
        if head:
            _drop_body(response)
        return response

    return transaction.non_atomic_requests(run_view)


def show_unknown_path(request: HttpRequest, **_: Any) -> HttpResponse:
    """The catch-all below the API: a problem, where the site would show a page."""
    return make_problem(404, "not_found", "There is nothing at this address.")


def _drain(request: HttpRequest) -> None:
    """Read what a refused client still sends: closing on it would tear our answer apart."""
    left = MAX_DRAIN
    try:
        while left > 0 and (chunk := request.read(min(left, 1 << 16))):
            left -= len(chunk)
    except (OSError, RawPostDataException):
        pass  # it has gone away


def _drop_body(response: HttpResponseBase) -> None:
    if isinstance(response, StreamingHttpResponse):
        response.streaming_content = iter(())  # what it holds open is closed with it, as ever
    elif isinstance(response, HttpResponse):
        response.headers["Content-Length"] = str(len(response.content))
        response.content = b""


def _show_ledger_error(request: HttpRequest, error: LedgerError) -> HttpResponse:
    audit_error(request, error)
    more: dict[str, Any] = {"field": _name_item(error.field)} if error.field else {}
    if error.status >= 500:
        logger.error("%s %s: %s", request.method, request.path, error, exc_info=error)
    return make_problem(error.status, error.code, _name_item(str(error)), **more)


def _show_store_error(request: HttpRequest, error: StoreUnavailable) -> HttpResponse:
    logger.error("%s %s: %s", request.method, request.path, error)
    # Where the store lies is for the log.
    detail = f"Not now: the artifact store {error.what}."
    headers = {"Retry-After": draw_retry_after()}
    return make_problem(error.status, error.code, detail, headers=headers)


def _show_invalid(request: HttpRequest, error: ValidationError) -> HttpResponse:
    problems = [_describe(one) for one in error.errors[:MAX_ERRORS]]
    source, *rest = error.errors[0]["loc"]
    if source == "path":
        return show_unknown_path(request)
    if source == "body" and len(rest) <= 1:
        return make_problem(
            400, "unparsable_input", "body: is empty; send a JSON object.", field="body"
        )
    detail = "; ".join(f"{one['field']}: {one['message']}" for one in problems[:3])
    return make_problem(
        422, "invalid_input", f"{detail}.", field=problems[0]["field"], errors=problems
    )


def _describe(error: Mapping[str, Any]) -> dict[str, str]:
    source, *path = error["loc"]
    if source == "body":
        path = path[1:]  # the name of the view's parameter
    field = ""
    for part in path:
        field += f"[{part}]" if isinstance(part, int) else f"{'.' if field else ''}{part}"
    texts = {"missing": "is missing", "extra_forbidden": "is no field of this request"}
    message = texts.get(error["type"]) or str(error["msg"]).removeprefix("Value error, ")
    return {"field": clean_name(_name_item(field) or str(source)), "message": message}


def _name_item(text: str) -> str:
    """A text that begins with an item of a batch: `items.3` as in the ledger, where the parsers say
    `items[3]`, as of any list."""
    return re.sub(r"^items\[(\d+)\]", r"items.\1", text)


def _show_http_error(request: HttpRequest, error: HttpError) -> HttpResponse:
    if isinstance(error.__cause__, LedgerError):  # the parser's own, which the framework wraps
        return _show_ledger_error(request, error.__cause__)
    if isinstance(error, AuthenticationError):
        return make_problem(
            401,
            "unauthenticated",
            "Sign in, or send a valid token as `Authorization: Bearer …`.",
            headers={"WWW-Authenticate": 'Bearer realm="longwatch"'},
        )
    return make_problem(error.status_code, "bad_request", str(error))


def _show_missing(request: HttpRequest, error: Http404) -> HttpResponse:
    return show_unknown_path(request)


def _show_too_large(request: HttpRequest, error: RequestDataTooBig) -> HttpResponse:
    detail = "body: is too large. Upload it as an artifact instead."
    return make_problem(413, "payload_too_large", detail, field="body")


def _show_bad_request(request: HttpRequest, error: Exception) -> HttpResponse:
    return make_problem(400, "bad_request", "The request can't be read.")


def _show_wrong_type(request: HttpRequest, error: RawPostDataException) -> HttpResponse:
    detail = "body: is a form; send JSON."
    return make_problem(415, "unsupported_media_type", detail, field="body")


def _show_database_error(request: HttpRequest, error: Exception) -> HttpResponse:
    if not is_outage(error):
        return _show_fault(request, error)
    logger.warning("%s %s: no database: %s", request.method, request.path, clean_text(error, 500))
    # The answer to a commit may be what was lost, so nothing is promised of this request.
    detail = f"Not now: {name_trouble(error)}. Ask again, under the same Idempotency-Key."
    headers = {"Retry-After": draw_retry_after()}
    return make_problem(503, "database_unavailable", detail, headers=headers)


def _show_fault(request: HttpRequest, error: Exception) -> HttpResponse:
    logger.exception("%s %s failed", request.method, request.path, exc_info=error)
    return make_problem(500, "internal_error", "A fault of ours; it is in the log.")
