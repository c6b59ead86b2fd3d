"""Several questions at once: which there are, what one answer would do, the answer."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Sequence
from typing import Any
from urllib.parse import urlencode

from django.http import HttpResponseBase, QueryDict
from django.urls import reverse
from django.views.decorators.http import require_http_methods

from dashboard.access import PageRequest, allow
from dashboard.bulk import ANSWER_DEEDS, find_people, write_names
from dashboard.bulk_forms import TogetherForm
from dashboard.htmx import render_page
from dashboard.queue import name_query, read_filter, sort_out, write_query
from dashboard.shown import name_actors
from dashboard.together import (
    LONG,
    OPENED,
    list_outcomes,
    mark_long,
    read_pair,
    show_asked,
    show_kinds,
)
from dashboard.views.bulk import MAX_QUERY, refuse_choice
from dashboard.views.workflows import SeeOther
from ledger import conf, queries
from ledger.access import APPROVE
from ledger.api.edge import audit_error
from ledger.bulk.answers import Asked, Looked, check_kind, look_at, read_asked
from ledger.bulk.making import make_answers
from ledger.errors import InvalidInput, LedgerError
from ledger.queries.questions import list_waiting
from ledger.queries.seen import require_payload
from ledger.transitions.approvals import is_irrevocable

TURNS = ("yours", "team")
"""The groups of the queue that a person may answer."""


@require_http_methods(["GET", "HEAD", "POST"])
@allow(APPROVE)
def answer_together(request: PageRequest) -> HttpResponseBase:
    """The questions that can be chosen; what the answer to the chosen would do; the answer (`go`).

    What is chosen is posted, and becomes an address, so that back and reload work.
    """
    require_payload()
    posted = request.method == "POST"
    given = request.POST if posted else request.GET
    if not posted and "action" not in given:
        return choose(request)
    name = given.get("action", "")
    try:
        asked = read_choice(given)
        if name not in ANSWER_DEEDS:
            raise InvalidInput("action", "none is chosen")
        if not asked:
            raise InvalidInput("approvals", "none is chosen; choose some in the list")
        if posted and "go" not in given:
            pairs = [("action", name), *(("asked", f"{one.id}:{one.digest}") for one in asked)]
            query = urlencode([*read_filter(request)[0].given.items(), *pairs])
            if len(query) <= MAX_QUERY:
                return SeeOther(f"{request.path}?{query}")
        looked = look_with_names(name, asked, request)
        check_kind(looked)
    except InvalidInput as error:
        return refuse_choice(request, error, back=find_choice(request))
    if posted and "go" in given:
        return begin(request, name, asked, looked, given)
    return ask_first(request, name, looked)


def look_with_names(name: str, asked: Sequence[Asked], request: PageRequest) -> list[Looked]:
    """The questions as they are, with people by their names."""
    looked = mark_long(name, look_at(name, asked, request.actor))
    called = name_actors(find_people(one.why for one in looked))
    return [dataclasses.replace(one, why=write_names(one.why, called)) for one in looked]


def read_choice(given: QueryDict) -> tuple[Asked, ...]:
    """What is marked, or with `whole` everything that the form showed. Raises InvalidInput."""
    name = "shown" if given.get("whole") else "asked"
    return read_asked(read_pair(one) for one in given.getlist(name))


def find_choice(request: PageRequest) -> str:
    """The page that questions are chosen on, narrowed as the queue was."""
    return f"{reverse('dashboard:together')}{name_query(request)}"


def choose(request: PageRequest) -> HttpResponseBase:
    """What this person may answer, by kind."""
    wanted, problems = read_filter(request)
    groups = sort_out(request, list_waiting(wanted))
    rows = [one for name in TURNS for one in groups[name]]
    rows.sort(key=lambda one: (one["expires_at"], one["id"]))
    asked = [Asked(one["id"], one["digest"]) for one in rows]
    looked = look_with_names("approve", asked, request)
    context: dict[str, Any] = {
        "section": "approvals",
        "kinds": show_kinds(looked),
        "query": write_query(wanted),
        "filtered": bool(wanted.given),
        "problems": problems,
        "back": f"{reverse('dashboard:approvals')}{write_query(wanted)}",
    }
    return render_page(request, "dashboard/together.html", context)


def ask_first(
    request: PageRequest, name: str, looked: list[Looked], form: TogetherForm | None = None,
    status: int = 200,
) -> HttpResponseBase:  # fmt: skip
    """The form, what each asks, and what the answer leads to."""
    chosen = [one for one in looked if not one.why]
    left_out = Counter(one.why for one in looked if one.why)
    deed, seconds = ANSWER_DEEDS[name], conf.load().undo_seconds
    context: dict[str, Any] = {
        "section": "approvals",
        "action": name,
        "deed": deed,
        "title": deed.name(len(chosen)),
        "form": form or make_form(name, len(chosen)),
        "rows": [show_asked(one) for one in chosen],
        "out": [show_asked(one) for one in looked if one.why],
        "left_out": left_out.most_common(),
        "total": len(looked),
        "outcomes": list_outcomes(name, looked),
        "final": sum(is_irrevocable(one.row) for one in chosen),
        "votes": sum(one.row.votes_needed > 1 for one in chosen),
        "settings": sum(one.row.proposal is not None for one in chosen),
        "opened": len(chosen) <= OPENED,
        "seconds": seconds,
        "no_worker": not queries.list_live_workers().exists(),
        "query": name_query(request),
        "back": find_choice(request),
    }
    return render_page(request, "dashboard/together_answer.html", context, status=status)


def make_form(name: str, number: int, given: QueryDict | None = None) -> TogetherForm:
    """The form; `number` is what the person was shown."""
    return TogetherForm(given, number=number, reject=name == "reject")


def begin(
    request: PageRequest, name: str, asked: tuple[Asked, ...], looked: list[Looked],
    given: QueryDict,
) -> HttpResponseBase:  # fmt: skip
    """The operation is made. It is for what the form carries; a question that has changed since is
    refused in it, and told apart."""
    long = {one.row.pk for one in looked if one.why == LONG}
    form = make_form(name, len(asked), given)
    if not form.is_valid():
        return ask_first(request, name, looked, form, 422)
    try:
        row, _ = make_answers(
            name, [one for one in asked if one.id not in long], actor=request.actor,
            comment=form.cleaned_data["comment"], key=form.cleaned_data["token"],
            undo_seconds=conf.load().undo_seconds,
        )  # fmt: skip
    except LedgerError as error:
        audit_error(request, error)
        form.add_error(None, f"Nothing is done: {getattr(error, 'reason', error)}")
        return ask_first(request, name, looked, form, error.status)
    back = f"{reverse('dashboard:approvals')}{name_query(request)}"
    return SeeOther(f"{reverse('dashboard:bulk', args=[row.pk])}?{urlencode({'back': back})}")
