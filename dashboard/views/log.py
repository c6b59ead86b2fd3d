"""What an attempt logs, followed while it runs: a page, and the part of a task's page."""

from __future__ import annotations

from typing import Any
from urllib.parse import urlencode
from uuid import UUID

from django.http import HttpResponseBase
from django.views.decorators.http import require_safe

from dashboard import loglines
from dashboard.access import PageRequest, allow
from dashboard.htmx import find_unchanged, render_page, wants_part
from dashboard.templatetags.longwatch import read_server_time
from ledger import queries
from ledger.access import READ
from ledger.errors import InvalidInput
from ledger.queries.paging import read_seq

SHOWN = 65_536
"""Characters of its end; all of a long one is a file."""

LISTED = 60
"""Attempts that have a link, the last ones."""

ENDED = {
    "done": "The unit is done.",
    "failed": "The attempt failed.",
    "undone": "The effect is undone.",
    "lost": "The worker was lost; this is what it had written down before.",
    "released": "The attempt was given back.",
    "taken": "The attempt was taken from its worker; this is what it had written down before.",
}
STATES = {"running": "running", "failed": "failed", "lost": "lost", "released": "given back",
          "taken": "taken away", "undone": "undid an effect"}  # fmt: skip
"""What stands beside an attempt in the list; one that is done has nothing."""


@require_safe
@allow(READ)
def show_log(request: PageRequest, task_id: UUID) -> HttpResponseBase:
    """The log of one attempt (`fence`), or of whatever runs or ran last: of it only a new end, by
    `level` and by text (`q`). `units` asks for the list of attempts too."""
    fence, level = read_seq(request.GET.get("fence", ""), "fence"), request.GET.get("level", "")
    if level not in loglines.LEVELS:
        raise InvalidInput("level", f"takes one of {', '.join(filter(None, loglines.LEVELS))}.")
    words = request.GET.get("q", "").replace("\0", "").strip()[:200]
    listed = bool(request.GET.get("units")) or not wants_part(request)
    row, attempts, found = queries.open_log(task_id, fence=fence, newest=LISTED if listed else 1)
    tag = "{fence}.{next}.{state}.{finished:d}".format(**found)
    if unchanged := find_unchanged(request, tag):
        return unchanged
    running = found["state"] == "running"
    wish = {"level": level, "q": words}
    context = {
        "section": "tasks",
        "row": row,
        "task": {"id": row.pk, "name": row.title or row.workflow},
        "log": found,
        "running": running,
        "ended": ENDED.get(found["state"], ""),
        "polls": running if fence else not found["finished"],
        "chosen": fence,
        "levels": loglines.LEVELS,
        "wish": wish,
        "kept": urlencode({name: value for name, value in wish.items() if value}),
        "listed": listed,
        "attempts": [(one, STATES.get(one.state, "")) for one in attempts],
        "tag": tag,
        **choose_lines(found, level, words),
    }
    part = "log-all" if listed else "task-log"
    return render_page(request, "dashboard/log.html", context, part=part, tag=tag)


def choose_lines(found: dict[str, Any], level: str, words: str) -> dict[str, Any]:
    """`lines` as they are shown, `cut` if earlier ones are not; of a choice `matched` of `all`."""
    text, more = found["text"], {}
    if level or words:
        lines = list(loglines.read_lines(text))
        wanted = [line.text for line in lines if loglines.is_wanted(line, level, words)]
        more = {"matched": len(wanted), "all": len(lines)}
        text = "\n".join(wanted)
    shown = loglines.cut_start(text, SHOWN)
    missing = len(shown) < len(text) or found["next"] > len(found["text"].encode())
    by = found["at"] or read_server_time()
    return {"lines": loglines.colour_lines(shown, by), "cut": missing, **more}
