"""A site in a zone whose clocks change: what is stored is UTC, a length of time is what passed."""

from __future__ import annotations

import datetime as dt
import json
import time
from typing import Any

import pytest
from django.contrib.auth import get_user_model
from django.contrib.auth.models import Group
from django.test import Client

from dashboard.templatetags.longwatch import clock_time
from ledger import clock, states, sweeper
from ledger.models import Approval, Event, Task
from ledger.transitions import holder
from ledger.workflows import Workflow
from tests.factories import ask, attempt, claim, make_unit, submit

pytestmark = pytest.mark.case(14)
GAP = "2027-03-28T01:00:00+00:00"
"""In Berlin 02:00 becomes 03:00 here."""

TWICE = "2027-10-31T01:00:00+00:00"
"""In Berlin 03:00 becomes 02:00 here: the hour before comes again."""


@pytest.fixture(autouse=True)
def berlin(settings: Any, db: None) -> None:
    settings.TIME_ZONE = "Europe/Berlin"
    assert time.tzname == ("CET", "CEST")  # what naive code would go by


def go_to(moment: str, seconds: float = 0.0) -> None:
    """Set the database's clock."""
    goal = dt.datetime.fromisoformat(moment) + dt.timedelta(seconds=seconds)
    clock.offset += (goal - clock.read()).total_seconds()


def sign_in() -> Client:
    """An operator's browser."""
    client = Client()
    user, _ = get_user_model().objects.get_or_create(username="submitter")
    user.groups.add(Group.objects.get_or_create(name="operator")[0])
    client.force_login(user)
    return client


def submit_by_api(flow: Workflow, not_before: str) -> Any:
    """What the API says to a task for that moment."""
    body = json.dumps({"workflow": flow.name, "input": {}, "not_before": not_before})
    return sign_in().post("/api/v1/tasks", body, content_type="application/json")


@pytest.mark.parametrize(
    ("before", "given", "stored"),
    [
        (GAP, "2027-03-28T02:30:00+01:00", "2027-03-28T01:30:00+00:00"),  # 03:30 by the wall
        (GAP, "2027-03-28T03:00:00+02:00", "2027-03-28T01:00:00+00:00"),
        (TWICE, "2027-10-31T02:30:00+02:00", "2027-10-31T00:30:00+00:00"),
        (TWICE, "2027-10-31T02:30:00+01:00", "2027-10-31T01:30:00+00:00"),
        (TWICE, "2027-10-31T01:30:00Z", "2027-10-31T01:30:00+00:00"),
    ],
)
def test_a_moment_is_the_one_that_its_offset_names_and_comes_once(
    before: str, given: str, stored: str, flow: Workflow
) -> None:
    go_to(before, -7200)
    answer = submit_by_api(flow, given)
    assert answer.status_code == 201, answer.content
    task = Task.objects.get(pk=answer.json()["id"])
    assert task.available_at == dt.datetime.fromisoformat(stored)
    moved = []
    for seconds in (-3600, -1, 1, 3599, 3601, 7300):
        go_to(stored, seconds)
        moved.append(sweeper.sweep().promoted)
    assert moved == [0, 0, 1, 0, 0, 0]
    assert claim(flow).task_id == task.pk


def test_a_moment_without_an_offset_is_refused(flow: Workflow) -> None:
    for given in ("2027-03-28T02:30:00", "2027-10-31T02:30:00", "2027-10-31"):
        refused = submit_by_api(flow, given)
        assert refused.status_code == 422
        assert "not_before" in refused.content.decode()
    assert not Task.objects.exists()


@pytest.mark.parametrize("change", [GAP, TWICE])
def test_an_hour_is_an_hour_whatever_the_clock_on_the_wall_does(
    change: str, flow: Workflow
) -> None:
    """A question, its reminder, a sleep and a backoff, each across the change."""
    go_to(change, -1800)
    tasks = [submit(flow) for _ in range(3)]
    request = ask(claim(flow), flow, expires=7200, remind=3600)
    held = claim(flow)
    holder.settle_unit(held, make_unit(held, flow), delay=3600)
    holder.record_failure(claim(flow), attempt(), retries=3, backoff=3600)
    go_to(change, 1795)
    assert sweeper.sweep() == sweeper.Swept()
    go_to(change, 1805)
    swept = sweeper.sweep()
    assert (swept.promoted, swept.reminded, swept.expired) == (2, 1, 0)
    go_to(change, 5395)
    assert sweeper.sweep().expired == 0
    go_to(change, 5405)
    assert (sweeper.sweep().expired, sweeper.sweep().expired) == (1, 0)
    assert Task.objects.get(pk=request.task_id).status == states.DEAD
    assert Event.objects.filter(task__in=tasks, kind="promoted").count() == 2


def test_what_is_shown_and_sent_names_its_offset(flow: Workflow) -> None:
    go_to(TWICE, -1800)
    submit(flow)
    request = Approval.objects.get(pk=ask(claim(flow), flow, expires=3600).pk)
    assert request.expires_at.utcoffset() == dt.timedelta(0)
    shown = clock_time(request.expires_at)
    assert 'datetime="2027-10-31T01:30:0' in shown
    assert '+00:00" title="Sun 31 Oct 2027, 01:30:0' in shown
    assert ' UTC"' in shown
    sent = sign_in().get(f"/api/v1/approvals/{request.pk}").json()["expires_at"]
    assert sent.startswith("2027-10-31T01:30:0")
    assert sent.endswith("Z")
