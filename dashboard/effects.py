"""What an action would do to a task, told before it is done."""

from __future__ import annotations

import dataclasses
import datetime as dt
from collections.abc import Sequence

from dashboard.templatetags.longwatch import duration, short_owner
from ledger import conf, queries, states
from ledger.models import Task


@dataclasses.dataclass(frozen=True, slots=True)
class Choice:
    """A restart from `name`: the live outputs that it supersedes and what they had cost."""

    name: str
    units: int
    worked: dt.timedelta
    cost: str
    tokens: int


def list_choices(row: Task, names: Sequence[str]) -> list[Choice]:
    """The steps that a restart may begin at, the latest reached one first."""
    found = queries.sum_steps(row.pk)
    choices = []
    for index in range(min(row.step_index, len(names) - 1), -1, -1):
        later = [one for one in found if one.index >= index]
        worked = sum((one.worked for one in later), dt.timedelta())
        cost = conf.format_money(sum(one.nano for one in later))
        units, tokens = sum(one.units for one in later), sum(one.tokens for one in later)
        choices.append(Choice(names[index], units, worked, cost, tokens))
    return choices


def list_effects(name: str, row: Task, wall: float) -> list[tuple[str, str]]:
    """(icon, sentence) of what the action `name` does to the task as it is now.

    `wall` is what it used of its wall limit, in seconds.
    """
    worker = short_owner(row.lease_owner) if row.status == states.RUNNING else ""
    unit = f"{row.step_name}, turn {row.turn}"
    fenced = [("lock", f"{worker} is fenced off at once; what it does in {unit} is then refused.")]
    told = fenced if worker and name in {"retry", "restart", "stop"} else []
    if row.status == states.WAITING and name in {"restart", "cancel"}:
        told = [*told, ("hand", "The open question becomes void.")]
    match name:
        case "restart":
            told = [*told, ("retry", _tell_round(row, wall))]
        case "retry":
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
    return told


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
