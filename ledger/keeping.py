"""How long the site keeps what is over: rules of LONGWATCH_RETENTION, by lane, workflow and status.

LONGWATCH_RETENTION = {"rules": [{"lane": ["tests"], "payload_days": 7, "task_days": 90}]}: the
first rule that fits a finished task says what becomes of it; without one it is kept for good. Also
how a value looks that was removed: what it was is told by its digest.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Annotated, Any, Final, Self

from django.conf import settings
from django.core.exceptions import ImproperlyConfigured
from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator

from ledger import states
from ledger.canonical import dump_json

REMOVED: Final = "$removed"
"""The key of what stands in a removed value's place: `{sha256, size, why}`."""

MARK: Final = "(Removed by retention, "
"""How the text begins that stands in a removed text's place."""

Days = Annotated[float, Field(gt=0, le=36_500)]


class Rule(BaseModel):
    """What becomes of finished tasks of these lanes, workflows and statuses; empty is any.

    Days count from a task's end. After `payload_days` contents go and proof stays, after
    `task_days` the task goes.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    lane: list[str] = []
    workflow: list[str] = []
    status: list[str] = []
    payload_days: Days | None = None
    task_days: Days | None = None

    @field_validator("status")
    @classmethod
    def check_status(cls, value: list[str]) -> list[str]:
        """Only what is over can be removed."""
        if wrong := sorted(set(value) - states.FINISHED):
            raise ValueError(f"{', '.join(wrong)}: takes {', '.join(sorted(states.FINISHED))}")
        return value

    @model_validator(mode="after")
    def check_order(self) -> Self:
        """A task can't go before its contents."""
        if None not in (self.payload_days, self.task_days) and self.days[0] > self.days[1]:
            raise ValueError("payload_days is more than task_days")
        return self

    @property
    def days(self) -> tuple[float, float]:
        """(until contents go, until the task goes); endless for never."""
        never = float("inf")
        return self.payload_days or never, self.task_days or never

    def fits(self, lane: str, workflow: str, status: str) -> bool:
        """Whether a task is the rule's."""
        pairs = ((self.lane, lane), (self.workflow, workflow), (self.status, status))
        return all(not wanted or one in wanted for wanted, one in pairs)

    def describe(self) -> str:
        """In words, for people."""
        which = [
            f"{name} {', '.join(wanted)}"
            for name in ("lane", "workflow", "status")
            if (wanted := getattr(self, name))
        ]
        payload, task = ("never" if not days else f"after {days:g} days"
                         for days in (self.payload_days, self.task_days))  # fmt: skip
        return f"{'; '.join(which) or 'every task'}: contents go {payload}, the task {task}"


def read_rules() -> list[Rule]:
    """The rules of the settings. Raises ImproperlyConfigured, naming the part and the cure."""
    given = getattr(settings, "LONGWATCH_RETENTION", None) or {}
    rules = given.get("rules") if isinstance(given, Mapping) else None
    if given and (not isinstance(rules, list) or len(given) > 1):
        raise ImproperlyConfigured(
            'LONGWATCH_RETENTION takes rules, as {"rules": [{"payload_days": 30}]}.'
        )
    return [_read_rule(number, one) for number, one in enumerate(rules or [], 1)]


def _read_rule(number: int, given: Any) -> Rule:
    try:
        return Rule.model_validate(given)
    except ValidationError as error:
        wrong = error.errors()[0]
        where = ".".join(str(part) for part in wrong["loc"])
        raise ImproperlyConfigured(
            f"LONGWATCH_RETENTION, rule {number}{', ' + where if where else ''}: {wrong['msg']}."
        ) from None


def find_rule(rules: list[Rule], lane: str, workflow: str, status: str) -> Rule | None:
    """The first that fits."""
    return next((rule for rule in rules if rule.fits(lane, workflow, status)), None)


def say_why(days: float) -> str:
    """Why something is not there any more."""
    return f"removed by retention, {days:g} days after the task's end"


def strip_value(value: Any, days: float) -> Any:
    """What stands in the place of a JSON value: proof of what it was; itself if it is empty."""
    if not value or is_removed(value):
        return value
    text = dump_json(value).encode()
    proof = {"sha256": hashlib.sha256(text).hexdigest(), "size": len(text), "why": say_why(days)}
    return {REMOVED: proof}


def strip_text(text: str, days: float) -> str:
    """The same of a text."""
    if not text or text.startswith(MARK):
        return text
    data = text.encode()
    return (
        f"{MARK}{days:g} days after the task's end: {len(data)} bytes, "
        f"SHA-256 {hashlib.sha256(data).hexdigest()})"
    )


def is_removed(value: Any) -> bool:
    """True for what `strip_value` made."""
    return isinstance(value, dict) and value.keys() == {REMOVED}
