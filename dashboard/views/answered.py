"""The history of answers: who answered what, when, and with which comment."""

from __future__ import annotations

from typing import Any
from urllib.parse import urlencode

from django.http import HttpResponseBase
from django.views.decorators.http import require_safe

from dashboard import shown
from dashboard.access import PageRequest, allow
from dashboard.htmx import render_page, wants_part
from dashboard.queue import list_workflows, read_filter
from ledger import queries
from ledger.access import READ
from ledger.errors import InvalidInput
from ledger.ids import read_id
from ledger.models import Approval
from ledger.queries.questions import ANSWERED, RISKS, SEARCHED, list_elsewhere, page_answers


@require_safe
@allow(READ)
def show_answers(request: PageRequest) -> HttpResponseBase:
    """A page of answers, the newest first. A bad filter is left out, and the page says so.

    For the page of a question, which loads it as a part (`?beside=ID`), its like in other tasks.
    """
    if wants_part(request) and (beside := read_id(request.GET.get("beside", ""))):
        return show_beside(request, queries.find_approval(beside))
    wanted, problems = read_filter(request, of_answers=True)
    cursor = request.GET.get("cursor", "")
    try:
        page = page_answers(wanted, cursor=cursor)
    except InvalidInput as error:
        problems, cursor = [*problems, str(error)], ""
        page = page_answers(wanted)
    shown.name_deciders(page.items)
    kept = {name: value for name, value in wanted.given.items() if name not in {"status", "by"}}
    query = urlencode(kept)
    context: dict[str, Any] = {
        "section": "approvals",
        "rows": [
            row
            | {
                "waited": row["decided_at"] - row["requested_at"],
                "by_query": urlencode(wanted.given | {"by": row["decided_by"]}),
            }
            for row in page.items
        ],
        "given": wanted.given,
        "problems": problems,
        "statuses": ANSWERED,
        "risks": RISKS,
        "workflows": list_workflows(page.items, wanted.given),
        "searched": SEARCHED,
        "query": f"?{query}" if query else "",
        "here": urlencode(wanted.given),
        "older": urlencode(wanted.given | {"cursor": page.next_cursor}) if page.next_cursor else "",
        "later": bool(cursor),
    }
    status = 422 if problems else 200
    return render_page(request, "dashboard/answers.html", context, status=status)


def show_beside(request: PageRequest, row: Approval) -> HttpResponseBase:
    """The last answers to the same question in other tasks of the workflow."""
    past = list_elsewhere(row)
    shown.name_deciders(past)
    alike = urlencode({"workflow": row.task.workflow, "step": row.step})
    context = {"past": past, "step": row.step, "alike": alike}
    return render_page(request, "dashboard/answers.html", context, part="beside")
