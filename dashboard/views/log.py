"""What an attempt says, followed while it runs: a page, and the part of a task's page."""

from __future__ import annotations

from uuid import UUID

from django.http import HttpResponseBase
from django.views.decorators.http import require_safe

from dashboard.access import PageRequest, allow
from dashboard.htmx import find_unchanged, render_page, wants_part
from ledger import queries
from ledger.access import READ
from ledger.queries.paging import read_seq

SHOWN = 65_536
"""Characters of its end; all of a long one is a file."""

ENDED = {
    "done": "The unit is done.",
    "failed": "The attempt failed.",
    "lost": "The worker was lost; this is what it had written down before.",
    "released": "The attempt was given back.",
    "taken": "The attempt was taken from its worker; this is what it had written down before.",
}


@require_safe
@allow(READ)
def show_log(request: PageRequest, task_id: UUID) -> HttpResponseBase:
    """The log of one attempt (`fence`), or of whatever runs or ran last; of it only a new end."""
    fence = read_seq(request.GET.get("fence", ""), "fence")
    found = queries.read_log(task_id, fence=fence, newest=SHOWN)
    tag = "{fence}.{next}.{state}.{finished:d}".format(**found)
    if unchanged := find_unchanged(request, tag):
        return unchanged
    running = found["state"] == "running"
    context = {
        "section": "tasks",
        "log": found,
        "running": running,
        "ended": ENDED.get(found["state"], ""),
        "cut": found["next"] - len(found["text"].encode()),
        "polls": running if fence else not found["finished"],
        "chosen": fence,
        "tag": tag,
        "task": {"id": task_id},
    }
    if not wants_part(request):
        row = queries.find_task(task_id)
        context["task"] = {"id": row.pk, "name": row.title or row.workflow}
    return render_page(request, "dashboard/log.html", context, part="task-log", tag=tag)
