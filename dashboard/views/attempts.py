"""Two attempts at one unit, compared."""

from __future__ import annotations

from typing import Any
from uuid import UUID

from django.http import HttpResponseBase
from django.views.decorators.http import require_safe

from dashboard import attempts, shown
from dashboard.access import PageRequest, allow
from dashboard.htmx import render_page
from ledger import queries
from ledger.access import PAYLOAD, READ
from ledger.queries.paging import read_seq
from ledger.queries.tries import list_tries


@require_safe
@allow(READ)
def compare_attempts(request: PageRequest, task_id: UUID) -> HttpResponseBase:
    """The attempts `left` and `right`, by their numbers, of those at the unit `step`, `turn`; the
    last two, where they are not named or none of them."""
    row = queries.find_shown(task_id)
    request.waiting_count = row.waiting_count
    step = request.GET.get("step", "").replace("\0", "")[:100] or row.step_name
    turn = read_seq(request.GET.get("turn", ""), "turn")
    left, right = (read_seq(request.GET.get(name, ""), name) for name in ("left", "right"))
    tries = list_tries(task_id, step, turn, (left, right))
    pair = attempts.choose_pair(tries, left, right)
    if set(pair) - {left, right}:
        tries = list_tries(task_id, step, turn, pair)
    called = shown.name_actors({one["worker"] for one in tries if not one["fence"]})
    told = [attempts.show_try(one, number, called) for number, one in enumerate(tries, 1)]
    found = {one["seq"]: one for one in told}
    sides = [attempts.open_try(found[seq]) for seq in pair if seq in found]
    context: dict[str, Any] = {
        "section": "tasks",
        "task": {"id": row.pk, "name": row.title or row.workflow},
        "step": step,
        "turn": turn,
        "tries": told,
        "sides": sides,
        "picks": [("left", "This attempt", pair[0]), ("right", "With this one", pair[1])],
        "changes": attempts.compare_outputs(*sides) if len(sides) == 2 else None,
        "reads_log": PAYLOAD in request.scopes,
    }
    return render_page(request, "dashboard/attempts.html", context, part="attempts")
