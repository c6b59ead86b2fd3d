"""What the pages say about a question: its state, what answers lead to, what was asked before."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterable, Mapping
from typing import Any

from dashboard import changes, outcomes, shown, words
from dashboard.access import PageRequest
from dashboard.answers import AnswerForm, say_value
from dashboard.queue import name_query
from dashboard.revised import compare_asked
from dashboard.templatetags.longwatch import bound, read_server_time
from ledger import conf, queries
from ledger.access import APPROVE, PAYLOAD, is_assigned
from ledger.models import Approval
from ledger.models.approvals import OPEN
from ledger.queries.questions import list_asked
from ledger.transitions import approvals
from ledger.transitions.standing import find_submitters


def list_actors(row: Approval) -> set[str]:
    """Everybody whom the page of a question names."""
    found = {row.task.submitted_by, *(vote.by for vote in row.votes.all()), *(row.assignees or ())}
    found |= {row.decided_by} if row.decided_by else set()
    return found | {who for people, _ in row.escalation or () for who in people}


def load_state(
    request: PageRequest, row: Approval, called: Mapping[str, str] | None = None
) -> dict[str, Any]:
    """The question, who voted and decided, and what this person can do about it.

    `called` are the names of `list_actors`, where they are known already.
    """
    shown_row = queries.show_approval(row)
    chain = shown_row["escalation"]
    called = shown.name_actors(list_actors(row)) if called is None else called
    answered = row.status in approvals.DECISIONS.values()
    changed = changes.read_changes(row.payload, row.attached)
    return {
        "section": "approvals",
        "approval": shown_row,
        "row": row,
        "open": row.status == OPEN,
        "undoable": answered and row.applied_at is None,
        "settled": row.status != OPEN and not (answered and row.applied_at is None),
        "final": approvals.is_irrevocable(row),
        "outcomes": outcomes.say_outcomes(row),
        "missing": count_missing(row),
        "form": AnswerForm(asked=row),
        "notice": "",
        "tag": make_state_tag(row),
        "query": name_query(request),
        "submitter": called[row.task.submitted_by],
        "decider": called.get(row.decided_by, ""),
        "votes": [vote | {"name": called[vote["by"]]} for vote in shown_row["votes"]],
        "obstacle": find_obstacle(request, row, called),
        "assigned": join_names(shown_row["assignees"], called),
        "passed_on": say_escalation(chain, called),
        "edits": [
            one | {key: say_value(one[key]) for key in ("proposed", "answered")}
            for one in shown_row["edits"]
        ],
        "expired": row.status == OPEN and row.expires_at < read_server_time(),
        "changes": changed,
        "unreadable": changed.hidden,
        "undo_seconds": conf.load().undo_seconds,
    }


def count_missing(row: Approval) -> int:
    """How many approvals an open question needs yet."""
    given = [vote for vote in row.votes.all() if vote.voided_at is None]
    return row.votes_needed - sum(vote.decision == "approve" for vote in given)


def join_names(actors: Iterable[str], called: Mapping[str, str]) -> str:
    """People and groups by their names."""
    return ", ".join(called[one] for one in actors)


def say_escalation(chain: Iterable[dict[str, Any]], called: Mapping[str, str]) -> str:
    """Whom a question that nobody answers is passed on to, and for how long, in words."""
    steps = [f"{join_names(one['assignees'], called)} for {bound(one['seconds'])}" for one in chain]
    if not steps:
        return ""
    return f"it is passed on to {', then to '.join(steps)}. After that, "


def find_obstacle(request: PageRequest, row: Approval, called: Mapping[str, str]) -> str:
    """Why this person can't answer; empty when they can."""
    me = str(request.actor)
    if APPROVE not in request.scopes:
        return "It takes the role approver to answer."
    if PAYLOAD not in request.scopes:
        return "You are not shown what is asked, so somebody else answers."
    if not is_assigned(str(request.actor), row.assignees):
        return f"This question is for {join_names(row.assignees or (), called)}."
    task = row.task
    submitters = find_submitters([(task.pk, task.parent_id, task.submitted_by)])
    if not row.self_approval and submitters[task.pk] == me:
        return "You submitted this task; somebody else answers."
    voted = any(vote.by == me and vote.voided_at is None for vote in row.votes.all())
    if voted and row.status == OPEN:
        return "You have voted; it needs more votes."
    return ""


def load_context(request: PageRequest, row: Approval) -> dict[str, Any]:
    """What stands beside the request: tests, the task's limits, what a send back redoes, what was
    answered before, and what is asked otherwise now."""
    task, asked = row.task, list_asked(row, str(request.actor))
    files = changes.read_changes(row.payload, row.attached).files
    tests = [file for file in files if file.is_test]
    revised = compare_asked(row, asked)
    fresh = dict(revised["files"]) if revised else {}
    for file in files:
        file.fresh = fresh.get(file.path, "")
    return {
        "rest": outcomes.list_rest(row),
        "changed": [file for file in files if not file.is_test],
        "tests": tests if len(tests) > FOLD else [],
        "limits": [
            ("Units", f"{task.used_units:,} of {task.limit_units:,}"),
            ("Tokens", f"{task.used_tokens_in + task.used_tokens_out:,} of {task.limit_tokens:,}"),
            ("Money", f"{words.say_money(task.used_cost)} of {words.say_money(task.limit_cost)}"),
            ("Repairs", f"{task.repair_count} of {task.max_repairs}"),
        ],
        "redone": sum_redone(row) if row.send_back_to else None,
        "asked_before": [one for one in asked if one["step"] == row.step],
        "asked_besides": [one for one in asked if one["step"] != row.step],
        "asked": asked,
        "revised": revised,
    }


FOLD = 5
"""More changed files of tests than this are one row of the list, to be opened."""


def sum_redone(row: Approval) -> dict[str, Any]:
    """The live outputs that a send back supersedes, and how long they took."""
    start = row.steps.index(row.send_back_to) if row.send_back_to in row.steps else 0
    later = [one for one in queries.sum_steps(row.task_id) if one.index >= start and one.units]
    return {
        "units": sum(one.units for one in later),
        "took": sum((one.worked for one in later), dt.timedelta()),
        "money": words.say_money(sum(one.nano for one in later)),
        "round": row.round + 1,
    }


def make_state_tag(row: Approval) -> str:
    """The polling tag of a question: its status, votes and whether its answer took effect."""
    votes = len(row.votes.all())
    return f"{row.status}.{votes}.{int(row.applied_at is not None)}.{row.task.revision}"
