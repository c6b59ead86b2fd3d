"""The queue of questions: whose turn it is, what was answered just now, narrowed as asked."""

from __future__ import annotations

import datetime as dt
import hashlib
from collections.abc import Iterable
from typing import Any
from urllib.parse import urlencode
from uuid import UUID

from dashboard.access import PageRequest
from dashboard.templatetags.longwatch import read_server_time
from ledger import registry
from ledger.access import APPROVE, PAYLOAD, list_memberships
from ledger.errors import InvalidInput
from ledger.queries.questions import (
    ANSWER_NAMES,
    MAX_WAITING,
    NAMES,
    RISKS,
    AskedFilter,
    count_matching,
    list_decided,
    list_waiting,
)
from ledger.transitions import approvals
from ledger.transitions.standing import find_submitters, find_voted

DECIDED_SHOWN = 20
MAX_TEXT = 200
JUST = dt.timedelta(minutes=15)
"""Answers up to this age stand apart in the queue."""

SOON = dt.timedelta(hours=1)
"""A question that expires within this time is marked."""

GROUPS = (
    ("yours", "Yours to answer"),
    ("team", "Your team\N{RIGHT SINGLE QUOTATION MARK}s"),
    ("voted", "You have voted, more votes are needed"),
    ("own", "You submitted these, someone else answers"),
    ("others", "For others"),
)
"""What each group of open questions is called; for who may not answer all are of the last kinds."""


def read_filter(request: PageRequest, *, of_answers: bool = False) -> tuple[AskedFilter, list[str]]:
    """What the address narrows the list to, and what is wrong with the rest, which is left out."""
    given, problems = {}, []
    for name in NAMES:
        value = request.GET.get(name, "").replace("\0", "").strip()[:MAX_TEXT]
        if not value or (name in ANSWER_NAMES and not of_answers):
            continue
        try:
            AskedFilter({name: value}).check()
            given[name] = value
        except InvalidInput as error:
            problems.append(str(error))
    return AskedFilter(given), problems


def write_query(wanted: AskedFilter) -> str:
    """The filter as the end of an address: links and forms keep it."""
    return f"?{urlencode(wanted.given)}" if wanted.given else ""


def name_query(request: PageRequest) -> str:
    """The same of a request's."""
    return write_query(read_filter(request)[0])


def load_queue(request: PageRequest, open_id: str) -> dict[str, Any]:
    """The open questions in GROUPS, and the last answers, both narrowed as the address says.

    `open_id` is the question that the page shows beside it. Who decided is yet to be named.
    """
    wanted, problems = read_filter(request)
    waiting, decided = list_waiting(wanted), list_decided(wanted, DECIDED_SHOWN)
    now = read_server_time()
    for one in waiting:
        one["urgent"] = one["expires_at"] - now < SOON
    for one in decided:
        one["undoable"] = is_undoable(one) and APPROVE in request.scopes
    just = [one for one in decided if one["undoable"] or now - one["decided_at"] < JUST]
    sorted_out = sort_out(request, waiting)
    groups = [
        {"name": name, "label": label, "rows": sorted_out[name]}
        for name, label in GROUPS
        if sorted_out[name]
    ]
    seen = [
        (one["id"], one["status"], one.get("undoable"), one.get("urgent"), one in just)
        for one in waiting + decided
    ]
    cut = count_matching(wanted) if len(waiting) == MAX_WAITING else 0
    if not cut and not wanted.given:
        request.waiting_count = len(waiting)
    shown_as = repr([open_id, [(name, len(rows)) for name, rows in sorted_out.items()], seen, cut])
    return {
        "section": "approvals",
        "open_id": open_id,
        "may_answer": APPROVE in request.scopes,
        "may_together": {APPROVE, PAYLOAD} <= request.scopes,
        "given": wanted.given,
        "risks": RISKS,
        "workflows": list_workflows([*waiting, *decided], wanted.given),
        "problems": problems,
        "query": write_query(wanted),
        "poll": urlencode(wanted.given | ({"open": open_id} if open_id else {})),
        "groups": groups,
        "waiting": len(waiting),
        "to_answer": len(sorted_out["yours"]) + len(sorted_out["team"]),
        "cut": cut,
        "decided": decided,
        "just": just,
        "earlier": [one for one in decided if one not in just],
        "undoing": any(one["undoable"] for one in decided),
        "queue_tag": hashlib.sha256(shown_as.encode()).hexdigest()[:16],
    }


def is_undoable(row: dict[str, Any]) -> bool:
    """True of an answer whose effect is still to come."""
    return row["status"] in approvals.DECISIONS.values() and row["applied_at"] is None


def sort_out(
    request: PageRequest, waiting: Iterable[dict[str, Any]]
) -> dict[str, list[dict[str, Any]]]:
    """The open questions by GROUPS, each in its order."""
    me, found = str(request.actor), {name: [] for name, _ in GROUPS}  # type: ignore[var-annotated]
    waiting = list(waiting)
    assigned = any(one["assignees"] is not None for one in waiting)
    names = list_memberships(me) if assigned else frozenset({me})
    many = [one["id"] for one in waiting if one["votes_needed"] > 1]
    voted: set[UUID] = find_voted(me, many) if many else set()
    held = [one for one in waiting if not one["self_approval"]]
    submitters = find_submitters(
        (one["task_id"], one["task__parent"], one["task__submitted_by"]) for one in held
    )
    own = {one["id"] for one in held if submitters[one["task_id"]] == me}
    for one in waiting:
        found[find_group(one, me, names, voted, own)].append(one)
    return found


def find_group(
    row: dict[str, Any], me: str, names: frozenset[str], voted: set[UUID], own: set[UUID]
) -> str:
    """Whose turn a question is, as seen by a person of these names (`user:3`, `group:legal`)."""
    assignees = row["assignees"]
    if assignees is not None and names.isdisjoint(assignees):
        return "others"
    if row["id"] in own:
        return "own"
    if row["id"] in voted:
        return "voted"
    return "yours" if assignees is None or me in assignees else "team"


def find_next(request: PageRequest, after: dt.datetime, but: UUID) -> UUID | None:
    """The question to answer next: of those of this person, narrowed as the address says, the
    first that expires after `after`, else the first of all."""
    wanted, _ = read_filter(request)
    groups = sort_out(request, [one for one in list_waiting(wanted) if one["id"] != but])
    mine = sorted([*groups["yours"], *groups["team"]], key=lambda one: one["expires_at"])
    later = [one for one in mine if one["expires_at"] >= after]
    return next((one["id"] for one in [*later, *mine]), None)


def list_workflows(rows: Iterable[dict[str, Any]], given: dict[str, str]) -> list[str]:
    """The names that the list can be narrowed to: what is known here, and what is in it."""
    found = {flow.name for flow in registry.all_workflows()}
    found |= {one["task__workflow"] for one in rows}
    return sorted(found | {name for name in (given.get("workflow"),) if name})
