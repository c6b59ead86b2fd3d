"""A task's page knows the list that it was opened from, and keeps to it."""

from __future__ import annotations

from typing import Any
from urllib.parse import urlencode

import pytest
from django.test import Client
from django.urls import reverse

from ledger import calls, queries
from ledger.models import Task
from ledger.workflows import Workflow
from tests.factories import submit

pytestmark = [pytest.mark.both_databases, pytest.mark.django_db]


def path_of(task: Task, **query: Any) -> str:
    """The page of a task."""
    return reverse("dashboard:task", args=[task.pk]) + (f"?{urlencode(query)}" if query else "")


def read_around(client: Client, task: Task, **query: Any) -> dict[str, Any]:
    """What the page knows of its list."""
    return client.get(path_of(task), query).context["around"]


def test_the_neighbours_are_those_of_the_list(operator: Client, three: Workflow) -> None:
    first, second, third = (submit(three, title=name, tags=["x"]) for name in ("one", "two", "six"))
    other = submit(three, title="other", tags=["y"])
    fourth = submit(three, title="four", tags=["x"])
    Task.objects.update(created_at=first.created_at)  # alike to the digit: the id decides
    assert read_around(operator, second) is None
    narrow = urlencode({"tag": "x", "cursor": "what the list understands is its own affair"})
    found = read_around(operator, second, list=narrow, view="attempts", unit=3)
    assert found["back"] == f"/tasks/?{narrow}"
    kept = {"view": "attempts", "list": narrow}
    assert found["newer"] == path_of(third, **kept)
    assert found["older"] == path_of(first, **kept)
    assert read_around(operator, first, list=narrow)["older"] == ""
    assert read_around(operator, third, list=narrow)["newer"] == path_of(fourth, list=narrow)
    assert read_around(operator, third, list="not_tag=x")["newer"] == path_of(
        other, list="not_tag=x"
    )
    assert read_around(operator, fourth, list="q=-tag%3Ax+o")["older"] == path_of(
        other, list="q=-tag%3Ax+o"
    )


@pytest.mark.parametrize("query", ["status=nothing", "q=lane%3A", "a" * 3_000, "\0", "%00=%00"])
def test_a_list_that_is_none_breaks_nothing(operator: Client, three: Workflow, query: str) -> None:
    assert operator.get(path_of(submit(three)), {"list": query}).status_code == 200


def test_lanes_that_one_does_not_see_are_no_neighbours(three: Workflow) -> None:
    task, hidden = submit(three, lane="mine"), submit(three, lane="theirs")
    assert queries.find_shown(task.pk, queries.TaskFilter()).newer == hidden.pk
    with calls.answer_call(calls.Call(lanes=frozenset({"mine"}))):
        assert queries.find_shown(task.pk, queries.TaskFilter()).newer is None


def test_the_neighbours_take_no_look_up_of_their_own(
    three: Workflow, django_assert_num_queries: Any
) -> None:
    task = submit(three)
    with django_assert_num_queries(1):
        queries.find_shown(task.pk, queries.TaskFilter([("workflow", "three")]))


def test_actions_and_links_keep_the_list(operator: Client, three: Workflow) -> None:
    task = submit(three)
    here = path_of(task, view="attempts", list="tag=x")
    text = operator.get(here).content.decode()
    query = "?view=attempts&amp;list=tag%3Dx"
    pause = reverse("dashboard:act", args=[task.pk, "pause"])
    cancel = reverse("dashboard:act", args=[task.pk, "cancel"])
    for path in (pause, cancel):
        assert f'"{path}{query}"' in text
    assert f'hx-get="{path_of(task)}{query}"' in text  # the poll
    form = operator.get(f"{cancel}?view=attempts&list=tag%3Dx").content.decode()
    assert f'action="{cancel}{query}"' in form
    assert f'href="{path_of(task)}{query}"' in form
    hidden = {"revision": task.revision, "seen": operator.get(here).context["position"]}
    done = operator.post(f"{pause}?view=attempts&list=tag%3Dx", hidden)
    assert (done.status_code, done["Location"]) == (302, here)
