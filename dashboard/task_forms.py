"""Forms of the actions that take more than a reason: copy, edit an output, change, signal."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from django import forms

from dashboard.forms import MAX_REASON, ReasonForm, offer_steps
from dashboard.start import JsonField, make_token
from dashboard.templatetags.longwatch import write_json
from ledger import canonical, queries, registry
from ledger.calls import sees_payload
from ledger.errors import LedgerError
from ledger.models import Task
from ledger.transitions.outputs import explain_obstacle, explain_unit


def make_json_area() -> forms.Textarea:
    """A field for JSON: in type of one width, and the browser leaves the spelling alone."""
    return forms.Textarea({"class": "mono"})


class OnceForm(ReasonForm):
    """With a token that makes two sends of one form one deed."""

    token = forms.CharField(max_length=64, widget=forms.HiddenInput)

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.initial["token"] = make_token()

    def read_values(self) -> dict[str, Any]:
        """Reason and key."""
        return super().read_values() | {"key": self.cleaned_data["token"]}


class ForkForm(OnceForm):
    """Where the copy begins, latest step first, and its input, if it is to be another."""

    step_field = "from_step"

    from_step = forms.ChoiceField(label="Step", widget=forms.RadioSelect)
    input = JsonField(
        label="Input", widget=make_json_area(),
        help_text="As it is unless you change it. Another input can't be given to work that "
        "people were asked about: then copy from that step or earlier.",
    )  # fmt: skip
    field_order = ("from_step", "input", "reason")

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.initial["input"] = write_json(self.task.input)
        if not sees_payload():
            del self.fields["input"]
        offer_steps(self, "from_step")

    def read_values(self) -> dict[str, Any]:
        """Step and input; None for the same one."""
        given = self.cleaned_data.get("input", self.task.input)
        return super().read_values() | {
            "from_step": self.cleaned_data["from_step"],
            "input": None if is_same(given, self.task.input) else given,
        }


class EditForm(ReasonForm):
    """What a unit is to have left, and why; `seq` is the number of its output."""

    seq = forms.IntegerField(min_value=1, max_value=2**62, widget=forms.HiddenInput)
    output = JsonField(label="Output", widget=make_json_area(), help_text="A JSON object, whole.")
    reason = forms.CharField(
        label="Reason, on record with your name", max_length=4_000, widget=forms.Textarea
    )
    field_order = ("output", "reason")

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        given = self.data.get("seq") if self.is_bound else self.initial.get("unit")
        try:
            seq = self.fields["seq"].clean(given)
        except forms.ValidationError:
            seq = 0  # there is no such unit
        self.unit = queries.find_output(self.task.pk, seq)
        self.obstacle = explain_edit(self.task, seq)
        self.initial.update(seq=seq, output=write_json(self.unit["output"]))

    def read_values(self) -> dict[str, Any]:
        """Number, output and reason."""
        return super().read_values() | {n: self.cleaned_data[n] for n in ("seq", "output")}


def explain_edit(task: Task, seq: int, unit: Mapping[str, Any] | None = None) -> str:
    """Why the output `seq` can't be edited by who asks; empty when it can. `unit` is the same of
    `queries.list_units`, of who has just read it."""
    if not sees_payload():
        return "You are not shown contents, so somebody else edits them."
    return explain_unit(task, unit) if unit and "last" in unit else explain_obstacle(task, seq)


class ChangeForm(ReasonForm):
    """The labels as they are now; only those that were changed are passed on."""

    title = forms.CharField(label="Title", required=False, max_length=200)
    lane = forms.CharField(label="Lane", max_length=100)
    priority = forms.IntegerField(
        label="Priority", min_value=-100, max_value=100,
        help_text="From -100 to 100; each is a minute ahead in the queue.",
    )  # fmt: skip
    tags = forms.CharField(
        label="Tags", required=False, max_length=1_100, help_text="With commas between."
    )
    field_order = ("title", "lane", "priority", "tags", "reason")

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        for name in ("title", "lane", "priority"):
            self.initial[name] = getattr(self.task, name)
        self.initial["tags"] = ", ".join(self.task.tags)

    def clean(self) -> dict[str, Any]:
        """Something has to differ."""
        cleaned = super().clean() or {}
        if not self.errors and not self._list_changes():
            raise forms.ValidationError("Nothing is changed.")
        return cleaned

    def read_values(self) -> dict[str, Any]:
        """What differs, and the reason."""
        return super().read_values() | self._list_changes()

    def _list_changes(self) -> dict[str, Any]:
        names = ("title", "lane", "priority")
        now = {name: getattr(self.task, name) for name in (*names, "tags")}
        given = {name: self.cleaned_data[name] for name in names}
        parts = self.cleaned_data["tags"].split(",")
        given["tags"] = [tag.strip() for tag in parts if tag.strip()]
        return {name: value for name, value in given.items() if value != now[name]}


class SignalForm(OnceForm):
    """The name of a signal, the awaited one first, and what it carries."""

    name = forms.CharField(label="Name", max_length=100)
    carries = JsonField(
        label="Data", required=False, widget=make_json_area(), help_text="Any JSON; empty for none."
    )
    field_order = ("name", "carries", "reason")

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.initial["name"] = (self.task.waits or {}).get("name", "")

    def read_values(self) -> dict[str, Any]:
        """Name, data, reason and key."""
        given = {"name": self.cleaned_data["name"], "data": self.cleaned_data["carries"]}
        return super().read_values() | given


class SteerForm(OnceForm):
    """What the agent is told."""

    text = forms.CharField(
        label="What the agent is told", max_length=MAX_REASON, widget=forms.Textarea,
        help_text="It comes with the next request to the model, as a message of a person.",
    )  # fmt: skip
    field_order = ("text", "reason")

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.obstacle = ""
        if not sees_payload():
            self.obstacle = "You are not shown contents, so somebody else speaks to the agent."
        elif registry.runs_agent(self.task) is False:
            self.obstacle = f"No step of {self.task.workflow} is an agent's."

    def clean(self) -> dict[str, Any]:
        """Who can't read what is said says nothing."""
        if self.obstacle:
            raise forms.ValidationError(self.obstacle)
        return super().clean() or {}

    def read_values(self) -> dict[str, Any]:
        """Text, reason and key."""
        return super().read_values() | {"text": self.cleaned_data["text"]}


class WithdrawForm(ReasonForm):
    """Which message is taken back; `unit` in the address is its number."""

    message = forms.IntegerField(min_value=1, max_value=2**62, widget=forms.HiddenInput)

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.initial["message"] = self.initial.get("unit")

    def read_values(self) -> dict[str, Any]:
        """Its number and the reason."""
        return super().read_values() | {"message": self.cleaned_data["message"]}


def is_same(given: Any, stored: Any) -> bool:
    """Whether both are one JSON; what can't be stored is never what is stored."""
    try:
        return canonical.dump_json(given) == canonical.dump_json(stored)
    except LedgerError:
        return False
