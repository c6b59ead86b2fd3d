"""The form of a raw edit. Its last check is the write itself: whether an edit can be, only the
ledger knows, under the row's lock.
"""

from __future__ import annotations

import json
import re
from typing import Any

import pydantic_core
from django import forms
from django.contrib.admin import widgets
from django.core.exceptions import ValidationError
from django.forms.fields import InvalidJSONInput
from django.http import HttpRequest
from django.utils.html import format_html

from ledger import conf, states
from ledger.errors import InvalidInput, LedgerError, StaleRevision
from ledger.events import Actor
from ledger.models import Task
from ledger.transitions.edits import EDITABLE, STATUSES, edit_task


class JsonField(forms.JSONField):
    """JSON as people write it: set in, and refused by name when no parser would survive it."""

    widget = forms.Textarea(attrs={"rows": 8, "cols": 90, "spellcheck": "false"})

    def to_python(self, value: Any) -> Any:
        """The value. Raises ValidationError."""
        check_depth(value)
        try:
            return super().to_python(value)
        except ValueError as error:  # a number of so many digits that Python won't read it
            raise ValidationError(f"This can't be read: {error}.") from None

    def bound_data(self, data: Any, initial: Any) -> Any:
        """What is shown again after an error: what was typed."""
        return initial if self.disabled else InvalidJSONInput(data or "")

    def prepare_value(self, value: Any) -> Any:
        """The text in the box."""
        if isinstance(value, InvalidJSONInput):
            return value
        return "" if value is None else json.dumps(value, indent=2, ensure_ascii=False)


def check_depth(value: Any) -> None:
    """Raise ValidationError for nesting that Python's parser would pay for with its stack."""
    try:
        pydantic_core.from_json(value or "null")
    except ValueError as error:
        if "recursion limit" in str(error):
            raise ValidationError("This is nested too deeply.") from None


class LinesField(forms.CharField):
    """A list of texts, one a line."""

    widget = forms.Textarea(attrs={"rows": 3, "cols": 40})

    def to_python(self, value: Any) -> Any:
        """The lines that are not empty."""
        return [line.strip() for line in str(value or "").splitlines() if line.strip()]

    def prepare_value(self, value: Any) -> Any:
        """The text in the box."""
        return "\n".join(value) if isinstance(value, list) else value


def make_count(least: int = 0, help_text: str = "") -> forms.IntegerField:
    """A whole number; the ledger checks the upper bound."""
    return forms.IntegerField(min_value=least, help_text=help_text)


class TaskForm(forms.ModelForm):  # type: ignore[type-arg]  # generic in the stubs only
    """Every column of a task that people may change, a reason, and the revision they looked at."""

    request: HttpRequest

    revision = forms.IntegerField(widget=forms.HiddenInput)
    reason = forms.CharField(
        max_length=4000, widget=forms.Textarea(attrs={"rows": 2, "cols": 90}),
        help_text="On record with the edit, beside what was there before.",
    )  # fmt: skip
    status = forms.ChoiceField(
        help_text="Running, waiting and the outcomes are the engine's to say."
    )
    available_at = forms.SplitDateTimeField(
        widget=widgets.AdminSplitDateTime, required=False,
        help_text="When a scheduled task becomes ready.",
    )  # fmt: skip
    workflow_version = forms.CharField(max_length=50)
    step_name = forms.CharField(max_length=100, help_text="Its index follows.")
    step_index = make_count(help_text="From 0.")
    turn = make_count(
        help_text="Of a looping step, from 0. A move supersedes the outputs after it."
    )
    title = forms.CharField(
        max_length=200, required=False, strip=False, widget=forms.TextInput(attrs={"size": 90})
    )
    lane = forms.CharField(max_length=100)
    priority = make_count(-100, help_text="From -100 to 100.")
    tags = LinesField(required=False, help_text="One a line.")
    input = JsonField(required=False)
    progress = JsonField(required=False)
    feedback = JsonField(required=False)
    attempts = make_count()
    reclaims = make_count()
    releases = make_count()
    repair_count = make_count()
    max_repairs = make_count()
    limit_units = make_count()
    limit_tokens = make_count()
    limit_cost = forms.CharField(max_length=30, help_text="A decimal such as 5.00.")
    limit_wall = forms.FloatField(min_value=0, help_text="Seconds.")
    deadline_at = forms.SplitDateTimeField(widget=widgets.AdminSplitDateTime, required=False)
    stall_after = forms.FloatField(min_value=1, help_text="Seconds without progress.")
    cancel_requested = forms.BooleanField(
        required=False, help_text="Can be taken back. To ask for it, set the status."
    )
    pause_requested = forms.BooleanField(
        required=False, help_text="Pauses a scheduled or waiting task where it becomes ready."
    )

    class Meta:
        model = Task
        fields = ()  # all are declared above: what they take is not what the columns hold

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        task = self.instance
        for name in (*EDITABLE, "revision"):
            self.initial.setdefault(name, getattr(task, name))
        self.initial["limit_cost"] = conf.format_money(task.limit_cost)
        known = [task.status] if task.status in states.FINAL else [task.status, *STATUSES]
        status: Any = self.fields["status"]
        status.choices = [(name, name) for name in dict.fromkeys(known)]

    def clean(self) -> dict[str, Any]:
        """Write. What the ledger refuses is an error of the field, or of the form, in its words."""
        values: dict[str, Any] = super().clean() or self.cleaned_data
        if self.errors:
            return values
        changes = {name: values[name] for name in self.changed_data if name in EDITABLE}
        try:
            edit_task(
                self.instance.pk, changes=changes, actor=Actor("user", str(self.request.user.pk)),
                reason=values["reason"], revision=values["revision"],
            )  # fmt: skip
        except InvalidInput as error:
            name = re.split(r"[.\[]", error.field)[0]
            if name in self.fields:
                self.add_error(name, f"{error.field}: {error.reason}.")
            else:
                self.add_error(None, f"{error.reason}.")
        except StaleRevision as error:
            self.add_error(None, format_html('{} <a href="">Load the page afresh</a>.', error))
        except LedgerError as error:
            self.add_error(None, str(error))
        return values

    def _post_clean(self) -> None:
        """The ledger has checked and written; the row that was read is history by now."""
