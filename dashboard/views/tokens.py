"""API tokens: the list, a new one, another in its place, the end of one.

The text of a token is in one answer to one POST, and nowhere else: not in an address, a history, a
log, the audit log, or a message that a cookie keeps.
"""

from __future__ import annotations

import datetime as dt
from typing import Any
from uuid import UUID

from django import forms
from django.contrib import messages
from django.http import Http404, HttpResponse, HttpResponseBase
from django.urls import reverse
from django.views.decorators.http import require_http_methods, require_safe

from dashboard import tokens
from dashboard.access import PageRequest, allow
from dashboard.htmx import make_redirect, render_page
from dashboard.templatetags.longwatch import read_server_time
from ledger.access import ADMIN, READ
from ledger.errors import AlreadySettled, InvalidInput, LedgerError
from ledger.models import ApiToken
from ledger.tokens import make_token, revoke_token, rotate_token

MADE = (
    "This form has made its token already, and that is shown once. If you did not keep it: rotate "
    "it in the list, or revoke it."
)


@require_safe
@allow(READ)
def show_tokens(request: PageRequest) -> HttpResponseBase:
    """All of them to an admin, to others those that work for them."""
    manages = ADMIN in request.scopes
    rows = list(tokens.list_tokens("" if manages else str(request.actor))[: tokens.SHOWN + 1])
    context: dict[str, Any] = {
        "section": "tokens",
        "manages": manages,
        "cut": len(rows) > tokens.SHOWN,
        **tokens.show_tokens(rows[: tokens.SHOWN], read_server_time()),
    }
    return render_page(request, "dashboard/tokens.html", context)


@require_http_methods(["GET", "HEAD", "POST"])
@allow(ADMIN)
def make_new(request: PageRequest) -> HttpResponseBase:
    """The form; sent, the page that shows the token once."""
    me = str(request.actor)
    if request.method != "POST":
        return render_form(request, tokens.TokenForm(me=me))
    form = tokens.TokenForm(request.POST, me=me)
    if not form.is_valid():
        return render_form(request, form, 422)
    try:
        row, text = make_token(created_by=me, **form.read_values())
    except LedgerError as error:
        refuse(form, error)
        return render_form(request, form, error.status)
    return show_secret(request, row, text)


def refuse(form: forms.Form, error: LedgerError) -> None:
    """What the ledger refused, at the field that it names."""
    names = {"scope": "scopes", "lane": "lanes"}
    if isinstance(error, AlreadySettled):
        form.add_error(None, MADE)
    elif isinstance(error, InvalidInput):
        field = names.get(error.field, error.field)
        form.add_error(field if field in form.fields else None, error.reason)
    else:
        form.add_error(None, str(error))


@require_http_methods(["GET", "HEAD", "POST"])
@allow(ADMIN)
def act_on_token(request: PageRequest, token_id: UUID, name: str) -> HttpResponseBase:
    """The dialog of `rotate` or `revoke`, and the deed."""
    row = ApiToken.objects.filter(pk=token_id).first()
    if row is None or name not in {"rotate", "revoke"}:
        raise Http404("no such token")
    kind: Any = tokens.RotateForm if name == "rotate" else tokens.RevokeForm
    form = kind(request.POST if request.method == "POST" else None, row=row)
    if not form.is_valid():
        return ask_first(request, row, name, form, 422 if form.is_bound else 200)
    if name == "revoke":
        done = revoke_token(row.pk, by=str(request.actor))
        said = f"{row.name} is revoked." if done else f"{row.name} was revoked already."
        messages.success(request, said)
        return make_redirect(request, reverse("dashboard:tokens"))
    try:
        overlap = dt.timedelta(hours=form.cleaned_data["overlap"])
        fresh, text = rotate_token(
            str(row.pk), by=str(request.actor), overlap=overlap, key=form.cleaned_data["key"]
        )
    except LedgerError as error:
        refuse(form, error)
        return ask_first(request, row, name, form, error.status)
    return show_secret(request, fresh, text, old=row, overlap=overlap)


def ask_first(
    request: PageRequest, row: ApiToken, name: str, form: forms.Form, status: int
) -> HttpResponse:
    """The dialog, as part of the page or as a page of its own."""
    (told,) = [*tokens.show_tokens([row], read_server_time())["valid"], None][:1]
    context = {"section": "tokens", "row": row, "name": name, "form": form, "told": told}
    return render_page(
        request, "dashboard/token_action.html", context, part="token-form", status=status
    )


def show_secret(request: PageRequest, row: ApiToken, text: str, **more: Any) -> HttpResponse:
    """The one page that shows it."""
    context = {"section": "tokens", "row": row, "text": text, **more}
    return render_page(request, "dashboard/token_secret.html", context)


def render_form(request: PageRequest, form: tokens.TokenForm, status: int = 200) -> HttpResponse:
    """The page of a new token."""
    return render_page(
        request, "dashboard/token.html", {"section": "tokens", "form": form}, status=status
    )
