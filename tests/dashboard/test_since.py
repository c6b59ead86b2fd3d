"""What happened since a person last looked: shown to who was away, put away by a button."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from django.test import Client

from ledger import clock, states
from ledger.models import Task, Visit
from ledger.transitions.visits import AWAY_SECONDS
from ledger.workflows import Workflow
from tests.dashboard.conftest import PART
from tests.factories import make_in

pytestmark = pytest.mark.both_databases


def read_part(client: Client) -> str:
    """What the overview loads."""
    response = client.get("/since/", headers=PART)
    assert response.status_code == 200
    return response.content.decode()


def test_who_was_away_is_told_what_happened(
    sign_in: Callable[..., Client], three: Workflow, django_assert_max_num_queries: Any
) -> None:
    ann, bob = sign_in("viewer", "ann"), sign_in("viewer", "bob")
    Task.objects.filter(pk=make_in(states.DEAD, three).pk).update(title="old")
    assert "Nothing is new" in read_part(ann)
    for status, title in ((states.DEAD, "bad"), (states.COMPLETED, "good"), (states.WAITING, "")):
        Task.objects.filter(pk=make_in(status, three).pk).update(title=title)
    assert "Nothing is new" in read_part(ann)  # she was not away
    clock.offset += AWAY_SECONDS + 1
    Task.objects.filter(title="good").update(used_cost=2_500_000_000, repair_count=1, round=1)
    with django_assert_max_num_queries(12):
        text = read_part(ann)
    for said in (">bad<", ">good<", "$2.50", "waiting for an answer", "</b> repairs"):
        assert said in text, said
    assert ">old<" not in text
    assert ">bad<" in read_part(ann)  # until she has seen it
    assert ann.post("/since/").status_code == 303
    assert "Nothing is new" in read_part(ann)
    assert "Nothing is new" in read_part(bob)
    assert set(Visit.objects.values_list("since", flat=True)) == {None}


def test_an_absence_without_news_says_so(operator: Client) -> None:
    read_part(operator)
    clock.offset += AWAY_SECONDS + 1
    assert "No task ended." in read_part(operator)


def test_the_overview_itself_notes_nobody(operator: Client) -> None:
    assert 'hx-get="/since/"' in operator.get("/").content.decode()
    assert not Visit.objects.exists()
