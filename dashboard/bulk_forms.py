"""What is asked before an action on many tasks: the same as of one, and over 25 the number."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from django import forms

from dashboard.bulk import TYPED_OVER
from dashboard.forms import MAX_REASON
from dashboard.start import make_token
from ledger.bulk.selecting import Seen


class CountedForm(forms.Form):
    """A token that makes two sends one operation, and over TYPED_OVER the number, typed.

    The names have a prefix, as filters of a list stand beside them (`reason` is one).
    """

    prefix = "do"
    noun = "tasks"

    token = forms.CharField(max_length=64, widget=forms.HiddenInput)
    typed = forms.CharField(label="", required=False, max_length=20)

    def __init__(self, *args: Any, number: int, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.initial.update(token=make_token())
        self.number = number
        self.order_fields([name for name in self.fields if name != "typed"] + ["typed"])
        if number > TYPED_OVER:
            self.fields["typed"].label = f"Type {number} to confirm"
            self.fields["typed"].required = True
        else:
            del self.fields["typed"]

    def clean_typed(self) -> str:
        """The number itself, with or without separators."""
        typed: str = self.cleaned_data["typed"]
        if typed.replace(",", "").replace(" ", "") != str(self.number):
            raise forms.ValidationError(f"Type {self.number}, the number of {self.noun}.")
        return typed


class TogetherForm(CountedForm):
    """One answer to several questions; a rejection says why."""

    noun = "questions"
    comment = forms.CharField(
        label="Comment", required=False, max_length=MAX_REASON, widget=forms.Textarea
    )

    def __init__(self, *args: Any, reject: bool, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.fields["comment"].required = reject
        if reject:
            self.fields["comment"].error_messages["required"] = "Say why you reject them."


class BulkForm(CountedForm):
    """With the tasks that were shown."""

    seen = forms.CharField(widget=forms.HiddenInput)

    def __init__(self, *args: Any, seen: Seen, steps: Sequence[str] = (), **kwargs: Any) -> None:
        super().__init__(*args, number=len(seen), **kwargs)
        self.initial.update(seen=seen.pack())

    def read_arguments(self) -> dict[str, Any]:
        """What the action is given."""
        return {}

    def read_reason(self) -> str:
        """Why; empty where it is not asked."""
        return str(self.cleaned_data.get("reason", ""))


class ReasonForm(BulkForm):
    """Why, kept on record with each task."""

    reason = forms.CharField(
        label="Reason", required=False, max_length=MAX_REASON, widget=forms.Textarea
    )


class RestartForm(BulkForm):
    """Where each begins again, and what the step is to do otherwise."""

    to_step = forms.ChoiceField(
        label="Step", required=False,
        help_text="A task that has not reached the step, or has none of this name, is refused.",
    )  # fmt: skip
    note = forms.CharField(
        label="Feedback for the step", max_length=MAX_REASON, widget=forms.Textarea
    )

    def __init__(self, *args: Any, steps: Sequence[str] = (), **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        field = self.fields["to_step"]
        assert isinstance(field, forms.ChoiceField)
        field.choices = [("", "The latest step of each task"), *((step, step) for step in steps)]

    def read_arguments(self) -> dict[str, Any]:
        """Step and note."""
        return {"to_step": self.cleaned_data["to_step"], "note": self.cleaned_data["note"]}


class LimitsForm(BulkForm):
    """New limits; what is left empty stays."""

    units = forms.IntegerField(label="Units", required=False, min_value=0)
    tokens = forms.IntegerField(label="Tokens", required=False, min_value=0)
    cost = forms.DecimalField(
        label="Money", required=False, min_value=0, max_digits=19, decimal_places=9
    )
    wall = forms.FloatField(label="Working time in hours", required=False, min_value=0)

    def clean(self) -> dict[str, Any]:
        """At least one."""
        cleaned = super().clean() or {}
        if not self.errors and not self._list_given():
            raise forms.ValidationError("Give at least one limit.")
        return cleaned

    def _list_given(self) -> dict[str, Any]:
        names = ("units", "tokens", "cost", "wall")
        given = {name: self.cleaned_data.get(name) for name in names}
        return {name: value for name, value in given.items() if value is not None}

    def read_arguments(self) -> dict[str, Any]:
        """As the API writes them: money as a decimal string, time in seconds."""
        given = self._list_given()
        if "cost" in given:
            given["cost"] = str(given["cost"])
        if "wall" in given:
            given["wall"] = given["wall"] * 3600
        return given


class TagsForm(ReasonForm):
    """One tag or several."""

    tags = forms.CharField(label="Tags", max_length=1_100, help_text="With commas between.")
    field_order = ("tags", "reason")

    def read_arguments(self) -> dict[str, Any]:
        """The list of them."""
        parts = (part.strip() for part in self.cleaned_data["tags"].split(","))
        return {"tags": [part for part in parts if part]}


class PriorityForm(ReasonForm):
    """The same for all."""

    priority = forms.IntegerField(
        label="Priority", min_value=-100, max_value=100,
        help_text="From -100 to 100; each is a minute ahead in the queue.",
    )  # fmt: skip
    field_order = ("priority", "reason")

    def read_arguments(self) -> dict[str, Any]:
        """The number."""
        return {"priority": self.cleaned_data["priority"]}


FORMS: dict[str, type[BulkForm]] = {
    "cancel": ReasonForm, "retry": ReasonForm, "restart": RestartForm, "limits": LimitsForm,
    "tag": TagsForm, "untag": TagsForm, "priority": PriorityForm,
}  # fmt: skip
