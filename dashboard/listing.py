"""What is wanted of the task list: filters, columns, order, view. All of it is in the address."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple
from urllib.parse import urlencode

from django.http import QueryDict

from ledger import queries, states
from ledger.errors import InvalidInput
from ledger.queries.lists import ENDED, NEWEST, OLDEST

VIEWS: dict[str, tuple[str, frozenset[str]]] = {
    "": ("All", frozenset(states.STATUSES)),
    "unfinished": ("Unfinished", states.UNFINISHED),
    states.RUNNING: ("Running", frozenset({states.RUNNING})),
    states.QUEUED: ("Queued", frozenset({states.QUEUED})),
    states.WAITING: ("Waiting", frozenset({states.WAITING})),
    states.SCHEDULED: ("Scheduled", frozenset({states.SCHEDULED})),
    states.PAUSED: ("Paused", frozenset({states.PAUSED})),
    states.DEAD: ("Gave up", frozenset({states.DEAD})),
    states.FAILED: ("Failed", frozenset({states.FAILED})),
    states.COMPLETED: ("Completed", frozenset({states.COMPLETED})),
    states.CANCELLED: ("Cancelled", frozenset({states.CANCELLED})),
}
"""What `status` takes: its label, and the statuses that it stands for."""

SHOWN = tuple(name for name in queries.FILTERS if name != "q")
KEYS = tuple(pre + name for name in SHOWN for pre in ("", queries.NOT))
MAX_FILTERS = 30
MAX_TEXT = 200

COLUMNS = {
    "status": "Status", "task": "Task", "workflow": "Workflow", "step": "Step",
    "progress": "Progress", "age": "Age", "money": "Money", "attempt": "Attempt",
    "worker": "Worker", "lease": "Lease", "lane": "Lane, tags",
}  # fmt: skip
USUAL = ("status", "task", "step", "progress", "age", "money", "attempt", "worker")
NUMBERS = frozenset({"age", "money"})
SORTS = {NEWEST: "Newest first", OLDEST: "Oldest first", ENDED: "Last ended first"}

HELP = (
    ("words", "a part of the title, the workflow\u2019s name or the error; or a whole id"),
    ("status:waiting", "also unfinished; several of one filter add up"),
    ("-lane:night", "a hyphen leaves out what matches"),
    ('tag:"two words"', "quotes keep words together, and make text of what looks like a filter"),
    (
        "started:<2h",
        "in the last two hours; >1d: longer ago; today. So created, finished",
    ),
    ("attention:yes", "asks a person, gave up, stands still, or fits no version"),
    ("owner:me", "submitted by you; or user:3, token:\u2026"),
)

_WORD = re.compile(r'-?[A-Za-z_]+:"[^"]*"|"[^"]*"|\S+')
_TYPED = re.compile(r"(-?)([A-Za-z_]+):(.*)", re.DOTALL)

type Pair = tuple[str, str]
"""A filter: its key, with `not_` before it when it excludes, and its value."""


class Entry(NamedTuple):
    """What stands in the search field."""

    typed: list[Pair]
    """Filters: they go into the address, one by one."""
    rest: str
    """What stays in the field."""
    words: str
    """The text that is searched for."""
    problems: list[str]


@dataclasses.dataclass(frozen=True, slots=True)
class Wanted:
    """The list that an address asks for.

    `columns` is empty for the usual ones, `view` the id of the saved view that it began as.
    """

    pairs: Sequence[Pair] = ()
    columns: tuple[str, ...] = ()
    sort: str = NEWEST
    view: str = ""

    def write(self, *more: Pair, **changes: Any) -> str:
        """The query of its address, with `changes`; what is usual is not in it."""
        one = dataclasses.replace(self, **changes)
        extra = {
            "columns": ",".join(one.columns),
            "sort": "" if one.sort == NEWEST else one.sort,
            "view": one.view,
        }
        named = [(key, value) for key, value in extra.items() if value]
        return write_query(one.pairs, *named, *more)

    def list_fields(self, back: str) -> list[Pair]:
        """Its filter as the fields of a form that acts on what it shows, and leads back to it."""
        return [*quote_text(self.pairs), ("back", back)]

    def list_columns(self) -> tuple[str, ...]:
        """The columns that are shown; a row is nothing without its task."""
        chosen = self.columns or USUAL
        return chosen if "task" in chosen else ("task", *chosen)

    def list_sorts(self) -> list[str]:
        """The orders that the list can have: by their end only tasks that all have ended."""
        ended = queries.TaskFilter(self.pairs).list_statuses() <= states.FINISHED
        return [sort for sort in SORTS if ended or sort != ENDED]


def read_wanted(query: QueryDict) -> tuple[Wanted, Entry, list[str]]:
    """What an address asks for, what stands in its search field, and what is wrong with it."""
    entry = read_entry(query.get("q", ""))
    pairs = [(key, text) for key in KEYS for text in dict.fromkeys(query.getlist(key)) if text]
    pairs, wrong = check_filters(pairs)
    if entry.words:
        pairs.append(("q", entry.words))
    names = query.get("columns", "").split(",")
    columns = tuple(dict.fromkeys(name for name in names if name in COLUMNS))
    problems = entry.problems + wrong
    sort = query.get("sort", "") or NEWEST
    wanted = Wanted(pairs, () if columns == USUAL else columns, NEWEST, query.get("view", "")[:36])
    if sort not in SORTS:
        problems.append(f"sort: there is {', '.join(SORTS)}.")
    elif sort not in wanted.list_sorts():
        problems.append("sort: what has not ended is not sorted by its end; choose such a status.")
    else:
        wanted = dataclasses.replace(wanted, sort=sort)
    return wanted, entry, problems


def read_entry(text: str) -> Entry:
    """Filters (`lane:night`, `-tag:"two words"`) and text; quotes make text of anything."""
    entry, rest, words = Entry([], "", "", []), [], []
    for word in _WORD.findall(text.replace("\0", "")[:MAX_TEXT]):
        sign, name, value = found.groups() if (found := _TYPED.fullmatch(word)) else ("", "", "")
        value = value.strip('"')
        if name in SHOWN and value:
            entry.typed.append(((queries.NOT if sign else "") + name, value))
            continue
        rest.append(word)
        if name in SHOWN:
            entry.problems.append(f"{word} has no value; write it behind the colon.")
        elif value:
            known = ", ".join(SHOWN)
            entry.problems.append(
                f"{word:.60} is no filter; put it in quotes to search for it, or use {known}."
            )
        else:
            words.append(word.replace('"', ""))
    return entry._replace(rest=" ".join(rest), words=" ".join(filter(None, words)))


def check_filters(given: list[Pair]) -> tuple[list[Pair], list[str]]:
    """(those that can be used, what is wrong with the others)."""
    good, problems = [], []
    for key, value in given[:MAX_FILTERS]:
        try:
            if "\0" in value or len(value) > MAX_TEXT:
                raise InvalidInput(key, f"takes up to {MAX_TEXT} characters of text.")
            queries.match_filter(key, [value])
            good.append((key, value))
        except InvalidInput as error:
            problems.append(f"{say_key(key)}: {error.reason}")
    if len(given) > MAX_FILTERS:
        problems.append(f"{len(given)} filters are given; {MAX_FILTERS} are the most.")
    return good, problems


def say_key(key: str) -> str:
    """A key as it is typed: `lane`, `-lane`."""
    return key.replace(queries.NOT, "-", 1) if key.startswith(queries.NOT) else key


def list_chips(wanted: Wanted | Sequence[Pair]) -> list[dict[str, str]]:
    """Each filter that is on, with the query of the list without it."""
    wanted = wanted if isinstance(wanted, Wanted) else Wanted(wanted)
    pairs = wanted.pairs
    return [
        {
            "name": "text" if key == "q" else key.replace("_", " "),
            "value": say_value(key, value),
            "without": wanted.write(pairs=[other for other in pairs if other != (key, value)]),
        }
        for key, value in pairs
    ]


def say_value(key: str, value: str) -> str:
    """The value of a filter as a person reads it."""
    if key.removeprefix(queries.NOT) in {"stalled", "attention"}:
        return ""
    return VIEWS[value][0].lower() if key.endswith("status") else value


def write_query(pairs: Iterable[Pair], *more: Pair) -> str:
    """The query of the list so narrowed; text that looks like a filter is quoted again."""
    return urlencode([*quote_text(pairs), *more])


def quote_text(pairs: Iterable[Pair]) -> list[Pair]:
    """The filters as they stand in an address or a form."""
    return [(key, f'"{text}"' if key == "q" and ":" in text else text) for key, text in pairs]
