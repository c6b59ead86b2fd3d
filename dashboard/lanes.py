"""The form of a lane's settings, and how lanes are shown."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from django import forms

from dashboard import words
from ledger.models.lane import PERIODS
from ledger.queries import COUNT_CAP

OPEN = words.Look("Open", "ok", "is-ok")
FULL = words.Look("Full", "wait", "is-wait", "as many run as may")
PAUSED = words.Look("Paused", "pause", "is-idle", "starts nothing")
OVER = words.Look("Over budget", "stall", "is-stall")

HELP = {
    "weight": "Turns beside the other lanes: 3 has three for each one of a lane with 1.",
    "cap": "Tasks that run at once. Empty: no cap.",
    "rate": "Units that start in a second or minute. Empty: no rate.",
    "per": "What the rate counts by.",
    "burst": "Units that may start at once after a rest.",
    "cost_day": "In $, until 00:00 UTC. Empty: no budget.",
    "cost_month": "In $, until the month ends (UTC). Empty: no budget.",
    "tokens_day": "Tokens until 00:00 UTC. Empty: no budget.",
    "tokens_month": "Tokens until the month ends (UTC). Empty: no budget.",
    "reason": "Why it is changed. Empty: no reason.",
}
_BUDGETS = {
    "cost_day": "a day", "cost_month": "a month",
    "tokens_day": "tokens a day", "tokens_month": "tokens a month",
}  # fmt: skip


class LaneForm(forms.Form):
    """A lane's settings as a person writes them; the ledger refuses what can't be."""

    weight = forms.IntegerField(label="Weight")
    cap = forms.IntegerField(label="Running cap", required=False)
    rate = forms.IntegerField(label="Rate", required=False)
    per = forms.ChoiceField(label="Per", choices=[(one, one) for one in PERIODS])
    burst = forms.IntegerField(label="Burst")
    cost_day = forms.CharField(label="Money a day", max_length=40, required=False)
    cost_month = forms.CharField(label="Money a month", max_length=40, required=False)
    tokens_day = forms.IntegerField(label="Tokens a day", required=False)
    tokens_month = forms.IntegerField(label="Tokens a month", required=False)
    reason = forms.CharField(label="Reason", max_length=4000, required=False)

    def __init__(self, data: Any = None, *, lane: Mapping[str, Any]) -> None:
        super().__init__(data, initial=dict(lane))

    def list_parts(self) -> list[tuple[str, list[tuple[Any, str, str]]]]:
        """(heading, fields as `_start_field` takes them)."""
        return [
            ("Share and bounds", self._list("weight", "cap", "rate", "per", "burst")),
            ("Budgets", self._list(*_BUDGETS)),
            ("For the audit log", self._list("reason")),
        ]

    def _list(self, *names: str) -> list[tuple[Any, str, str]]:
        kinds = {"per": "choice", "cost_day": "text", "cost_month": "text", "reason": "text"}
        return [(self[name], kinds.get(name, "integer"), HELP[name]) for name in names]

    def read_settings(self) -> dict[str, Any]:
        """What is to be set; empty is no bound."""
        given = {name: self.cleaned_data[name] for name in self.fields if name != "reason"}
        return {name: None if value == "" else value for name, value in given.items()}


def show_lane(lane: dict[str, Any]) -> dict[str, Any]:
    """A lane with its look, bounds in words and what is used of its budgets."""
    bounds = [f"weight {lane['weight']}"]
    if lane["cap"] is not None:
        bounds.append(f"at most {lane['cap']} running")
    if lane["rate"] is not None:
        burst = f", burst {lane['burst']}" if lane["burst"] > 1 else ""
        bounds.append(f"{lane['rate']} units a {lane['per']}{burst}")
    used = lane["used"] or {}
    budgets = [
        f"{_group(used[one])} of {_group(lane[one])} {text}"
        for one, text in _BUDGETS.items()
        if lane[one] is not None
    ]
    return lane | {
        "look": _choose_look(lane), "bounds": bounds, "budgets": budgets,
        "more_queued": lane["queued"] >= COUNT_CAP,
    }  # fmt: skip


def _group(amount: int | str) -> str:
    return f"{amount:,}" if isinstance(amount, int) else f"${amount}"


def _choose_look(lane: dict[str, Any]) -> words.Look:
    if lane["paused"]:
        return PAUSED
    if lane["closed"]:
        return words.Look(OVER.label, OVER.glyph, OVER.css, lane["closed"].removeprefix("lane "))
    return FULL if lane["cap"] is not None and lane["running"] >= lane["cap"] else OPEN
