"""Questions to people as the pages list them: open ones, and the history of answers, narrowed."""

from __future__ import annotations

import dataclasses
import datetime as dt
from collections.abc import Iterable
from typing import Any
from uuid import UUID

from django.db.models import OuterRef, Q, QuerySet, Subquery

from ledger.errors import InvalidInput
from ledger.models import Approval, ApprovalLook
from ledger.models.approvals import KINDS, OPEN, STATUSES
from ledger.queries.approvals import TASK_COLUMNS, hide_contents
from ledger.queries.paging import DEFAULT_LIMIT, Page, page_newest
from ledger.queries.seen import hide_text, see_approvals
from ledger.queries.tasks import COUNT_CAP

MAX_WAITING = 200
"""Open questions on one page; what expires first comes first, so the rest can wait its turn."""

SEARCHED = 20_000
"""Answers that text, a person, a risk or a workflow is looked for in: the newest so many."""

ELSEWHERE = 500
"""Answers to one step's questions among which those of one workflow are looked for."""

RISKS = ("low", "medium", "high")
ANSWERED = tuple(status for status in STATUSES if status != OPEN)
CHOICES = {"kind": KINDS, "risk": RISKS, "status": ANSWERED}
"""Filters that take one of a few words."""

NAMES = ("q", "kind", "risk", "workflow", "step", "status", "by")
"""Every filter; the last two are of answers alone."""

ANSWER_NAMES = ("status", "by")

_OWN = (
    "id kind step round status risk subject money outside_effect requested_at expires_at "
    "self_approval assignees votes_needed digest decided_at decided_by applied_at comment task_id"
).split()
_OF_TASK = [f"task__{name}" for name in (*TASK_COLUMNS, "parent", "available_at")]


@dataclasses.dataclass(frozen=True, slots=True)
class AskedFilter:
    """What a list of questions is narrowed to: the values by the names of NAMES."""

    given: dict[str, str] = dataclasses.field(default_factory=dict)

    def check(self) -> None:
        """Raises InvalidInput with the name of what is wrong."""
        for name, value in self.given.items():
            _match(name, value)

    def apply(self, rows: QuerySet[Approval]) -> QuerySet[Approval]:
        """`rows` narrowed. Raises InvalidInput with the name of what is wrong."""
        for name, value in self.given.items():
            rows = rows.filter(_match(name, value))
        return rows


def _match(name: str, value: str) -> Q:
    if name in CHOICES and value not in CHOICES[name]:
        raise InvalidInput(name, f"is {value!r:.60}; it takes one of {', '.join(CHOICES[name])}.")
    if name == "q":
        title = Q(task__title__icontains=value) | Q(task__workflow__icontains=value)
        return Q(subject__icontains=value) | Q(step__icontains=value) | title | _match_id(value)
    if name == "workflow":
        return Q(task__workflow=value)
    return Q(**{"decided_by" if name == "by" else name: value})


def _match_id(text: str) -> Q:
    try:
        found = UUID(text)
    except ValueError:
        return Q()
    return Q(pk=found) | Q(task_id=found)


def list_waiting(wanted: AskedFilter | None = None) -> list[dict[str, Any]]:
    """The open questions, first the one that expires first, without body and payload."""
    rows = (wanted or AskedFilter()).apply(see_approvals().filter(status=OPEN))
    return _show(rows.order_by("expires_at", "id"), MAX_WAITING)


def count_matching(wanted: AskedFilter) -> int:
    """How many open questions there are of these, up to COUNT_CAP."""
    return wanted.apply(see_approvals().filter(status=OPEN)).order_by()[:COUNT_CAP].count()


def list_decided(wanted: AskedFilter | None = None, limit: int = 20) -> list[dict[str, Any]]:
    """The questions that were answered (or ended) last, newest first."""
    rows = _narrow(wanted or AskedFilter(), see_approvals().filter(decided_at__isnull=False))
    return _show(rows.order_by("-decided_at", "-id"), limit)


def page_answers(
    wanted: AskedFilter, *, limit: int = DEFAULT_LIMIT, cursor: str = ""
) -> Page[dict[str, Any]]:
    """The same page by page. Raises InvalidInput for a filter or a cursor."""
    rows = _narrow(wanted, see_approvals().filter(decided_at__isnull=False))
    page = page_newest(rows.only("id", "decided_at"), "decided_at", limit, cursor)
    ids = [row.pk for row in page.items]
    found = {row["id"]: row for row in _show(see_approvals().filter(pk__in=ids), len(ids))}
    return Page([found[key] for key in ids if key in found], page.next_cursor)


def list_elsewhere(row: Approval, limit: int = 5) -> list[dict[str, Any]]:
    """The last answers to this step's questions in other tasks of the workflow."""
    rows = see_approvals().filter(step=row.step, kind=row.kind).filter(decided_at__isnull=False)
    newest = rows.order_by("-decided_at").values("pk")[:ELSEWHERE]
    alike = see_approvals().filter(pk__in=newest, task__workflow=row.task.workflow)
    return _show(alike.exclude(task=row.task_id).order_by("-decided_at", "-id"), limit)


def list_asked(row: Approval, actor: str) -> list[dict[str, Any]]:
    """The other questions of the same task, newest first; `looked` is when the person was shown
    one last, if ever."""
    looks = ApprovalLook.objects.filter(approval=OuterRef("pk"), by=actor).values("at")
    rows = see_approvals().filter(task=row.task_id).exclude(pk=row.pk)
    rows = rows.order_by("-requested_at", "-id").annotate(looked=Subquery(looks))
    own = "id kind step round subject status decided_by comment requested_at decided_at".split()
    return [
        {**one, "comment": hide_text(one["comment"])} for one in rows.values(*own, "looked")[:20]
    ]


def find_earlier(
    row: Approval, asked: Iterable[dict[str, Any]]
) -> tuple[Approval, dt.datetime | None] | None:
    """Of the questions of `list_asked` the same one (same step) as it was asked before, and when
    the person was shown it: the one they saw last, else the last one. None for none.
    """
    same = [
        one for one in asked
        if (one["step"], one["kind"]) == (row.step, row.kind)
        and one["requested_at"] < row.requested_at
    ]  # fmt: skip
    if not same:
        return None
    looked = [one for one in same if one["looked"] is not None]
    found = max(looked, key=lambda one: one["looked"]) if looked else same[0]
    old = see_approvals().filter(pk=found["id"]).first()
    return None if old is None else (hide_contents(old), found["looked"])


def _narrow(wanted: AskedFilter, rows: QuerySet[Approval]) -> QuerySet[Approval]:
    """Answers; whatever no index finds is looked for among the newest SEARCHED."""
    if not wanted.given:
        return rows
    newest = rows.order_by("-decided_at").values_list("decided_at", flat=True)
    since: dt.datetime | None = newest[SEARCHED - 1 : SEARCHED].first()
    return wanted.apply(rows if since is None else rows.filter(decided_at__gte=since))


def _show(rows: QuerySet[Approval], limit: int) -> list[dict[str, Any]]:
    return [
        {**row, "comment": hide_text(row["comment"])}
        for row in rows.values(*_OWN, *_OF_TASK)[:limit]
    ]
