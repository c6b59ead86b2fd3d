"""Whatever stands in the ledger, a page shows it as text: nothing runs, nothing is asked of another
server, nothing changes the direction or the look of what follows."""

from __future__ import annotations

from typing import Any

import pytest
from django.contrib.auth import get_user_model
from django.db import models

from ledger import clock, tokens
from ledger.models import (
    AlertDelivery,
    AlertRule,
    ApiToken,
    Approval,
    ApprovalVote,
    Artifact,
    AuditEntry,
    Effect,
    Event,
    Handoff,
    Lane,
    LiveLog,
    SavedView,
    Signal,
    Spend,
    StepOutput,
    Task,
    Worker,
)
from ledger.workflows import Workflow
from tests.dashboard.conftest import make_user
from tests.e2e import test_look
from tests.e2e.conftest import OpenPage
from tests.factories import make_effect, submit

pytestmark = [pytest.mark.browser, pytest.mark.case(64)]

MARKUP = "\"'><img src=x onerror=alert(1)></script><script>alert(2)</script>{{7*7}}<!--"
SIGNS = "\x1b[2J\x1b]8;;http://evil.example\x07\r\n\u202egnp\u2066\u200b\x9b1m"
HOSTILE = f"{MARKUP}{SIGNS} [a](javascript:alert(3)) {'w' * 300}"

TEXTS: dict[type[models.Model], str] = {
    Task: "title progress_note lane tags input result error feedback",
    StepOutput: "log_tail output",
    Approval: "subject body payload proposal values comment",
    ApprovalVote: "comment",
    Artifact: "name media_type",
    ApiToken: "name",
    AuditEntry: "reason address target before after",
    Effect: "name args result",
    Event: "data",
    Handoff: "text",
    Lane: "name",
    LiveLog: "text",
    SavedView: "name",
    Signal: "name data",
    Spend: "note lane",
    Worker: "host",
    AlertRule: "name lane target",
    AlertDelivery: "error",
    get_user_model(): "username",
}
"""Columns of free text. What a name of ours stands in (a status, a kind) nobody else can write."""

SAID = {"note", "why", "comment", "message", "text"}
"""Of an event's data, what is anybody's words."""

SIGN = (
    r"[\u0000-\u0008\u000b\u000c\u000e-\u001f\u007f-\u009f\u200b-\u200f\u202a-\u202e\u2066-\u2069]"
)
SEEN = f"""() => {{
    const walk = document.createTreeWalker(document.documentElement, NodeFilter.SHOW_TEXT);
    const found = [];
    while (walk.nextNode())
        if (/{SIGN}/.test(walk.currentNode.data)
            && !walk.currentNode.parentElement.closest('textarea'))
            found.push(walk.currentNode.parentElement.outerHTML.slice(0, 160));
    for (const one of document.querySelectorAll('[title], [aria-label], [placeholder]'))
        for (const name of ['title', 'aria-label', 'placeholder'])
            if (/{SIGN}/.test(one.getAttribute(name) || ''))
                found.push(name + ' ' + one.outerHTML.slice(0, 160));
    if (/{SIGN}/.test(document.title)) found.push('title of the page');
    return found.slice(0, 6);
}}"""
WIDE = """() => {
    const width = document.documentElement.clientWidth;
    if (document.documentElement.scrollWidth <= width) return [];
    return [...document.querySelectorAll('body *')]
        .filter((one) => one.getBoundingClientRect().right > width + 1 && !one.children.length)
        .map((one) => `${one.cloneNode().outerHTML.slice(0, 90)} ${one.textContent.slice(0, 40)}`)
        .slice(0, 12);
}"""


def spoil(value: Any) -> Any:
    """Every text in a JSON value, and one key more."""
    if isinstance(value, dict):
        return {key: spoil(one) for key, one in value.items()} | {MARKUP: HOSTILE}
    if isinstance(value, list):
        return [*map(spoil, value), HOSTILE]
    return HOSTILE if isinstance(value, str) else value


def spoil_said(data: dict[str, Any]) -> dict[str, Any]:
    """An event's data, of which our own words and ids stay."""
    return {
        key: spoil_said(one)
        if isinstance(one, dict)
        else HOSTILE
        if key in SAID and isinstance(one, str)
        else one
        for key, one in data.items()
    }


def spoil_rows(model: type[models.Model], columns: list[str]) -> int:
    """Hostile text in these columns of every row, by which no two become alike; how many."""
    rows = model._base_manager.all()
    number = 0
    for number, row in enumerate(rows, 1):
        new: dict[str, Any] = {}
        for column in columns:
            field = model._meta.get_field(column)
            if isinstance(field, models.JSONField):
                new[column] = (spoil_said if model is Event else spoil)(getattr(row, column))
            elif getattr(row, column) is not None:
                new[column] = f"{number}{HOSTILE}"[: getattr(field, "max_length", None)]
        rows.filter(pk=row.pk).update(**new)
    return number


pages = test_look.pages


@pytest.fixture
def hostile(pages: list[str], three: Workflow) -> list[str]:
    """The paths of every page, with hostile text in every column of free text."""
    task = submit(three, title="One more")
    now, by = clock.now(), {"task": task}
    make_effect(task)
    Signal.objects.create(**by, name="more", data={"a": ["b"]}, by="user:1", at=now)
    LiveLog.objects.create(**by, step="a", turn=0, fence=1, size=9, text="a", at=now)
    Spend.objects.create(**by, key="k", step="a", turn=0, fence=1, note="a", at=now)
    tokens.make_token("ci", ["read"], created_by="user:1")
    SavedView.objects.create(name="a", owner="user:1", shared=True, created_at=now, updated_at=now)
    Worker.objects.create(owner="a:1:b", host="a", pid=1, started_at=now, seen_at=now)
    make_user("approver")
    spoiled = {model: spoil_rows(model, columns.split()) for model, columns in TEXTS.items()}
    assert [model.__name__ for model, count in spoiled.items() if not count] == []
    return pages


def test_nothing_in_the_ledger_does_anything_to_a_page(
    open_page: OpenPage, hostile: list[str]
) -> None:
    bare: dict[str, Any] = {}
    with open_page("admin") as page:
        page.on("dialog", lambda dialog: bare.setdefault(dialog.message, "ran"))
        page.expected.add(404)
        page.set_viewport_size({"width": 390, "height": 900})
        for path in hostile:
            page.goto(path)
            if found := page.evaluate(SEEN):
                bare[path] = found
            if found := page.evaluate(WIDE):
                bare[f"{path} wide"] = found
    assert bare == {}, [*bare.values()]
