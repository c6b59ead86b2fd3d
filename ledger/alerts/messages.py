"""What is said: a subject and a short text for people, JSON for programs.

Titles, questions and errors come from tasks, so nothing in them is trusted: a subject is one line
of visible characters, the text is plain, and our link and words come before theirs.
"""

from __future__ import annotations

import dataclasses
import json
import unicodedata
from typing import Any, Final

from django.conf import settings
from django.urls import NoReverseMatch, reverse

from ledger.alerts import kinds
from ledger.models import Outbox

MAX_SUBJECT: Final = 120


@dataclasses.dataclass(frozen=True, slots=True)
class Message:
    """One alert as it is sent. `id` is the same however often it is."""

    id: str
    subject: str
    text: str
    fields: dict[str, Any]
    """Of the JSON body, but its sequence number."""

    def make_body(self, seq: int) -> bytes:
        """The body of a webhook."""
        return json.dumps(self.fields | {"sequence": seq}, separators=(",", ":")).encode()


def write_message(row: Outbox) -> Message:
    """The message of an outbox row."""
    data = row.data
    label = kinds.KINDS.get(row.kind, "Test of an alert rule")
    what = data.get("subject") if row.kind in kinds.APPROVALS else data.get("title")
    what = flatten_text(what or data.get("title") or data.get("note") or row.workflow)
    link = make_link(row)
    facts = [
        ("Task", row.task and f"{flatten_text(data.get('title', ''))} ({row.task})"),
        ("Workflow", row.workflow),
        ("Step", data.get("step")),
        ("Lane", row.lane),
        ("Question", data.get("subject")),
        ("Risk", data.get("risk")),
        ("Expires", data.get("expires_at")),
        ("Reason", data.get("reason")),
        ("Error", describe_error(data.get("error"))),
        ("Note", data.get("note")),
    ]
    lines = [f"{name}: {flatten_text(value)}" for name, value in facts if value]
    text = "\n".join([f"{label}.", *([link] if link else []), "", *lines])
    fields = {
        "id": str(row.pk), "type": row.kind, "timestamp": row.at.isoformat(), "url": link,
        "task": row.task and str(row.task), "workflow": row.workflow, "lane": row.lane,
        "tags": row.tags, "data": data,
    }  # fmt: skip
    subject = f"[Longwatch] {label}: {what}" if what else f"[Longwatch] {label}"
    return Message(str(row.pk), shorten_line(subject, MAX_SUBJECT), text, fields)


def make_link(row: Outbox) -> str:
    """The page that says more, which leads to signing in first; "" where there is none."""
    name, keys = "dashboard:alerts", []
    if row.task is not None:
        name, keys = "dashboard:task", [str(row.task)]
    if row.kind in kinds.APPROVALS and row.data.get("approval"):
        name, keys = "dashboard:approval", [row.data["approval"]]
    elif row.kind in {kinds.NO_WORKER, kinds.QUEUE_OLD}:
        name, keys = "dashboard:trouble", []
    site = str(getattr(settings, "LONGWATCH_URL", "")).rstrip("/")
    try:
        return site + reverse(name, args=keys) if site else ""
    except NoReverseMatch:  # a project without our pages
        return ""


def describe_error(error: Any) -> str:
    """`type: message` of a stored error."""
    if not isinstance(error, dict):
        return ""
    return f"{error.get('type', '')}: {error.get('message', '')}"


def flatten_text(value: object) -> str:
    """`value` on one line, without characters that control, hide or turn text."""
    shown = (
        " " if char.isspace() else "" if unicodedata.category(char) in _UNSEEN else char
        for char in str(value)
    )
    return " ".join("".join(shown).split())


def shorten_line(text: str, limit: int) -> str:
    """`text`, cut to `limit` characters."""
    return text if len(text) <= limit else f"{text[: limit - 1]}…"


_UNSEEN: Final = {"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"}
