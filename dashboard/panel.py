"""The step panel of a task's page: one step, one of its units, and what was tried for it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from dashboard import past, words
from dashboard.evaluations import read_evaluation
from dashboard.loglines import LEVELS
from dashboard.transcript import tell_turn
from dashboard.wish import TABS, Wish
from ledger import registry, states
from ledger.errors import LedgerError

MAX_LISTED = 60
"""Units of a step that have a link; the others are on the page of all units."""


def choose_step(wish: Wish, task: Mapping[str, Any], units: Sequence[dict[str, Any]]) -> str:
    """The step that the panel is about: the chosen unit's, the chosen one, or where the task is."""
    unit = next((unit for unit in units if unit["chosen"]), None) if wish.unit else None
    return str(unit["step_name"] if unit else wish.step or task["step"]["name"])


def open_panel(
    wish: Wish,
    task: Mapping[str, Any],
    units: Sequence[dict[str, Any]],
    record: Sequence[dict[str, Any]],
    called: Mapping[str, str],
) -> dict[str, Any]:
    """The chosen step and unit, or where the task is and the last unit of all.

    Attempts are those at the chosen unit; while a step is at work, at the one that it is at.
    """
    unit = next((unit for unit in units if unit["chosen"]), None)
    edit = past.find_edit(record, unit, called) if unit else None
    here = task["step"]["name"]
    step = choose_step(wish, task, units)
    own = [one for one in units if one["step_name"] == step]
    at = own.index(unit) if unit in own else 0
    at_work = step == here and task["status"] != states.COMPLETED
    tried = (here, task["step"]["turn"])
    if unit and (wish.unit or not at_work):
        tried = (unit["step_name"], unit["turn"])
    versions = [
        one for one in units
        if unit and one is not unit
        and (one["step_name"], one["turn"]) == (unit["step_name"], unit["turn"])
    ]  # fmt: skip
    attempts = past.list_attempts(record, *tried, called)
    stored = sum((one["step_name"], one["turn"]) == tried for one in units)
    return {
        "tabs": TABS,
        "levels": LEVELS,
        "feedback": find_feedback(
            record, task["round"] if at_work else unit["round"] if unit else 0
        ),
        **find_before(unit, units),
        "step": step,
        "look": task["look"] if at_work else words.LOOKS[states.COMPLETED] if own else None,
        "at_work": at_work and not wish.unit,
        "unit": unit,
        "edit": edit,
        "evaluation": read_evaluation(unit["shown_output"]) if unit else [],
        "turn": tell_turn(unit["shown_output"]) if unit else None,
        "missing": bool(wish.unit or wish.step) and unit is None,
        "tries": task["status"] in states.WALL_RUNS,
        "retries": count_retries(task, step),
        "tried": tried,
        "attempts": attempts,
        "compared": len(attempts) + stored > 1,
        "versions": versions[::-1],
        "units": own[: -MAX_LISTED - 1 : -1],
        "count": len(own),
        "earlier": own[at - 1]["seq"] if at else 0,
        "later": own[at + 1]["seq"] if at + 1 < len(own) else 0,
    }


def find_feedback(record: Sequence[dict[str, Any]], number: int) -> Any:
    """What was found when the round began; None for the first, and where nobody said anything."""
    data = (one["data"] for one in record if one["kind"] == "repaired")
    return next((one.get("feedback") for one in data if one.get("round") == number), None)


def find_before(unit: dict[str, Any] | None, units: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """The last of the units whose outputs counted when this one ran, and how many they were."""
    counted = [
        one for one in units
        if unit and one["seq"] < unit["seq"]
        and (one["superseded_in_round"] is None or one["superseded_in_round"] > unit["round"])
    ]  # fmt: skip
    return {"came_before": counted[-1] if counted else None, "came_before_count": len(counted)}


def count_retries(task: Mapping[str, Any], step: str) -> int | None:
    """How often a failed unit of the step is run again; None when nobody here knows."""
    try:
        found = registry.get(task["workflow"], task["workflow_version"])
        return found.steps[found.index_of(step)].retries
    except LedgerError:
        return None
