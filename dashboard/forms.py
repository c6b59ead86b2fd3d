"""Forms of the actions. What they clean is what a transition takes."""

from __future__ import annotations

from collections.abc import Sequence
from decimal import Decimal
from typing import Any

from django import forms

from dashboard.effects import count_open
from ledger import conf, queries
from ledger.models import Task
from ledger.models.effects import COMPENSATED, DONE, NOT_DONE
from ledger.queries.effects import list_marks

MAX_REASON = 4_000


class ActionForm(forms.Form):
    """What every action's form carries: the revision that was shown, and what it stood for."""

    revision = forms.IntegerField(min_value=0, widget=forms.HiddenInput)
    seen = forms.CharField(max_length=16, widget=forms.HiddenInput)

    step_field = ""
    """The name of the field that chooses a step, if one does."""

    def __init__(self, *args: Any, task: Task, steps: Sequence[str], **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.task = task
        self.steps = steps

    def read_values(self) -> dict[str, Any]:
        """Keyword arguments of the transition."""
        return {}


class ReasonForm(ActionForm):
    """Why, kept on record; nobody is made to invent a reason."""

    reason = forms.CharField(
        label="Reason", required=False, max_length=MAX_REASON, widget=forms.Textarea
    )

    def read_values(self) -> dict[str, Any]:
        """The reason alone."""
        return {"reason": self.cleaned_data["reason"]}


class RestartForm(ActionForm):
    """Where to begin again, latest step first, and what the step is to do otherwise."""

    step_field = "to_step"

    to_step = forms.ChoiceField(label="Step", widget=forms.RadioSelect)
    note = forms.CharField(
        label="Feedback for the step", max_length=MAX_REASON, widget=forms.Textarea
    )

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        offer_steps(self, "to_step")

    def read_values(self) -> dict[str, Any]:
        """Step and note."""
        return {"to_step": self.cleaned_data["to_step"], "note": self.cleaned_data["note"]}


class LimitsForm(ActionForm):
    """The four limits as they are now; only those that were changed are passed on."""

    units = forms.IntegerField(label="Units", min_value=0)
    tokens = forms.IntegerField(label="Tokens", min_value=0)
    cost = forms.DecimalField(label="Money", min_value=0, max_digits=19, decimal_places=9)
    wall = forms.FloatField(label="Working time in hours", min_value=0)

    def __init__(self, *args: Any, task: Task, **kwargs: Any) -> None:
        now = {
            "units": task.limit_units,
            "tokens": task.limit_tokens,
            "cost": Decimal(conf.format_money(task.limit_cost)),
            "wall": shorten_number(task.limit_wall / 3600),
        }
        super().__init__(*args, task=task, initial=now | kwargs.pop("initial", {}), **kwargs)
        used = {
            "units": f"{task.used_units:,}",
            "tokens": f"{task.used_tokens_in + task.used_tokens_out:,}",
            "cost": f"${conf.format_money(task.used_cost)}",
        }
        ended = task.status_reason.removeprefix("limit_")
        for name, text in used.items():
            self.fields[name].help_text = f"Used so far: {text}."
            if name == ended:
                self.fields[
                    name
                ].help_text = f"Used up: {text}. The task goes on with a higher one."
        self.fields["wall"].help_text = "Waiting for people is not counted."

    def read_values(self) -> dict[str, Any]:
        """The limits as the API writes them: money as a decimal string, time in seconds."""
        given = {name: self.cleaned_data[name] for name in self.changed_data if name in _LIMITS}
        if "cost" in given:
            given["cost"] = str(given["cost"])
        if "wall" in given:
            given["wall"] = given["wall"] * 3600
        return {"limits_given": given}


def offer_steps(form: ActionForm, name: str) -> None:
    """Let the field `name` choose among the steps that the task can go on from, latest first."""
    reached = list(form.steps[: count_open(form.task)])[::-1]
    field = form.fields[name]
    assert isinstance(field, forms.ChoiceField)
    field.choices = [(step, step) for step in reached]
    field.initial = reached[0] if reached else None


class EffectForm(ReasonForm):
    """What came of one effect: a choice for each that a person can settle."""

    mark = forms.ChoiceField(label="What came of it", widget=forms.RadioSelect)
    field_order = ("mark", "reason")

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        field = self.fields["mark"]
        assert isinstance(field, forms.ChoiceField)
        field.choices = [
            (f"{one['id']}:{to}", f"{name_effect(one)}: {say_settled(one, to)}")
            for one in queries.list_latest_effects(self.task.pk)
            for to in list_marks(one["state"], (one["compensation"] or {}).get("state"))
        ]

    def read_values(self) -> dict[str, Any]:
        """The effect, the word and the reason."""
        key, _, to = self.cleaned_data["mark"].partition(":")
        return super().read_values() | {"effect_id": int(key), "to": to}


def name_effect(one: dict[str, Any]) -> str:
    """Which of a task's effects this is."""
    again = f", round {one['round']}" if one["round"] else ""
    return f"{one['name']} of {one['step']}, turn {one['turn']}{again}"


SETTLED = {
    DONE: "it was done",
    NOT_DONE: "it was not done, and may be done now",
    COMPENSATED: "it was done, and is undone",
}


def say_settled(one: dict[str, Any], to: str) -> str:
    """What a person says of an effect by making it `to`."""
    return "it is not undone" if one["state"] == to == DONE else SETTLED[to]


def shorten_number(number: float) -> float:
    """168.0 as 168: what nobody typed should not stand in a field."""
    return int(number) if number == int(number) else round(number, 6)


_LIMITS = ("units", "tokens", "cost", "wall")


def refuse_constant(name: str) -> Any:
    """For `json.loads`: NaN and the infinities are no JSON."""
    raise ValueError(f"{name} is no JSON value")
