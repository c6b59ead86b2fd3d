"""API tokens as people look at them, and the forms that make, rotate and end them."""

from __future__ import annotations

import datetime as dt
import uuid
from collections.abc import Sequence
from typing import Any

from django import forms
from django.contrib.auth import get_user_model
from django.db.models import QuerySet

from dashboard import shown
from dashboard.words import Look
from ledger.access import READ, TOKEN_SCOPES
from ledger.models import ApiToken
from ledger.tokens import MAX_DAYS, MAX_OVERLAP

UNUSED = dt.timedelta(days=90)
SOON = dt.timedelta(days=7)
SHOWN = 500
OWNERS = 500
"""People that are offered as owners."""

VALID, ENDING = Look("Valid", "ok", "is-ok"), Look("Ends soon", "sched", "is-stall")
IDLE = Look("Unused", "stall", "is-stall", "for 90 days: does anybody need it?")
EXPIRED, REVOKED = Look("Expired", "cancel", "is-idle"), Look("Revoked", "cancel", "is-idle")

SCOPE_WORDS = {
    "read": "see tasks, approvals, workers, workflows",
    "submit": "start tasks and upload files",
    "operate": "cancel, retry, restart, pause, drain",
    "approve": "answer approvals",
    "audit": "read the audit log; only with every lane and all contents",
}


def list_tokens(owner: str = "") -> QuerySet[ApiToken]:
    """All, or those of one person; the newest first."""
    rows = ApiToken.objects.order_by("-created_at")
    return rows.filter(owner=owner) if owner else rows


def show_tokens(rows: Sequence[ApiToken], now: dt.datetime) -> dict[str, list[dict[str, Any]]]:
    """Valid ones and ended ones."""
    names = {name for row in rows for name in (row.owner, row.created_by)} - {""}
    called = shown.name_actors(names)
    found = [show_token(row, now, called) for row in rows]
    return {
        "valid": [one for one in found if one["valid"]],
        "ended": [one for one in found if not one["valid"]],
    }


def show_token(row: ApiToken, now: dt.datetime, called: dict[str, str]) -> dict[str, Any]:
    """A row of the page."""
    look = choose_look(row, now)
    return {
        "row": row,
        "look": look,
        "valid": look not in {EXPIRED, REVOKED},
        "owner": called.get(row.owner, row.owner),
        "made_by": called.get(row.created_by, row.created_by),
        "reach": "every lane" if row.lanes is None else ", ".join(row.lanes),
    }


def choose_look(row: ApiToken, now: dt.datetime) -> Look:
    """What it is worth now."""
    if row.revoked_at is not None:
        return REVOKED
    if row.expires_at is not None and row.expires_at <= now:
        return EXPIRED
    if (row.last_used_at or row.created_at) < now - UNUSED:
        return IDLE
    soon = row.expires_at is not None and row.expires_at < now + SOON
    return ENDING if soon else VALID


def make_key() -> str:
    """The id of the token that a form makes, so that the form sent twice makes one."""
    return str(uuid.uuid4())


class TokenForm(forms.Form):
    """A new token."""

    key = forms.UUIDField(widget=forms.HiddenInput)
    name = forms.CharField(label="Name", max_length=100)
    scopes = forms.MultipleChoiceField(
        label="May", choices=[(scope, SCOPE_WORDS[scope]) for scope in TOKEN_SCOPES]
    )
    lanes = forms.CharField(label="Lanes", required=False, max_length=10_000)
    payload = forms.BooleanField(label="Sees contents", required=False, initial=True)
    days = forms.IntegerField(
        label="Valid for days", required=False, min_value=1, max_value=MAX_DAYS, initial=90
    )
    owner = forms.ChoiceField(label="Works for", required=False)

    HELP = {
        "name": "Who or what will use it.",
        "lanes": "With commas between; empty: every lane. It sees nothing of any other.",
        "payload": "Without it, it reads statuses, times and names only.",
        "days": "Empty: until it is revoked.",
        "owner": "A person. Neither of the two may answer approvals of what the other submitted.",
    }

    def __init__(self, *args: Any, me: str = "", **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        users: Any = get_user_model()
        field = users.USERNAME_FIELD
        people = users._default_manager.filter(is_active=True).order_by(field)
        names = people.values_list("pk", field)[:OWNERS]
        owner = self.fields["owner"]
        assert isinstance(owner, forms.ChoiceField)
        owner.choices = [("", "Nobody"), *((f"user:{key}", str(name)) for key, name in names)]
        owner.initial = me
        self.fields["scopes"].initial = [READ]
        self.fields["key"].initial = make_key()

    def list_fields(self) -> list[tuple[forms.BoundField, str, str]]:
        """(field, kind, help) of those after the scopes."""
        kinds = {"payload": "boolean", "days": "integer", "owner": "choice"}
        return [(self[name], kinds.get(name, "text"), self.HELP[name])
                for name in ("lanes", "payload", "days", "owner")]  # fmt: skip

    def read_values(self) -> dict[str, Any]:
        """Keyword arguments of `make_token`."""
        given = self.cleaned_data
        lanes = [name for name in given["lanes"].split(",") if name.strip()]
        return {
            "name": given["name"], "scopes": given["scopes"], "lanes": lanes or None,
            "payload": given["payload"], "days": given["days"], "owner": given["owner"],
            "key": given["key"],
        }  # fmt: skip


class RotateForm(forms.Form):
    """Another in its place."""

    key = forms.UUIDField(widget=forms.HiddenInput)
    overlap = forms.IntegerField(
        label="Hours that both are good", min_value=0, initial=24,
        max_value=int(MAX_OVERLAP / dt.timedelta(hours=1)),
        help_text="Then the old one ends.",
    )  # fmt: skip

    def __init__(self, *args: Any, row: ApiToken, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.fields["key"].initial = make_key()


class RevokeForm(forms.Form):
    """The name, typed."""

    typed = forms.CharField(max_length=200)

    def __init__(self, *args: Any, row: ApiToken, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.row = row
        self.fields["typed"].label = f"Type {row.name} to go on"

    def clean_typed(self) -> str:
        """It has to be the token's name."""
        typed = str(self.cleaned_data["typed"])
        if typed != self.row.name.strip():
            raise forms.ValidationError(f"It is not {self.row.name}; type that to go on.")
        return typed
