"""The panel's tabs, and times and texts of logs and events as people read them."""

from __future__ import annotations

import re

import pytest
from django.test import Client
from django.urls import reverse

from ledger.models import Preference, Task
from ledger.transitions import holder, operators
from ledger.workflows import Workflow
from tests.dashboard.conftest import PART
from tests.dashboard.test_task_panel import cut, read_page
from tests.factories import OPERATOR, claim, make_unit, submit

pytestmark = [pytest.mark.both_databases, pytest.mark.django_db]


def make_task(three: Workflow) -> Task:
    """Two units done, the first one again after a restart, the second at work."""
    task = submit(three, input={"about": "ferries"})
    for index in (0, 1):
        held = claim(three)
        unit = make_unit(held, three, output=f'{{"found": {index}}}', log_tail="21:30:00 INFO one")
        holder.settle_unit(held, unit)
        if not index:
            operators.restart_task(task.id, to_step="a", note="look twice", actor=OPERATOR)
    claim(three)
    return task


def test_a_unit_s_input_and_log_have_tabs_that_links_keep(
    operator: Client, three: Workflow
) -> None:
    task = make_task(three)
    seq = Task.objects.get(pk=task.pk).outputs.get(round=1).seq
    text = cut(read_page(operator, task, unit=seq), "task-panel")
    tabs = re.findall(r'href="[^"]*?(tab=\w+)?"[^>]*>(Output|Input|Log|Units)', text)
    assert tabs == [
        ("", "Output"),
        ("tab=input", "Input"),
        ("tab=log", "Log"),
        ("tab=units", "Units"),
    ]
    given = cut(read_page(operator, task, unit=seq, tab="input"), "task-panel")
    for told in ("look twice", "It was the first unit", "&quot;about&quot;", "before round 1"):
        assert told in given
    assert "&quot;found&quot;" not in given.split("task-side")[0]
    assert f"?unit={seq}&amp;tab=input" in given
    log = cut(read_page(operator, task, unit=seq, tab="log"), "task-panel")
    assert "21:30:00 INFO one" in log
    assert 'name="level"' in log
    units = cut(read_page(operator, task, step="a", tab="units"), "task-panel")
    assert "Other versions of a, turn 0" in units
    at_work = cut(read_page(operator, task, tab="input"), "task-panel")
    assert "Progress that b, turn 0 starts from" in at_work
    assert "It runs; what it logs now" in read_page(operator, task, tab="log")
    part = operator.get(
        reverse("dashboard:task", args=[task.id]), {"tab": "log", "unit": seq}, headers=PART
    )
    assert "21:30:00 INFO one" in part.content.decode()
    assert 'aria-current="true">Output' in read_page(operator, task, tab="nonsense")


def test_lines_of_a_log_are_in_the_person_s_zone(operator: Client, three: Workflow) -> None:
    task = make_task(three)
    fence = Task.objects.get(pk=task.pk).outputs.get(round=1).fence
    user = operator.session["_auth_user_id"]
    Preference.objects.create(user_id=user, zone="Asia/Kathmandu", hours=12)
    log = operator.get(reverse("dashboard:log", args=[task.id]), {"fence": fence}).content.decode()
    assert "3:15:00 am INFO one" in log
    assert "in UTC" not in log
    assert "3:15:00 am INFO one" in read_page(operator, task, step="a")


def test_events_are_found_by_their_text_and_lead_to_their_json(
    operator: Client, three: Workflow
) -> None:
    task = make_task(three)
    path = reverse("dashboard:events", args=[task.id])
    text = operator.get(path, {"q": "LOOK tw"}).content.decode()
    assert re.findall(r'id="event-(\d+)"', text) == ["3"]
    assert operator.get(path, {"q": "no such"}).content.decode().count("None has this text.") == 1
    link = re.search(r'href="(/api/[^"]+limit=1)"', text)
    assert link
    [event] = operator.get(link[1].replace("&amp;", "&")).json()["items"]
    assert (event["seq"], event["data"]["feedback"]) == (
        3,
        {"comment": "look twice", "by": event["data"]["feedback"]["by"]},
    )
