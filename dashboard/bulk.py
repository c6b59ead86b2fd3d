"""Many tasks at once: what is chosen in an address, what an action is called and would do."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterable, Mapping
from typing import Any
from urllib.parse import urlencode

from django.http import QueryDict
from django.urls import reverse
from django.utils.http import url_has_allowed_host_and_scheme

from dashboard import listing, words
from ledger import states
from ledger.bulk.selecting import MAX_ITEMS, Preview, Selection, read_ids
from ledger.errors import InvalidInput

EXPORT = "export"
TYPED_OVER = 25
"""Beyond so many tasks the number is typed."""


@dataclasses.dataclass(frozen=True, slots=True)
class Deed:
    """What an action is called: on its tab, and with the number of tasks."""

    label: str
    icon: str
    many: str
    safe: str = "Leave them as they are"
    danger: bool = False
    noun: str = "task"

    def name(self, number: int) -> str:
        """'Cancel 12 tasks'."""
        return self.many.format(f"{number:,} {self.noun}{'' if number == 1 else 's'}")


DEEDS = {
    "pause": Deed("Pause", "pause", "Pause {}"),
    "resume": Deed("Resume", "right", "Resume {}"),
    "retry": Deed("Retry now", "retry", "Retry {} now"),
    "restart": Deed("Restart from step", "undo", "Restart {}"),
    "limits": Deed("Raise limit", "hour", "Raise the limits of {}"),
    "tag": Deed("Add tag", "flag", "Tag {}"),
    "untag": Deed("Remove tag", "flag", "Remove tags from {}"),
    "priority": Deed("Set priority", "up", "Set the priority of {}"),
    "cancel": Deed("Cancel", "x", "Cancel {}", safe="Keep the tasks", danger=True),
}

ANSWER_DEEDS = {
    "approve": Deed("Approve", "check", "Approve {}", safe="Keep looking", noun="question"),
    "reject": Deed("Reject", "x", "Reject {}", safe="Keep looking", danger=True, noun="question"),
}
"""Of questions, answered together."""

OPERATIONS = {
    "running": words.Look("Under way", "run", "is-run"),
    "stopping": words.Look("Stopping", "pause", "is-idle"),
    "stopped": words.Look("Stopped", "cancel", "is-idle"),
    "done": words.Look("Done", "ok", "is-ok"),
}
OUTCOMES = {
    "pending": words.Look("To be done", "idle", "is-idle"),
    "done": words.Look("Done", "ok", "is-ok"),
    "refused": words.Look("Refused", "fail", "is-fail"),
    "skipped": words.Look("Left out", "cancel", "is-idle"),
    "stopped": words.Look("Stopped", "pause", "is-idle"),
}
"""What came of a task, in the order of the tabs of a page."""


_PERSON = re.compile(r"\b(?:user:\d+|token:[0-9a-f-]{36})\b")


def find_people(texts: Iterable[str]) -> set[str]:
    """Who is named in sentences of the ledger's, which call people by their keys."""
    return {one for text in texts for one in _PERSON.findall(text)}


def write_names(text: str, called: Mapping[str, str]) -> str:
    """The sentence with their names."""
    return _PERSON.sub(lambda found: called.get(found[0], found[0]), text)


def name_deed(name: str, number: int) -> str:
    """'Cancel 12 tasks', of any action that an operation may have."""
    deed = (DEEDS | ANSWER_DEEDS).get(name)
    return deed.name(number) if deed else f"{name.capitalize()} {number:,}"


@dataclasses.dataclass(frozen=True, slots=True)
class Chosen:
    """What an address or a form asks for. `back` is the list that it was chosen on."""

    action: str
    ids: tuple[str, ...]
    pairs: tuple[tuple[str, str], ...] | None
    back: str

    def list_fields(self) -> list[tuple[str, str]]:
        """The selection, as the fields of an address or a form; without the action."""
        if self.pairs is None:
            chosen = [("task", one) for one in self.ids]
        else:
            chosen = [("all", "1"), *_quote(self.pairs)]
        return [*chosen, *([("back", self.back)] if self.back else [])]

    def write(self, action: str, **more: str) -> str:
        """The query of the page that asks about `action`."""
        return urlencode([("action", action), *self.list_fields(), *more.items()])

    def find_list(self) -> str:
        """The list that it was chosen on, with its filter."""
        if self.back or self.pairs is None:
            return self.back or reverse("dashboard:tasks")
        return link_list(self.pairs)

    def select(self) -> Selection:
        """As the ledger takes it. Raises InvalidInput where nothing is chosen, or an id is none."""
        if self.pairs is not None:
            return Selection(pairs=self.pairs)
        if not self.ids:
            raise InvalidInput("tasks", "none is chosen; choose some on the list of tasks")
        return Selection(ids=read_ids(self.ids))


def read_chosen(given: QueryDict) -> Chosen:
    """What is asked for. Raises InvalidInput for a filter: left out, it would choose more."""
    back = given.get("back", "")
    safe = back.startswith("/") and url_has_allowed_host_and_scheme(back, allowed_hosts=None)
    ids = tuple(dict.fromkeys(one for one in given.getlist("task") if one))[: MAX_ITEMS + 1]
    pairs = _read_pairs(given) if given.get("all") else None
    return Chosen(given.get("action", ""), ids, pairs, back if safe else "")


def _read_pairs(given: QueryDict) -> tuple[tuple[str, str], ...]:
    entry = listing.read_entry(given.get("q", ""))
    found = [
        (key, text) for key in listing.KEYS for text in dict.fromkeys(given.getlist(key)) if text
    ]
    pairs, wrong = listing.check_filters([*found, *entry.typed])
    if problems := entry.problems + wrong:
        raise InvalidInput("filter", " ".join(problems))
    return (*pairs, *([("q", entry.words)] if entry.words else []))


def _quote(pairs: tuple[tuple[str, str], ...]) -> list[tuple[str, str]]:
    """Text that looks like a filter is quoted, as it stands in the field of the list."""
    return [(key, f'"{text}"' if key == "q" and ":" in text else text) for key, text in pairs]


def link_list(pairs: Any) -> str:
    """The list of tasks, narrowed by the filter of an operation."""
    query = urlencode(_quote(tuple((str(key), str(value)) for key, value in pairs)))
    return reverse("dashboard:tasks") + (f"?{query}" if query else "")


def list_effects(name: str, found: Preview, used: tuple[int, int]) -> list[tuple[str, str]]:
    """(icon, sentence) of what the action does to those that it is done to."""
    counts = found.count_statuses()
    running, waiting = counts.get(states.RUNNING, 0), counts.get(states.WAITING, 0)
    told = []
    if running and name in {"retry", "restart"}:
        told.append(("lock", f"{_count(running)} from {_its(running)} worker at once; what that "
                     "does in the unit in hand is then refused."))  # fmt: skip
    if running and name in {"cancel", "pause"}:
        ends = "ends" if name == "cancel" else "pauses"
        told.append(("clock", f"{_say(running)} running: each {ends} at the end of its unit."))
    if waiting and name in {"cancel", "restart"}:
        told.append(("hand", f"{_say(waiting)} waiting: an open question is void, and nobody can "
                     "answer it any more."))  # fmt: skip
    tokens, cost = used
    spent = f"{words.say_money(cost)} and {tokens:,} tokens"
    match name:
        case "cancel":
            told += [("undo", "What they did outside is undone first, where they can."),
                     ("file", f"It can't be taken back; the {spent} that they used stay "
                      "on record, and so do their outputs.")]  # fmt: skip
        case "restart":
            told += [("undo", "Outputs of that step and of all later ones are superseded, not "
                      "deleted."),
                     ("retry", f"So far they used {spent}; doing it again costs at most about as "
                      "much.")]  # fmt: skip
        case "retry":
            told.append(("retry", "The same unit of each runs again now, and nobody is charged "
                         "an attempt."))  # fmt: skip
        case "limits":
            told.append(("hour", "A limit that is lower is raised, one that is higher stays. What "
                         "a limit had ended goes on."))  # fmt: skip
        case "priority":
            told.append(("list", "The places in the queue follow at once."))
    return told


def _say(number: int) -> str:
    return f"{number:,} {'is' if number == 1 else 'are'}"


def _count(number: int) -> str:
    return f"{number:,} running {'is' if number == 1 else 'are'} taken"


def _its(number: int) -> str:
    return "its" if number == 1 else "their"


def list_arguments(action: str, arguments: Mapping[str, Any]) -> list[tuple[str, str]]:
    """(name, value) of what an action was given, in words."""
    latest = action == "restart" and "to_step" not in arguments
    names = {"to_step": "Step", "note": "Feedback", "wall": "Working time", "cost": "Money",
             "workflow_version": "Version", "deadline_at": "Deadline"}  # fmt: skip
    shown = [("Step", "the latest of each task")] if latest else []
    for name, value in arguments.items():
        if name == "undo_seconds":
            continue
        text = ", ".join(map(str, value)) if isinstance(value, list) else str(value)
        if name == "wall":
            text = f"{float(value) / 3600:g} h"
        if name == "cost":
            text = f"${text}"
        shown.append((names.get(name, name.capitalize()), text))
    return shown
