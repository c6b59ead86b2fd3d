"""Saved views: tabs that count what they open, whose they are, and what they never show."""

from __future__ import annotations

import html
import re
from collections.abc import Callable
from typing import Any
from uuid import UUID

import pytest
from django.contrib.auth import get_user_model
from django.test import Client

from ledger import clock
from ledger.models import AuditEntry, Reach, SavedView, Task
from ledger.transitions import operators
from ledger.workflows import Workflow
from tests.dashboard.conftest import PART
from tests.dashboard.test_tasks import read_poll, read_rows
from tests.factories import OPERATOR, claim, make_in, make_workflow, submit

pytestmark = pytest.mark.both_databases

LINK = r'<a href="/tasks/(?:\?([^"]*))?"[^>]*>'
TAB = re.compile(LINK + r'([^<]+)(?:<span class="n">([\d,+]+)</span>)?')


def save(client: Client, name: str, state: str, **more: str) -> SavedView:
    """A view as a person keeps it."""
    response = client.post(
        "/tasks/views/new/", {"name": name, "state": state, "pinned": "1", **more}
    )
    assert response.status_code == 303
    return SavedView.objects.latest("created_at")


def list_tabs(response: Any) -> dict[str, tuple[str, str]]:
    """The tabs of views: name -> (query, count)."""
    text = response.content.decode()
    part = text[text.index('id="task-views"') :].partition("</nav>")[0]
    return {name.strip(): (html.unescape(query), count) for query, name, count in TAB.findall(part)}


def act(client: Client, view: SavedView, deed: str, **typed: str) -> int:
    """Do something to it."""
    return client.post(f"/tasks/views/{view.pk}/{deed}/", typed).status_code


def test_every_tab_counts_what_it_opens(operator: Client, three: Workflow) -> None:
    user = get_user_model().objects.get()
    for status in ("dead", "failed", "running", "queued", "completed"):
        make_in(status, make_workflow(f"w-{status}"))
    Task.objects.filter(status="failed").update(submitted_by=f"user:{user.pk}")
    Task.objects.filter(status="completed").update(finished_at=clock.now(-200_000.0))
    stalled = Task.objects.filter(status="running")
    stalled.update(last_progress_at=clock.now(-9_000.0))
    save(operator, "Done long ago", "status=completed&finished=%3E1d&sort=ended")
    save(operator, "Ferries", "q=ferry")
    tabs = list_tabs(operator.get("/tasks/"))
    counts = {name: count for name, (_, count) in tabs.items()}
    assert counts == {
        "All": "5", "Needs attention": "2", "Running": "1", "Failed today": "2", "Mine": "1",
        "Done long ago": "1", "Ferries": "",  # a text is searched for when it is opened
    }  # fmt: skip
    for query, count in tabs.values():
        page = operator.get(f"/tasks/?{query}")
        assert page.status_code == 200
        assert not count or len(read_rows(page)) == int(count)
    polled = operator.get("/tasks/views/?status=running", headers=PART)
    assert 'aria-current="page">Running <span class="n">1' in polled.content.decode()
    tag = {"HX-PTag": polled["HX-PTag"]}
    assert operator.get("/tasks/views/?status=running", headers=PART | tag).status_code == 304


def test_a_view_keeps_columns_and_order_and_says_when_it_was_changed(
    operator: Client, three: Workflow
) -> None:
    first, second = submit(three), submit(three)
    view = save(operator, "Old ones", "columns=task%2Clane&sort=oldest&status=queued")
    query, _ = list_tabs(operator.get("/tasks/"))["Old ones"]
    page = operator.get(f"/tasks/?{query}")
    assert read_rows(page) == [str(first.id), str(second.id)]
    heads = re.findall(r'role="columnheader"[^>]*>([^<]+)</th>', page.content.decode())
    assert heads == ["Task", "Lane, tags"]
    assert "Save changes to" not in page.content.decode()
    page = operator.get(f"/tasks/?lane=x&{query}")
    assert "Save changes to Old ones" in page.content.decode()
    assert act(operator, view, "update", state="lane=x") == 303
    view.refresh_from_db()
    assert (view.filters, view.columns, view.sort) == ([["lane", "x"]], [], "")


def test_a_shared_view_shows_nobody_more_than_their_lanes(
    operator: Client, sign_in: Callable[..., Client], three: Workflow
) -> None:
    seen, hidden = submit(three, lane="day"), submit(three, lane="night")
    view = save(operator, "Everything queued", "status=queued", shared="1")
    other = sign_in("viewer", "vera")
    Reach.objects.create(user=get_user_model().objects.get(username="vera"), lanes=["day"])
    assert act(other, view, "pin") == 303
    query, count = list_tabs(other.get("/tasks/"))["Everything queued"]
    assert (count, read_rows(other.get(f"/tasks/?{query}"))) == ("1", [str(seen.id)])
    words = other.get("/tasks/words/").json()
    assert words["lane"] == ["day"]
    assert str(hidden.id) not in other.get("/tasks/").content.decode()
    # Whoever sees it may pin it; only who made it changes it, and stops sharing it.
    for name in ("rename", "share", "unshare", "update", "delete"):
        assert act(other, view, name, name="x") == 403
    assert act(operator, view, "unshare") == 303
    assert "Everything queued" not in list_tabs(other.get("/tasks/"))
    assert act(other, view, "pin") == 404
    assert act(operator, view, "delete") == 303
    entries = AuditEntry.objects.filter(target=f"view:{view.pk}", allowed=True).order_by("pk")
    actions = [entry.action for entry in entries]
    assert actions == ["save_view", "pin_view", "change_view", "delete_view"]


@pytest.mark.parametrize(
    ("name", "said"),
    [("", "1 to 60"), ("x" * 61, "1 to 60"), ("a\x00b", "1 to 60"), ("Nights", "another of your")],
)
def test_a_name_that_can_not_be_is_said_in_words(operator: Client, name: str, said: str) -> None:
    save(operator, "Nights", "lane=night")
    response = operator.post("/tasks/views/new/", {"name": name, "state": "lane=night"})
    assert (response.status_code, said in response.content.decode()) == (422, True)
    assert SavedView.objects.count() == 1


def test_a_row_that_no_longer_matches_stays_where_it_is(operator: Client, three: Workflow) -> None:
    tasks = [submit(three) for _ in range(3)]
    shown = [str(task.id) for task in reversed(tasks)]
    path, tag = read_poll(operator.get("/tasks/?status=queued"))
    operators.cancel_task(tasks[1].id, actor=OPERATOR)
    poll = operator.get(path, headers=PART | {"HX-PTag": tag})
    text = poll.content.decode()
    assert (poll.status_code, read_rows(poll)) == (200, shown)
    assert "left this list" in text
    assert "3 of 2 tasks" not in text
    assert "1 shown here no longer matches" in text
    assert read_rows(operator.get("/tasks/?status=queued")) == [shown[0], shown[2]]


def test_new_tasks_are_counted_on_a_later_page_too(operator: Client, three: Workflow) -> None:
    made = [str(submit(three).id) for _ in range(52)]
    text = operator.get("/tasks/").content.decode()
    later = re.search(r'href="\?([^"]+)">Next page', text)
    assert later
    page = operator.get(f"/tasks/?{html.unescape(later[1])}")
    path, tag = read_poll(page)
    submit(three)
    poll = operator.get(path, headers=PART | {"HX-PTag": tag})
    assert read_rows(poll) == made[1::-1]
    assert "1 new" in poll.content.decode()


@pytest.mark.parametrize("rows", ["x", "!" * 9, "A" * 5_000, "AAAA"])
def test_rows_that_nobody_was_given_are_ignored(
    operator: Client, three: Workflow, rows: str
) -> None:
    task = submit(three)
    page = operator.get("/tasks/", {"rows": rows, "first": rows})
    assert (page.status_code, read_rows(page)) == (200, [str(task.id)])


def test_rows_of_another_lane_are_not_shown_to_who_asks_for_them(
    sign_in: Callable[..., Client], three: Workflow
) -> None:
    from dashboard.views.tasks import write_ids

    hidden = submit(three, lane="night")
    viewer = sign_in("viewer", "vera")
    Reach.objects.create(user=get_user_model().objects.get(username="vera"), lanes=["day"])
    page = viewer.get("/tasks/", {"rows": write_ids([UUID(str(hidden.id))])})
    assert (page.status_code, read_rows(page)) == (200, [])


def test_the_lease_column_is_as_fresh_as_the_heartbeats(operator: Client, three: Workflow) -> None:
    task = submit(three)
    claim(three)
    paths = [read_poll(operator.get(f"/tasks/{query}")) for query in ("", "?columns=task,lease")]
    Task.objects.filter(pk=task.pk).update(beat=7, lease_until=clock.now(50.0))
    answers = [operator.get(path, headers=PART | {"HX-PTag": tag}) for path, tag in paths]
    assert [answer.status_code for answer in answers] == [304, 200]


def test_what_has_not_ended_is_not_sorted_by_its_end(operator: Client, three: Workflow) -> None:
    submit(three)
    page = operator.get("/tasks/?sort=ended")
    assert page.status_code == 422
    assert len(read_rows(page)) == 1
    ended = [make_in(status, make_workflow(status)) for status in ("completed", "cancelled")]
    query = "/tasks/?sort=ended&status=completed&status=cancelled"
    assert read_rows(operator.get(query)) == [str(task.id) for task in reversed(ended)]


def test_an_empty_list_says_what_there_is_without_each_filter(
    operator: Client, three: Workflow
) -> None:
    submit(three, lane="day")
    text = operator.get("/tasks/?lane=night&status=queued").content.decode()
    assert "No task matches" in text
    near = re.findall(r'class="btn sm" href="\?([^"]*)">(Without [^<]*)<[^>]*>(\d+)', text)
    assert near == [("status=queued", "Without lane night ", "1")]
