"""Questions to be answered together: which there are, what each asks, which need their own page."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from typing import Any

from dashboard.outcomes import say_outcomes
from ledger import canonical
from ledger.bulk.answers import Looked
from ledger.models import Approval

MOST_SHOWN = 4_000
"""Characters of a request that a list shows; what asks more is read on its own page."""

OPENED = 12
"""Up to so many questions show at once what they ask."""

LONG = "There is more to look at than a list shows, so it is approved on its own page."


def needs_page(row: Approval) -> bool:
    """Whether it has files, or more text than fits."""
    payload = row.payload
    if row.attached or (isinstance(payload, dict) and payload.get("files")):
        return True
    told = [canonical.dump_json(one) for one in (payload, row.proposal) if one is not None]
    return sum(map(len, [row.body, *told])) > MOST_SHOWN


def mark_long(name: str, looked: Iterable[Looked]) -> list[Looked]:
    """The same, with those that can't be read in a list told apart: nobody approves unread."""
    if name != "approve":
        return list(looked)
    return [
        dataclasses.replace(one, why=LONG) if not one.why and needs_page(one.row) else one
        for one in looked
    ]


def read_pair(text: str) -> tuple[str, str]:
    """`id:digest`, as forms and addresses carry a question."""
    key, _, digest = text.partition(":")
    return (key, digest)


def write_pair(row: Approval) -> str:
    """The same of a question as it is shown now."""
    return f"{row.pk}:{row.digest}"


def show_kinds(looked: Iterable[Looked]) -> list[dict[str, Any]]:
    """The questions by kind, in their order; what of each can't be approved with the others."""
    kinds: dict[tuple[str, str, str], dict[str, Any]] = {}
    for one in looked:
        row = one.row
        kind = kinds.setdefault(
            one.kind,
            {"workflow": row.task.workflow, "step": row.step, "limit": row.kind == "limit",
             "rows": [], "can": 0},
        )  # fmt: skip
        kind["rows"].append(show_asked(one))
        kind["can"] += not one.why
    return list(kinds.values())


def show_asked(one: Looked) -> dict[str, Any]:
    """A question as a list shows it."""
    row = one.row
    return {
        "id": row.pk,
        "pair": write_pair(row),
        "subject": row.subject,
        "title": row.task.title or row.task.workflow,
        "task": row.task_id,
        "risk": row.risk,
        "expires_at": row.expires_at,
        "why": one.why,
        "long": needs_page(row),
        "body": row.body,
        "payload": row.payload,
        "proposal": row.proposal,
    }


def list_outcomes(name: str, looked: Iterable[Looked]) -> list[tuple[int, str]]:
    """(number of questions, what the answer leads to)."""
    found: dict[str, int] = {}
    for one in looked:
        if not one.why:
            said = say_outcomes(one.row)[name]
            found[said] = found.get(said, 0) + 1
    return [(number, said) for said, number in found.items()]
