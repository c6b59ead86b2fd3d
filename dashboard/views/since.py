"""What happened since a person last looked: a part of the overview, loaded after it."""

from __future__ import annotations

from typing import Any

from django.http import HttpResponseBase
from django.urls import reverse
from django.utils.http import urlencode
from django.views.decorators.http import require_http_methods

from dashboard import words
from dashboard.access import PageRequest, allow
from dashboard.htmx import render_page
from dashboard.views.workflows import SeeOther
from ledger import queries, states
from ledger.access import READ
from ledger.queries.since import list_newest_ended
from ledger.queries.trouble import APPROVALS, count_trouble
from ledger.transitions.visits import Away, note_visit, put_away

NAMED_BAD, NAMED_GOOD = 5, 3
COUNTED = (states.COMPLETED, states.DEAD, states.FAILED, states.CANCELLED)


@require_http_methods(["GET", "HEAD", "POST"])
@allow(READ)
def show_since(request: PageRequest) -> HttpResponseBase:
    """The digest; a POST puts it away."""
    if request.method == "POST":
        put_away(request.actor)
        return SeeOther(reverse("dashboard:overview"))
    away = note_visit(request.actor)
    context: dict[str, Any] = {"section": "overview"}
    if away is not None:
        context |= {"since": away.since} | sum_up(away)
    return render_page(request, "dashboard/since.html", context, part="since")


def sum_up(away: Away) -> dict[str, Any]:
    """Counts, money and the tasks to name: what needs somebody first."""
    ended = queries.list_ended(away.seconds)
    newest = list_newest_ended(away.since)
    bad = [task for task in newest if task.status in {states.DEAD, states.FAILED}]
    good = [task for task in newest if task.status == states.COMPLETED]
    counts = [
        {
            "look": words.LOOKS[status],
            "count": sum(one.status == status for one in ended),
            "href": f"{reverse('dashboard:tasks')}?{urlencode({'status': status})}",
        }
        for status in COUNTED
    ]
    return {
        "counts": [one for one in counts if one["count"]],
        "waiting": count_trouble(frozenset())[APPROVALS].count,
        "repairs": sum(one.repairs for one in ended),
        "spent": words.say_money(sum(one.cost for one in ended)),
        "named": [
            {"task": task, "look": words.LOOKS[task.status]}
            for task in (*bad[:NAMED_BAD], *good[:NAMED_GOOD])
        ],
        "cut": len(ended) >= queries.COUNT_CAP,
    }
