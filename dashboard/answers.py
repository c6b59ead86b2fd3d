"""The answer to a question: the decision, the comment, and the settings that its form asks for."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from typing import Any

from django import forms
from django.http import QueryDict

from dashboard.start import PREFIX, JsonField, Wanted, make_field, read_wanted
from ledger import canonical
from ledger.models import Approval
from ledger.transitions.values import list_misfits

DECISIONS = (("approve", "Approve"), ("reject", "Reject"), ("send_back", "Send back"))
LINE = 60
"""Characters that a field of one line shows."""

WHOLE = "values"
"""The one field of a form that is no object of named values."""


class AnswerForm(forms.Form):
    """A person's answer. Reject and send back need to say why; an approval's values have to fit.

    `wanted` are the settings, each with the agent's proposal as its default.
    """

    decision = forms.ChoiceField(choices=DECISIONS)
    digest = forms.CharField(max_length=64, widget=forms.HiddenInput)
    comment = forms.CharField(required=False, max_length=canonical.MAX_TEXT, widget=forms.Textarea)
    confirmed = forms.BooleanField(required=False)

    def __init__(self, data: QueryDict | None = None, *, asked: Approval) -> None:
        super().__init__(data, initial={"digest": asked.digest})
        self.asked = asked
        self.proposal = asked.proposal if isinstance(asked.proposal, dict) else {}
        self.wanted = list_settings(asked.form, self.proposal)
        for one in self.wanted:
            self.fields[name_field(one)] = make_setting(one, asked)

    @property
    def seen(self) -> set[str]:
        """The numbers of the files that are marked as seen."""
        return set(self.data.getlist("seen")) if isinstance(self.data, QueryDict) else set()

    def list_settings(self) -> list[dict[str, Any]]:
        """Each setting with its bound field and what was proposed."""
        return [
            {
                "field": self[name_field(one)],
                "wanted": one,
                "edited": self.is_bound and name_field(one) in self.changed_data,
                "proposed": say_value(self.asked.proposal)
                if one.name == WHOLE and not self.proposal
                else say_value(self.proposal.get(one.name)),
            }
            for one in self.wanted
        ]

    def list_carried(self) -> list[tuple[str, str]]:
        """What was typed, as (name, value): the second question sends it again."""
        names = [name_field(one) for one in self.wanted]
        typed = self.data if isinstance(self.data, QueryDict) else QueryDict()
        return [(name, text) for name in (*names, "seen") for text in typed.getlist(name)]

    def clean(self) -> dict[str, Any]:
        """Both negative answers are instructions to somebody, so they can't be empty."""
        cleaned = super().clean() or {}
        decision = cleaned.get("decision")
        if decision != "approve":
            for one in self.wanted:  # only an approval carries values
                self.errors.pop(name_field(one), None)
        if decision in {"reject", "send_back"} and not cleaned.get("comment"):
            word = "reject" if decision == "reject" else "send back"
            self.add_error("comment", f"Say what should change, or why you {word} it.")
        if decision == "approve" and self.asked.form and not self.errors:
            cleaned["values"] = self.collect_values()
            self.note_misfits(cleaned["values"])
        return cleaned

    def collect_values(self) -> Any:
        """The values as JSON: what was typed, and of the proposal what no field asks for."""
        if not self.wanted or self.wanted[0].name == WHOLE:
            return self.cleaned_data.get(WHOLE)
        values = {
            name: value for name, value in self.proposal.items()
            if name not in {one.name for one in self.wanted}
        }  # fmt: skip
        for one in self.wanted:
            value = self.cleaned_data.get(name_field(one))
            if value not in (None, "") and (value != [] or one.name in self.proposal):
                values[one.name] = value
        return values

    def note_misfits(self, values: Any) -> None:
        """Each value that the schema refuses, at its field."""
        given = self.asked.proposal if values is None else values
        for path, why in list_misfits(self.asked.form, given):
            field = PREFIX + str(path[0]) if path else None
            inside = ".".join(str(part) for part in path[1:])
            if field not in self.fields:
                field = WHOLE if WHOLE in self.fields else None
                inside = ".".join(str(part) for part in path)
            self.add_error(field, f"{inside}: {why}" if inside else why)


def name_field(wanted: Wanted) -> str:
    """The name of a setting's control."""
    return WHOLE if wanted.name == WHOLE else PREFIX + wanted.name


def list_settings(form: Any, proposal: Mapping[str, Any]) -> list[Wanted]:
    """How each property of an object's schema is asked for; of any other schema one JSON field."""
    if not form:
        return []
    properties = form.get("properties") if isinstance(form, dict) else None
    if not isinstance(properties, dict) or not properties or WHOLE in properties:
        return [Wanted(WHOLE, "json", "Values", "Both these and the proposal are kept.", True)]
    known, needed = form.get("$defs", {}), form.get("required", ())
    return [
        read_setting(name, schema, known, name in needed, proposal)
        for name, schema in properties.items()
        if isinstance(schema, dict)
    ]


def read_setting(
    name: str,
    schema: dict[str, Any],
    known: Mapping[str, Any],
    required: bool,
    proposal: Mapping[str, Any],
) -> Wanted:
    """One property, with the proposal for default; a proposal of another type is edited as JSON."""
    wanted = read_wanted(name, schema, known, required)
    default = proposal.get(name, wanted.default)
    kind = "json" if wanted.kind == "file" or not fits_kind(wanted, default) else wanted.kind
    if kind == "text" and default and (len(default) > LINE or "\n" in default):
        kind = "long"  # a field of one line shows no end of it, and would lose its line breaks
    return dataclasses.replace(wanted, kind=kind, default=default)


def fits_kind(wanted: Wanted, value: Any) -> bool:
    """True when the control of `wanted` can show `value`."""
    if value is None:
        return True
    if wanted.kind == "lines":
        return isinstance(value, list) and all(
            isinstance(one, str) and one.strip() == one and one and "\n" not in one for one in value
        )
    if wanted.kind == "choice":
        return value in wanted.choices
    if wanted.kind == "boolean":
        return isinstance(value, bool)
    if wanted.kind in {"integer", "number"}:
        return isinstance(value, int | float) and not isinstance(value, bool)
    return wanted.kind == "json" or (isinstance(value, str) and "\r" not in value)


def make_setting(wanted: Wanted, asked: Approval) -> forms.Field:
    """The field of a setting."""
    if wanted.name == WHOLE:
        text = json.dumps(asked.proposal or {}, indent=2, ensure_ascii=False)
        return JsonField(label=wanted.label, required=False, initial=text)
    return make_field(wanted)


def say_value(value: Any) -> str:
    """A proposed value in one line."""
    if value is None:
        return ""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, list) and all(isinstance(one, str) for one in value):
        value = ", ".join(value)
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    return text if len(text) <= 80 else f"{text[:80]}…"
