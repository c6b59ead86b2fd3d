"""The page of hand-offs: as sent, as it is now, and what is new in it."""

from __future__ import annotations

import html
import re

import pytest
from django.test import Client
from django.urls import reverse

from ledger import sql
from ledger.handoff import build_handoff
from ledger.models import Handoff, Task
from ledger.workflows import Workflow
from tests.factories import LEASE, claim, make_unit, submit
from tests.held import make_context

pytestmark = pytest.mark.both_databases


def read(client: Client, task: Task, **query: int) -> tuple[str, str]:
    """The text shown, and the page."""
    page = client.get(reverse("dashboard:handoff", args=[task.id]), query).content.decode()
    found = re.search(r'aria-label="Hand-off">(.*?)</pre>', page, re.DOTALL)
    assert found
    return html.unescape(found[1]), page


def test_it_shows_what_was_sent_and_what_is_new_since(operator: Client, three: Workflow) -> None:
    task = submit(three, title="Ferry <b>timetables</b>")
    text, page = read(operator, task)
    assert text.strip() == build_handoff(task.id).markdown.strip()
    assert "none did so far" in page
    assert "<b>timetables" not in page
    held = claim(three)
    first = make_context(held, three).handoff()
    unit = make_unit(held, three, output='{"found":"a boat"}')
    assert sql.checkpoint_unit(held, unit, lease_seconds=LEASE, groups=None)
    held = sql.read_task(Task.objects.get(pk=task.pk))
    second = make_context(held, three).handoff()
    older, newer = Handoff.objects.order_by("id")
    text, page = read(operator, task, sent=older.pk)
    assert text.strip() == first.markdown.strip()
    assert "New since" not in page
    text, page = read(operator, task, sent=newer.pk)
    assert text.strip() == second.markdown.strip()
    added = re.findall(r'<tr class="add">.*?<td class="tx">(.*?)</td>', page)
    assert any("a boat" in html.unescape(line) for line in added)
    text, page = read(operator, task)
    assert text.strip() == second.markdown.strip()
    assert "Nothing." in page
    assert operator.get(
        reverse("dashboard:handoff", args=[task.id]), {"sent": newer.pk + 1}
    ).status_code == 404  # fmt: skip
