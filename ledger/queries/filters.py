"""What a list of tasks is narrowed to: typed filters, each of which may also be excluded."""

from __future__ import annotations

import dataclasses
import datetime as dt
import json
import re
from collections.abc import Callable, Sequence
from typing import Any
from uuid import UUID

from django.db.models import Q, QuerySet
from django.db.models.functions import TruncDay

from ledger import clock, states
from ledger.calls import read_call, sees_payload
from ledger.errors import InvalidInput
from ledger.events import SYSTEM
from ledger.ids import read_id
from ledger.models import Task
from ledger.queries.alike import IsAlike
from ledger.queries.columns import OnColumns
from ledger.queries.searching import Found, HasText, IsAmong, collect_ids
from ledger.queries.seen import see_tasks

SEARCHED = 100_000
"""The newest tasks among which finished ones are looked for, where no index finds them: a rare word
would otherwise be looked for in every row there is, at each poll."""

SEARCHED_TEXT = 50_000
"""The same for text, which takes longer: of what any column holds no index knows the middle."""

MOST_FOUND = 10_000
"""Of what has a text, the newest; more than are ever counted."""

NOT = "not_"
"""What the key of a filter begins with that excludes (`not_lane`)."""

GROUPS = {"unfinished": states.UNFINISHED}
"""Words that `status` takes besides the statuses."""

_SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86400}
_INDEXED = frozenset({"parent", "worker", "stalled", "attention"})


class IsStalled(OnColumns):
    """True for a running task with no progress for its own `stall_after` seconds."""

    names = ("status", "last_progress_at", "stall_after")

    def write(self, connection: Any, *columns: str) -> tuple[str, tuple[Any, ...]]:
        """The comparison, by the database's clock."""
        status, moment, after = columns
        line = clock.fragment(connection.vendor, f"-{after}").replace("%", "%%")
        return f"{status} = '{states.RUNNING}' AND {moment} < {line}", ()


class IsOfVersion(OnColumns):
    """True of the tasks of these (workflow, version): one parameter, however many they are. As a
    condition for each, a thousand of them are more than SQLite takes."""

    names = ("workflow", "workflow_version")

    def __init__(self, versions: frozenset[tuple[str, str]]) -> None:
        super().__init__()
        self.versions = versions

    def write(self, connection: Any, *columns: str) -> tuple[str, tuple[Any, ...]]:
        """The rows of a JSON list, of which each is a pair."""
        pairs = "SELECT json_extract(value, '$[0]'), json_extract(value, '$[1]') FROM json_each(%s)"
        if connection.vendor == "postgresql":
            pairs = "SELECT value->>0, value->>1 FROM jsonb_array_elements(CAST(%s AS jsonb))"
        return f"({', '.join(columns)}) IN ({pairs})", (json.dumps(sorted(self.versions)),)


class HasTag(OnColumns):
    """True when the task's list of tags holds `tag`."""

    names = ("tags",)

    def __init__(self, tag: str) -> None:
        super().__init__()
        self.tag = tag

    def write(self, connection: Any, *columns: str) -> tuple[str, tuple[Any, ...]]:
        """A JSON operator on PostgreSQL, a table function on SQLite."""
        if connection.vendor == "postgresql":
            return f"jsonb_exists({columns[0]}, %s)", (self.tag,)
        return (f"EXISTS (SELECT 1 FROM json_each({columns[0]}) AS tag WHERE tag.value = %s)"), (
            self.tag,
        )


@dataclasses.dataclass(frozen=True, slots=True)
class TaskFilter:
    """What a list is narrowed to.

    `pairs` are (key, value): a key is one of FILTERS, or `not_` and one. Values of one key add up
    (any of them, with `not_` none of them); keys narrow each other. `since` is the time from which
    on finished tasks are looked for.
    """

    pairs: Sequence[tuple[str, str]] = ()
    since: dt.datetime | None = None
    found: Found | None = None
    """The tasks that have the text and all but the status, once it was searched for."""

    def apply(self, rows: QuerySet[Task]) -> QuerySet[Task]:
        """`rows` narrowed. Raises InvalidInput with the key of what is wrong.

        Text is searched for once for a filter, by whoever comes first: `bound_search` gives one
        that pages, counts and marks can share.
        """
        if self.found is None and self.find_text():
            return self.bound_search().apply(rows)
        if self.found is not None:
            rows = rows.filter(IsAmong(self.found.ids))
        elif self.since is not None:
            rows = rows.filter(Q(created_at__gte=self.since) | Q(status__in=states.UNFINISHED))
        done = {"q"} if self.found is not None else set()
        for key in dict.fromkeys(key for key, _ in self.pairs if key not in done):
            match = match_filter(key, [value for name, value in self.pairs if name == key])
            rows = rows.filter(~match if key.startswith(NOT) else match)
        return rows

    def list_statuses(self) -> frozenset[str]:
        """The statuses that it lets through. Raises InvalidInput."""
        given = {NOT + "status": frozenset[str](), "status": frozenset[str]()}
        for key, value in self.pairs:
            if key in given:
                given[key] |= _read_status(key, value)
        return (given["status"] or frozenset(states.STATUSES)) - given[NOT + "status"]

    def drop_status(self) -> TaskFilter:
        """The same for whatever status."""
        pairs = [(key, value) for key, value in self.pairs if key.removeprefix(NOT) != "status"]
        return dataclasses.replace(self, pairs=pairs)

    def find_text(self) -> str:
        """The text that is searched for; empty for none, and for a whole id."""
        given = [value.strip() for key, value in self.pairs if key == "q"]
        return given[-1] if given and read_id(given[-1]) is None else ""

    @property
    def searched(self) -> int:
        """Among how many of the newest tasks finished ones are looked for; 0: among all."""
        if self.since is None:
            return 0
        return SEARCHED if self.found is None else SEARCHED_TEXT

    @property
    def is_scan(self) -> bool:
        """Whether no index finds the finished tasks that match."""
        text, given = self.find_text(), self.drop_status().pairs
        return bool(given) and not any(
            key in _INDEXED or (key == "q" and not text) for key, _ in given
        )

    def bound_search(self) -> TaskFilter:
        """The same, if no index finds the tasks, among the newest SEARCHED of the finished ones;
        text is searched for here, among SEARCHED_TEXT."""
        if self.found is not None:
            return self
        text, given = self.find_text(), self.drop_status().pairs
        bounded = self
        if self.is_scan and self.since is None:
            bounded = self._bound(SEARCHED_TEXT if text else SEARCHED)
        if not text:
            return bounded
        rest = [pair for pair in given if pair[0] != "q"]
        rows = dataclasses.replace(bounded, pairs=rest).apply(see_tasks().filter(HasText(text)))
        newest = rows.order_by("-created_at", "-pk")[:MOST_FOUND]
        return dataclasses.replace(bounded, found=collect_ids(newest))

    def _bound(self, count: int) -> TaskFilter:
        times = Task.objects.order_by("-created_at", "-pk").values_list("created_at", flat=True)
        return dataclasses.replace(self, since=times[count - 1 : count].first())


def match_filter(key: str, values: Sequence[str]) -> Q:
    """The condition of one key, not yet negated. Raises InvalidInput."""
    name = key.removeprefix(NOT)
    if name not in FILTERS:
        raise InvalidInput(key, f"is no filter; there are {', '.join(FILTERS)}.")
    return FILTERS[name](key, values)


def _match_status(key: str, values: Sequence[str]) -> Q:
    return Q(status__in=frozenset[str]().union(*(_read_status(key, value) for value in values)))


def _read_status(key: str, value: str) -> frozenset[str]:
    if value in GROUPS:
        return GROUPS[value]
    if value not in states.STATUSES:
        known = ", ".join((*states.STATUSES, *GROUPS))
        raise InvalidInput(key, f"is {value!r:.60}; it takes one of {known}.")
    return frozenset({value})


def _match_column(column: str) -> Callable[[str, Sequence[str]], Q]:
    return lambda key, values: Q(**{f"{column}__in": values})


def _match_tag(key: str, values: Sequence[str]) -> Q:
    return _join_any(Q(HasTag(value)) for value in values)


def _match_worker(key: str, values: Sequence[str]) -> Q:
    """The tasks that a worker holds, by its name (`host:pid:boot`) or a beginning (`host`)."""
    held = (Q(lease_owner=name) | Q(lease_owner__startswith=f"{name}:") for name in values)
    return Q(status=states.RUNNING) & _join_any(held)


def _match_error(key: str, values: Sequence[str]) -> Q:
    return Q(error__isnull=False) & _join_any(_search_error(value) for value in values)


def _search_error(text: str) -> Q:
    """By its type, and by its message for who may read it."""
    found = Q(error__type__icontains=text)
    return found | Q(error__message__icontains=text) if sees_payload() else found


def _match_failure(key: str, values: Sequence[str]) -> Q:
    """By its fingerprint; of one that has none by the type of its error."""
    return Q(IsAlike(values))


def _match_stalled(key: str, values: Sequence[str]) -> Q:
    if wrong := [value for value in values if value != "yes"]:
        raise InvalidInput(key, f"is {wrong[0]!r:.60}; it takes yes.")
    # Says the status again, so that the few running rows are found by their index.
    return Q(IsStalled(), status=states.RUNNING)


def _match_attention(key: str, values: Sequence[str]) -> Q:
    """What stays as it is until a person acts: it asks, gave up, stands still, or does not fit."""
    if wrong := [value for value in values if value != "yes"]:
        raise InvalidInput(key, f"is {wrong[0]!r:.60}; it takes yes.")
    return (
        Q(status=states.DEAD)
        | Q(status=states.WAITING, status_reason=states.APPROVAL)
        | Q(status=states.PAUSED, status_reason=states.VERSION_MISFIT)
        | Q(IsStalled(), status=states.RUNNING)
    )


def _match_owner(key: str, values: Sequence[str]) -> Q:
    """Who submitted it (`user:3`, `token:…`); `me` is who asks."""
    who = [read_call().actor if one == "me" else one for one in values]
    nobody = str(SYSTEM)  # of whom the index says nothing
    return Q(submitted_by__in=who) & (Q() if nobody in who else ~Q(submitted_by=nobody))


def _match_parent(key: str, values: Sequence[str]) -> Q:
    if wrong := [value for value in values if read_id(value) is None]:
        raise InvalidInput(key, f"is {wrong[0]!r:.60}; it takes a task's id.")
    return Q(parent_id__in=[UUID(value) for value in values])


def _match_age(column: str) -> Callable[[str, Sequence[str]], Q]:
    """`<2h`: within the last two hours; `>1d`: longer ago than a day; `today`: since midnight."""

    def match(key: str, values: Sequence[str]) -> Q:
        return _join_any(Q(**{f"{column}__isnull": False}) & compare(key, one) for one in values)

    def compare(key: str, value: str) -> Q:
        if value == "today":
            return Q(**{f"{column}__gte": TruncDay(clock.now())})
        parts = re.fullmatch(r"([<>])([0-9]{1,5})([smhd])", value)
        if parts is None:
            raise InvalidInput(
                key,
                f"is {value!r:.60}; it takes today, <2h (since) or >2h (before), in s, m, h or d.",
            )
        then = clock.now(-float(parts[2]) * _SECONDS[parts[3]])
        return Q(**{f"{column}__{'gte' if parts[1] == '<' else 'lt'}": then})

    return match


def _match_text(key: str, values: Sequence[str]) -> Q:
    """A whole id, or a text; see `searching`."""
    text = values[-1].strip()
    found = read_id(text)
    return Q(HasText(text)) if found is None else Q(pk=found)


def _join_any(conditions: Any) -> Q:
    found = Q()
    for one in conditions:
        found |= one
    return found


FILTERS: dict[str, Callable[[str, Sequence[str]], Q]] = {
    "status": _match_status,
    "workflow": _match_column("workflow"),
    "version": _match_column("workflow_version"),
    "step": _match_column("step_name"),
    "reason": _match_column("status_reason"),
    "failure": _match_failure,
    "lane": _match_column("lane"),
    "tag": _match_tag,
    "worker": _match_worker,
    "owner": _match_owner,
    "error": _match_error,
    "stalled": _match_stalled,
    "attention": _match_attention,
    "parent": _match_parent,
    "created": _match_age("created_at"),
    "started": _match_age("started_at"),
    "finished": _match_age("finished_at"),
    "q": _match_text,
}
