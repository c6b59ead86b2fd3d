"""Who stands behind tasks and votes, for many at once: nobody answers for what they submitted."""

from __future__ import annotations

from collections.abc import Iterable
from uuid import UUID

from ledger.models import ApprovalVote, Task
from ledger.tokens import find_principals

type Origin = tuple[UUID, UUID | None, str]
"""A task's id, its parent and who submitted it."""


def find_submitters(tasks: Iterable[Origin]) -> dict[UUID, str]:
    """Task -> the principal that submitted it; of a spawned one, the first of its line.

    A statement for each generation above, and one where a token submitted.
    """
    found: dict[UUID, str] = {}
    climbing: dict[UUID, set[UUID]] = {}  # an ancestor -> those whose line has come to it
    level = [({key}, parent, by) for key, parent, by in tasks]
    while level:
        climbing = {}
        for below, parent, by in level:
            if parent is None:
                found |= dict.fromkeys(below, by)
            else:
                climbing.setdefault(parent, set()).update(below)
        rows = Task.objects.filter(pk__in=climbing) if climbing else Task.objects.none()
        level = [
            (climbing[key], parent, by)
            for key, parent, by in rows.values_list("pk", "parent_id", "submitted_by")
        ]
    principals = find_principals(found.values())
    return {key: principals[by] for key, by in found.items()}


def find_voted(actor: str, ids: Iterable[UUID]) -> set[UUID]:
    """Those of the questions that a person has voted on, themselves or by a token of theirs."""
    votes = ApprovalVote.objects.filter(approval__in=list(ids), voided_at__isnull=True)
    cast = list(votes.values_list("approval_id", "by"))
    if not cast:
        return set()
    principals = find_principals({actor, *(by for _, by in cast)})
    return {key for key, by in cast if principals[by] == principals[actor]}
