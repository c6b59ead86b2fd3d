"""What an action would do to a task, told before it is done."""

from __future__ import annotations

import dataclasses
import datetime as dt
from collections.abc import Sequence
from typing import Any

from dashboard.templatetags.longwatch import duration, short_owner
from dashboard.words import LOOKS
from ledger import conf, queries, states
from ledger.models import Task
from ledger.transitions.endings import explain_undone, find_undone, list_open
from ledger.transitions.moves import count_reached

MAX_NAMED = 5
"""Effects that are named before they are undone."""


@dataclasses.dataclass(frozen=True, slots=True)
class Choice:
    """The step `name`, with what the live outputs from there on, and those before, add up to."""

    name: str
    units: int
    worked: dt.timedelta
    cost: str
    tokens: int
    before: int


def list_choices(row: Task, names: Sequence[str]) -> list[Choice]:
    """The steps that a restart or a copy may begin at, the latest reached one first."""
    found = queries.sum_steps(row.pk)
    whole = sum(one.units for one in found)
    choices = []
    for index in range(min(count_open(row), len(names)) - 1, -1, -1):
        later = [one for one in found if one.index >= index]
        worked = sum((one.worked for one in later), dt.timedelta())
        cost = conf.format_money(sum(one.nano for one in later))
        units, tokens = sum(one.units for one in later), sum(one.tokens for one in later)
        choices.append(Choice(names[index], units, worked, cost, tokens, whole - units))
    return choices


def count_open(row: Task) -> int:
    """How many steps a restart or a copy may begin at: those reached, up to what is undone."""
    undone = find_undone(row)
    if undone is None:
        return count_reached(row)
    place: int = getattr(undone, "place")  # noqa: B009  an annotation of find_undone
    return min(place + 1, count_reached(row))


def list_effects(name: str, row: Task, wall: float) -> list[tuple[str, str]]:
    """(icon, sentence) of what the action `name` does to the task as it is now.

    `wall` is what it used of its wall limit, in seconds.
    """
    worker = short_owner(row.lease_owner) if row.status == states.RUNNING else ""
    unit = f"{row.step_name}, turn {row.turn}"
    fenced = [("lock", f"{worker} is fenced off at once; what it does in {unit} is then refused.")]
    told = fenced if worker and name in {"retry", "restart", "stop", "edit"} else []
    if row.status == states.WAITING and name in {"restart", "cancel", "edit"}:
        told = [*told, ("hand", _tell_wait(row))]
    undoes = name in {"cancel", "stop", "compensate"}
    if undoes and (open_ones := list(list_open(row.pk).values_list("name", flat=True))):
        told = [*told, ("undo", _tell_undoing(open_ones, row, name))]
    elif row.ending is not None:
        told = [*told, *_tell_undoing_so_far(name)]
    way = {"restart": "restart", "fork": "copy"}.get(name)
    if way and (undone := find_undone(row)) is not None:
        told = [
            *told,
            ("undo", f"Later steps can't be chosen: {explain_undone(undone, row, way)}."),
        ]
    match name:
        case "restart":
            told = [*told, ("retry", _tell_round(row, wall))]
        case "retry" if row.waits is not None:
            told = [("hour", _tell_waiting_again(row.waits))]
        case "retry" if row.ending is None:
            told = [*told, ("retry", f"{unit} runs again now, and nobody is charged an attempt.")]
        case "stop":
            told = [*told, ("x", f"What {unit} has done so far is lost; {_tell_kept(row)}")]
        case "cancel":
            told = [*told, ("file", f"It can't be taken back; {_tell_kept(row)}")]
            if worker:
                told.append(("clock", f"{worker} ends {unit} when it next looks. If it does not, "
                             f"Stop now appears after {queries.STOP_AFTER:.0f} s."))  # fmt: skip
        case "limits" if row.status == states.DEAD:
            told = [("right", f"The task goes on at {unit}.")]
        case "edit":
            told = [*told, ("undo", "This output and all later ones are superseded, not deleted."),
                    ("retry", _tell_round(row, wall))]  # fmt: skip
        case "fork":
            told = [*told, *_tell_copy(row)]
        case "signal":
            told = [("say", _tell_signal(row))]
        case "change" if row.status == states.QUEUED:
            told = [("list", "Its place in the queue follows the lane and the priority at once.")]
        case "change":
            told = [("list", "Lane and priority count when it is queued next.")]
    return told


def _tell_undoing(names: list[str], row: Task, name: str) -> str:
    end = f"“{LOOKS[row.status].label}” again" if name == "compensate" else "cancelled"
    more = f" and {len(names) - MAX_NAMED} more" if len(names) > MAX_NAMED else ""
    listed = ", ".join(names[:MAX_NAMED]) + more
    what = "its effect" if len(names) == 1 else f"its {len(names)} effects, the last one first"
    return f"It undoes {what} ({listed}), as its workflow says how, and is {end} after that."


def _tell_undoing_so_far(name: str) -> list[tuple[str, str]]:
    """Of a task that has begun to undo its effects."""
    match name:
        case "retry":
            return [("undo", "It goes on undoing its effects, and ends after that.")]
        case "restart" | "edit":
            return [("undo", "What it has undone stays undone; the rest is not undone any more.")]
    return []


def _tell_wait(row: Task) -> str:
    if row.status_reason == states.CHILDREN:
        return f"Its {row.children_open} unfinished children are cancelled."
    return "It waits no more." if row.waits else "The open question becomes void."


def _tell_waiting_again(waits: dict[str, Any]) -> str:
    if waits["for"] == states.SIGNAL:
        return f"It waits for {waits['name']} again, with all of its time."
    if waits["for"] == states.BUDGET:
        return "It looks for room in its parent's budget again, and goes on once there is some."
    return "It waits for its children again: first try those again that did not complete."


def _tell_copy(row: Task) -> list[tuple[str, str]]:
    told = [
        ("file", "Outputs before the step are copied with what they saved; answers that people "
         "gave about them stand."),
        ("hour", "Nothing of its limits is used. No money spent, effect or open question is taken "
         "along."),
    ]  # fmt: skip
    if list_open(row.pk).exists():
        told.append(("undo", "What this task did outside stays its own: where it fails or is "
                     "cancelled it is undone, whatever becomes of the copy."))  # fmt: skip
    return told


def _tell_signal(row: Task) -> str:
    if row.status == states.WAITING and row.waits and row.waits["for"] == states.SIGNAL:
        name = row.waits["name"]
        return f"It waits for {name}, which lets it go on at once; another name is kept for later."
    return "It does not wait for a signal now: this one is kept until a step waits for its name."


def _tell_round(row: Task, wall: float) -> str:
    left = max(0, row.limit_units - row.used_units)
    money = conf.format_money(max(0, row.limit_cost - row.used_cost))
    hours = duration(max(0.0, row.limit_wall - wall))
    return (
        f"Round {row.round + 1}. It does not count against the {row.max_repairs} repairs. Left are "
        f"{left:,} of {row.limit_units:,} units, ${money} and {hours}."
    )


def _tell_kept(row: Task) -> str:
    units = f"{row.used_units:,} stored unit{'' if row.used_units == 1 else 's'}"
    return f"{units} and all artifacts stay."
