"""The form that starts a task, made from the input schema of its workflow."""

from __future__ import annotations

import dataclasses
import json
import uuid
from collections.abc import Mapping
from typing import Any

from django import forms
from django.core.files.uploadedfile import UploadedFile
from pydantic import ValidationError

from dashboard.forms import refuse_constant
from ledger import artifacts
from ledger.calls import read_call
from ledger.workflows import Workflow

ARTIFACT = "artifact"
"""The format of a field that takes an uploaded file and stores its artifact's id."""

PREFIX = "in-"
WHOLE = "input"
"""The one field of a workflow that takes any JSON object."""


@dataclasses.dataclass(frozen=True, slots=True)
class Wanted:
    """One value of the input: how it is asked for."""

    name: str
    kind: str  # text, long, lines, integer, number, boolean, choice, file or json
    label: str
    help: str
    required: bool
    default: Any = None
    choices: tuple[str, ...] = ()


def make_token() -> str:
    """What makes two sends of one form the same task."""
    return uuid.uuid4().hex


def list_wanted(workflow: Workflow) -> list[Wanted]:
    """The fields of a workflow's input, in their order."""
    if workflow.input is None:
        return [Wanted(WHOLE, "json", "Input", "Any JSON object.", True, {})]
    schema = workflow.input.model_json_schema()
    required, known = schema.get("required", ()), schema.get("$defs", {})
    return [
        read_wanted(name, found, known, name in required)
        for name, found in schema.get("properties", {}).items()
    ]


def read_wanted(
    name: str, schema: Mapping[str, Any], known: Mapping[str, Any], required: bool
) -> Wanted:
    """How one property is asked for; what has no field of its own is asked for as JSON."""
    inner = follow_schema(schema, known)
    kind, choices = choose_kind(inner, known)
    return Wanted(
        name, kind, say_label(name, schema.get("title") or inner.get("title") or name),
        schema.get("description") or inner.get("description") or "",
        required, schema.get("default"), choices,
    )  # fmt: skip


def say_label(name: str, title: str) -> str:
    """The title; one that pydantic made of the name, with its capitals, as a person writes it."""
    plain = name.replace("_", " ")
    return plain.capitalize() if title in {name, plain.title()} else title


def follow_schema(schema: Mapping[str, Any], known: Mapping[str, Any]) -> Mapping[str, Any]:
    """The schema without `or null` around it and with its reference resolved."""
    options = [one for one in schema.get("anyOf", ()) if one.get("type") != "null"]
    if len(options) == 1:
        schema = options[0]
    reference = str(schema.get("$ref", "")).rpartition("/")[2]
    return known.get(reference, schema) if reference else schema


def choose_kind(schema: Mapping[str, Any], known: Mapping[str, Any]) -> tuple[str, tuple[str, ...]]:
    """(kind of field, its choices)."""
    options = schema.get("enum", ())
    if options and all(isinstance(one, str) for one in options):
        return "choice", tuple(options)
    kind, item = schema.get("type"), follow_schema(schema.get("items", {}), known)
    if kind == "string":
        if schema.get("format") == ARTIFACT:
            return "file", ()
        return ("long" if schema.get("maxLength", 0) > 500 else "text"), ()
    if kind == "array" and item.get("type") == "string":
        return "lines", ()
    return (kind if kind in {"integer", "number", "boolean"} else "json"), ()


class StartForm(forms.Form):
    """The workflow's own fields, then what every task has; `token` makes a double click one."""

    title = forms.CharField(required=False, max_length=200)
    lane = forms.CharField(max_length=100, initial="default")
    priority = forms.IntegerField(min_value=-100, max_value=100, initial=0)
    tags = forms.CharField(required=False, max_length=1_100)
    key = forms.CharField(required=False, max_length=200)
    token = forms.CharField(max_length=64, widget=forms.HiddenInput)

    def __init__(self, *args: Any, workflow: Workflow, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.fields["token"].initial = make_token()
        if lanes := read_call().lanes:
            self.fields["lane"].initial = min(lanes)
        self.workflow = workflow
        self.wanted = list_wanted(workflow)
        for one in self.wanted:
            self.fields[PREFIX + one.name] = make_field(one)

    def list_own(self) -> list[tuple[Wanted, forms.BoundField]]:
        """The workflow's fields with what was typed."""
        return [(one, self[PREFIX + one.name]) for one in self.wanted]

    def clean(self) -> dict[str, Any]:
        """The workflow validates what was typed; each problem goes to its field."""
        cleaned = super().clean() or {}
        if self.errors:
            return cleaned
        data = self.collect_input({})
        if self.workflow.input is None:
            if not isinstance(data, dict):
                self.add_error(PREFIX + WHOLE, "It takes a JSON object.")
            return cleaned
        try:
            self.workflow.input.model_validate(data)
        except ValidationError as error:
            for problem in error.errors(include_url=False, include_context=False):
                place = PREFIX + str(problem["loc"][0]) if problem["loc"] else None
                missing = problem["type"] == "missing"
                inside = ".".join(str(part) for part in problem["loc"][1:])
                said = problem["msg"].removeprefix("Value error, ")
                text = "Give it a value." if missing else f"{said[:1].upper()}{said[1:]}."
                self.add_error(
                    place if place in self.fields else None, f"{inside}: {text}" if inside else text
                )
        return cleaned

    def collect_input(self, stored: Mapping[str, str]) -> Any:
        """The input as JSON. `stored` has the artifact ids of uploads, which come last."""
        if self.workflow.input is None:
            return self.cleaned_data[PREFIX + WHOLE]
        data = {}
        for one in self.wanted:
            value = self.cleaned_data.get(PREFIX + one.name)
            if one.kind == "file":
                # Until everything else is right nothing is stored: any id will do for the check.
                value = stored.get(one.name, str(uuid.uuid4())) if value else None
            if value in (None, "", []) and not one.default:
                continue
            data[one.name] = value
        return data

    def store_uploads(self, actor: str) -> dict[str, str]:
        """Store the chosen files: field -> artifact. Raises InvalidInput, PayloadTooLarge."""
        found: dict[str, str] = {}
        for one in self.wanted:
            file = self.cleaned_data.get(PREFIX + one.name) if one.kind == "file" else None
            if isinstance(file, UploadedFile):
                name = file.name or one.name
                found[one.name] = str(artifacts.store_upload(file, name, None, actor).pk)
        return found

    def list_tags(self) -> list[str]:
        """The tags, which are typed with commas between."""
        return [tag.strip() for tag in self.cleaned_data["tags"].split(",") if tag.strip()]


def make_field(wanted: Wanted) -> forms.Field:
    """A field that turns the typed text into JSON's types; the workflow judges the value."""
    options: dict[str, Any] = {"required": False, "label": wanted.label}
    default = wanted.default
    if wanted.kind == "boolean":
        return forms.BooleanField(initial=bool(default), **options)
    if wanted.kind == "integer":
        return forms.IntegerField(initial=default, **options)
    if wanted.kind == "number":
        return forms.FloatField(initial=default, **options)
    if wanted.kind == "choice":
        choices = [(one, one) for one in wanted.choices]
        free = [] if wanted.required or default else [("", "\N{EN DASH}")]
        return forms.ChoiceField(choices=free + choices, initial=default, **options)
    if wanted.kind == "file":
        return forms.FileField(**options)
    if wanted.kind == "lines":
        return LinesField(initial="\n".join(default or ()), **options)
    if wanted.kind == "json":
        text = "" if default is None else json.dumps(default, indent=2, ensure_ascii=False)
        return JsonField(initial=text, **options)
    return TextField(initial=default, strip=False, **options)


class TextField(forms.CharField):
    """Text whose ends of line are as they were: a browser sends all of them as CR LF."""

    def clean(self, value: Any) -> Any:
        """The text, its lines ended by LF."""
        return super().clean(value).replace("\r\n", "\n")

    def has_changed(self, initial: Any, data: Any) -> bool:
        """True when more than the ends of lines differ."""
        return super().has_changed(initial, (data or "").replace("\r\n", "\n"))


class LinesField(forms.CharField):
    """A list of texts, one a line."""

    def clean(self, value: Any) -> Any:
        """The lines that are not empty."""
        return [line.strip() for line in super().clean(value).splitlines() if line.strip()]


class JsonField(forms.CharField):
    """A value as JSON; nothing is None."""

    def clean(self, value: Any) -> Any:
        """The value. Raises ValidationError for what is no JSON."""
        text = super().clean(value)
        if not text.strip():
            return None
        try:
            return json.loads(text, parse_constant=refuse_constant)
        except (ValueError, RecursionError) as error:
            raise forms.ValidationError(f"This is no JSON: {error}.") from None
