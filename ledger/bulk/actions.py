"""What can be done to many tasks at once, each by the transition that does it to one.

Why a task is left out is said by conditions on its row, the first that holds: the preview counts by
them, the operation stores them, and they are looked at again under the lock of the task.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

from django.db.models import Case, CharField, Q, Value, When

from ledger import limits, queries, states
from ledger.access import OPERATE
from ledger.errors import InvalidInput
from ledger.events import Actor
from ledger.models import Task
from ledger.transitions import operators
from ledger.transitions.moves import count_reached
from ledger.transitions.submit import check_count, read_columns

type Why = tuple[Q, str]
type Run = Callable[[Task, Actor, str, dict[str, Any]], str]
"""Does it to a locked task for a person, with reason and arguments; says why there was nothing to
do, or nothing."""

GOES_ON = frozenset(states.UNFINISHED - {states.PAUSED})
"""What a task passes through by itself, without anybody's doing."""
WORKS = frozenset({states.QUEUED, states.RUNNING})

COMPLETED: Why = (Q(status=states.COMPLETED), "It is completed, which is final.")
CANCELLED: Why = (Q(status=states.CANCELLED), "It is cancelled, which is final.")
ENDED: Why = (Q(status__in=sorted(states.FINISHED)), "It has ended.")


@dataclasses.dataclass(frozen=True, slots=True)
class BulkAction:
    """One of them. `alike` are statuses that make no difference to it: a task that has moved from
    one of them to another since it was chosen is still what was chosen.

    `read` checks arguments and gives them as they are stored. Raises InvalidInput.
    """

    name: str
    run: Run
    left_out: tuple[Why, ...]
    alike: frozenset[str] = GOES_ON
    read: Callable[[Mapping[str, Any]], dict[str, Any]] = lambda given: _read_none(given)
    scope: str = OPERATE

    def explain(self) -> Case | Value:
        """An expression: why a task is left out, empty when it is not."""
        whens = (When(wrong, then=Value(why)) for wrong, why in self.left_out)
        return Case(*whens, default=Value(""), output_field=CharField())

    def is_other(self, seen: str, now: str) -> bool:
        """Whether a task at `now` is another than the one that was chosen at `seen`."""
        return seen != now and not {seen, now} <= self.alike


def _read_none(given: Mapping[str, Any]) -> dict[str, Any]:
    check_names(given)
    return {}


def check_names(given: Mapping[str, Any], *known: str) -> None:
    for name in given.keys() - set(known):
        takes = f"takes {', '.join(known)}" if known else "takes none"
        raise InvalidInput(
            f"arguments.{name}"[:100], f"is no argument of the action, which {takes}"
        )


def _run_plain(transition: Callable[..., None]) -> Run:
    def run(task: Task, actor: Actor, reason: str, given: dict[str, Any]) -> str:
        transition(task.pk, actor=actor, reason=reason)
        return ""

    return run


# --- Restart ------------------------------------------------------------------------------------
def _read_restart(given: Mapping[str, Any]) -> dict[str, Any]:
    """`to_step`: a name, or empty for the latest step that each task has reached."""
    check_names(given, "to_step", "note", "workflow_version")
    read = {name: given.get(name) or "" for name in ("to_step", "note", "workflow_version")}
    for name, text in read.items():
        operators.check_reason(text, f"arguments.{name}")
    return {name: text for name, text in read.items() if text}


def _restart(task: Task, actor: Actor, reason: str, given: dict[str, Any]) -> str:
    version = given.get("workflow_version")
    step = given.get("to_step") or find_latest_step(task, version)
    note = given.get("note", "")
    operators.restart_task(
        task.pk, to_step=step, note=note, version=version, actor=actor, reason=reason
    )
    return ""


def find_latest_step(task: Task, version: str | None = None) -> str:
    """The last step that the task can be restarted from. Raises UnknownWorkflow."""
    steps = queries.find_workflow(task.workflow, version or task.workflow_version).steps
    names = [step.name for step in steps]
    last = min(count_reached(task), len(names)) - 1
    return names[last]


# --- Limits -------------------------------------------------------------------------------------
def _read_limits(given: Mapping[str, Any]) -> dict[str, Any]:
    check_names(given, *limits.NAMES)
    wanted = {name: value for name, value in given.items() if value is not None}
    if not wanted:
        raise InvalidInput("arguments", f"name at least one of {', '.join(limits.NAMES)}")
    limits.read_limits(wanted, fill=False)
    return wanted


def _raise_limits(task: Task, actor: Actor, reason: str, given: dict[str, Any]) -> str:
    """Only those that are lower than what is given: a task that has more keeps it."""
    columns = limits.read_limits(given, fill=False)
    lower = {
        name: value
        for name, value in given.items()
        if _is_lower(getattr(task, _COLUMNS[name]), columns[_COLUMNS[name]])
    }
    if not lower:
        return "Its limits are that high already."
    operators.extend_limits(task.pk, limits_given=lower, actor=actor, reason=reason)
    return ""


def _is_lower(now: Any, wanted: Any) -> bool:
    return now is not None and now < wanted


_COLUMNS = {name: "deadline_at" if name == "deadline_at" else f"limit_{name}"
            for name in limits.NAMES}  # fmt: skip


# --- Labels -------------------------------------------------------------------------------------
def _read_tags(given: Mapping[str, Any]) -> dict[str, Any]:
    check_names(given, "tags")
    tags = given.get("tags")
    if not tags:
        raise InvalidInput("arguments.tags", "takes at least one tag")
    try:
        read_columns("", "default", 0, tags, None, None, None)
    except InvalidInput as error:
        raise InvalidInput(f"arguments.{error.field}", error.reason) from None
    return {"tags": list(dict.fromkeys(tags))}


def _add_tags(task: Task, actor: Actor, reason: str, given: dict[str, Any]) -> str:
    tags = list(dict.fromkeys([*task.tags, *given["tags"]]))
    return _set_tags(task, actor, reason, tags, "It has that tag already.")


def _remove_tags(task: Task, actor: Actor, reason: str, given: dict[str, Any]) -> str:
    tags = [tag for tag in task.tags if tag not in given["tags"]]
    return _set_tags(task, actor, reason, tags, "It does not have that tag.")


def _set_tags(task: Task, actor: Actor, reason: str, tags: list[str], same: str) -> str:
    if tags == task.tags:
        return same
    operators.change_task(task.pk, tags=tags, actor=actor, reason=reason)
    return ""


def _read_priority(given: Mapping[str, Any]) -> dict[str, Any]:
    check_names(given, "priority")
    return {"priority": check_count("arguments.priority", given.get("priority"), -100, 100)}


def _set_priority(task: Task, actor: Actor, reason: str, given: dict[str, Any]) -> str:
    if task.priority == given["priority"]:
        return "It has that priority already."
    operators.change_task(task.pk, priority=given["priority"], actor=actor, reason=reason)
    return ""


_UNDOING: Why = (
    Q(ending__isnull=False, status__in=sorted(states.UNFINISHED)),
    "It is undoing its effects, and ends after that.",
)
_NO_LIMIT: Why = (
    Q(status=states.FAILED)
    | Q(status=states.DEAD) & ~Q(status_reason__in=sorted(states.LIMIT_REASONS)),
    "No limit ended it; retry it, or restart it from a step.",
)
_FINAL = (COMPLETED, CANCELLED)


def _make_label(
    name: str, run: Run, read: Callable[[Mapping[str, Any]], dict[str, Any]]
) -> BulkAction:
    """A change of what a task is labelled with: where it stands makes no difference."""
    alike = frozenset(states.STATUSES) - states.FINAL
    return BulkAction(name, run, _FINAL, alike=alike, read=read)


_ALL = (
    BulkAction(
        "cancel", _run_plain(operators.cancel_task),
        (*_FINAL, _UNDOING, (Q(cancel_requested=True), "A cancel is asked for already.")),
    ),
    BulkAction(
        "pause", _run_plain(operators.pause_task),
        (ENDED, (Q(status=states.PAUSED) | Q(pause_requested=True),
                 "It is paused already, or pauses after its unit.")),
    ),
    BulkAction(
        "resume", _run_plain(operators.resume_task),
        (ENDED, (~Q(status=states.PAUSED) & Q(pause_requested=False), "It is not paused.")),
    ),
    BulkAction(
        "retry", _run_plain(operators.retry_task),
        (*_FINAL, (Q(status=states.QUEUED), "It is queued already."),
         (Q(status=states.WAITING), "It waits; there is nothing to retry."),
         (Q(status=states.PAUSED), "It is paused; resume it.")),
        alike=WORKS,
    ),
    BulkAction("restart", _restart, _FINAL, alike=WORKS, read=_read_restart),
    BulkAction("limits", _raise_limits, (*_FINAL, _NO_LIMIT), read=_read_limits),
    _make_label("tag", _add_tags, _read_tags),
    _make_label("untag", _remove_tags, _read_tags),
    _make_label("priority", _set_priority, _read_priority),
)  # fmt: skip

BULK_ACTIONS = {action.name: action for action in _ALL}


def find_action(name: str) -> BulkAction:
    """The action of this name. Raises InvalidInput."""
    if name not in BULK_ACTIONS:
        raise InvalidInput("action", f"is {name!r:.60}; it takes one of {', '.join(BULK_ACTIONS)}")
    return BULK_ACTIONS[name]
