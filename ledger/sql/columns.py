"""The columns of a task: all, what a new one begins with, and those that a claim hands over; how
its status is asked for."""

import re
from collections.abc import Callable, Collection, Mapping
from typing import Any

from django.db import DEFAULT_DB_ALIAS
from django.db.models.base import ModelState

from ledger.models import Task

_MAKERS: dict[str, Callable[[], Any]] = {
    str(field.column): field.get_default for field in Task._meta.concrete_fields
}
_DEFAULTS = {column: make_default() for column, make_default in _MAKERS.items()}
_MUTABLE = [column for column, value in _DEFAULTS.items() if isinstance(value, (list, dict))]


def write_values(given: Collection[str], mark: str, filled: Mapping[str, str]) -> dict[str, str]:
    """The SQL of each column of a new task: of the given ones a parameter, `mark` with its name in
    it, of the others what the database fills in, else the default as a literal."""
    return {
        column: mark.format(column)
        if column in given
        else filled.get(column) or _write_literal(default)
        for column, default in _DEFAULTS.items()
    }


def _write_literal(value: Any) -> str:
    """SQL of a default: a text, a number, a truth, nothing, or an empty JSON list or object."""
    if value is None:
        return "NULL"
    return f"'{value}'" if isinstance(value, (str, list, dict)) else str(value)


def make_task(given: Mapping[str, Any]) -> Task:
    """A stored task of these columns, the others at their defaults. Not by the model's own course
    through every field, a fifth of a submission: nothing listens to it."""
    task = Task.__new__(Task)
    task.__dict__.update(_DEFAULTS)
    task.__dict__.update({column: _MAKERS[column]() for column in _MUTABLE})
    task.__dict__.update(given)
    task._state = ModelState()
    task._state.adding, task._state.db = False, DEFAULT_DB_ALIAS
    return task


CLAIM_COLUMNS = [
    "id",
    "fence",
    "lease_owner",
    "workflow",
    "workflow_version",
    "definition_digest",
    "lane",
    "title",
    "submitted_by",
    "step_index",
    "step_name",
    "turn",
    "total_steps",
    "attempts",
    "reclaims",
    "releases",
    "round",
    "repair_count",
    "max_repairs",
    "input",
    "progress",
    "feedback",
    "answer",
    "workspace",
    "limit_units",
    "limit_tokens",
    "limit_cost",
    "used_units",
    "used_tokens_in",
    "used_tokens_out",
    "used_cost",
    "parent_id",
    "ending",
    "event_seq",
    "claimed_at",
]
"""In the order of the fields of `ledger.sql.Claimed`."""

_STATUS = re.compile(r"(\b(?:\w+\.)?status) = ('\w+')")


def by_partial_index(text: str) -> str:
    """A statement for PostgreSQL that finds rows by the index of just their status, in its order.

    For a minute after a burst the statistics say that nothing is queued. To sort that nothing is as
    cheap as to go by the index, so the planner takes the one over every status, and each claim
    reads all that is queued. That index fits no OR; a partial one is still known to have it all.
    """
    return _STATUS.sub(r"(\1 = \2 OR \1 IN (\2, \2))", text)
