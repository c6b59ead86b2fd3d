"""The task list: words, tabs that count what they open, rows that stay where they are."""

from __future__ import annotations

import html
import re
from collections.abc import Callable
from typing import Any
from urllib.parse import parse_qsl

import pytest
from django.db import connection
from django.db.models import F
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.urls import reverse

from dashboard.listing import VIEWS
from dashboard.rests import forget_runs
from ledger import clock, states
from ledger.models import Task, Worker
from ledger.transitions import deleting, operators, sweeps
from ledger.workflows import Workflow
from tests.dashboard.conftest import PART
from tests.dashboard.fleet import make_worker
from tests.factories import (
    LEASE,
    OPERATOR,
    claim,
    expire_lease,
    make_in,
    make_workflow,
    spawn,
    submit,
)

pytestmark = pytest.mark.both_databases


def read_rows(response: Any) -> list[str]:
    """The ids of the rows on a page."""
    return re.findall(r'id="row-([0-9a-f-]{36})"', response.content.decode())


def read_poll(response: Any) -> tuple[str, str]:
    """The path and the tag of the list's next poll."""
    text = response.content.decode()
    found = re.search(r'id="task-list" hx-get="([^"]*)"[^>]* hx-ptag="([^"]*)"', text)
    assert found
    return found[1].replace("&amp;", "&"), found[2]


def test_an_empty_ledger_says_how_to_fill_it(operator: Client) -> None:
    text = operator.get("/tasks/").content.decode()
    assert "No tasks yet" in text
    assert "manage.py submit" in text


def test_every_status_is_said_in_words(operator: Client, three: Workflow) -> None:
    words = {
        "queued": "No worker", "running": "Running", "paused": "Paused", "failed": "Failed",
        "scheduled": "Scheduled", "waiting": "Waiting", "dead": "Gave up",
        "completed": "Completed", "cancelled": "Cancelled",
    }  # fmt: skip
    for status, word in words.items():
        workflow = make_workflow(f"w-{status}")
        task = make_in(status, workflow)
        row = operator.get("/tasks/", {"q": str(task.id)}).content.decode()
        assert f"</svg>{word}</span>" in row
    text = operator.get("/tasks/").content.decode()
    assert "every retry of one unit failed" in text
    assert "for a person&#x27;s answer" in text
    assert "no worker is running" in text


def test_a_tab_opens_as_many_as_it_counts(operator: Client) -> None:
    for status in states.STATUSES:
        make_in(status, make_workflow(f"w-{status}"))
    submit(make_workflow("w-more"))
    text = operator.get("/tasks/").content.decode()
    for name, (label, _) in VIEWS.items():
        facets = text[text.index('class="facets"') :]
        count = re.search(rf">{label} <span class=\"n\">(\d+)</span>", facets)
        assert count
        rows = read_rows(operator.get("/tasks/", {"status": name} if name else {}))
        assert len(rows) == int(count[1]) > 0


def test_a_tab_counts_what_it_opens_under_a_filter_too(operator: Client, three: Workflow) -> None:
    for number in range(3):
        submit(three, title=f"Ferry {number}", tags=["night"], lane="one")
    operators.cancel_task(submit(three, lane="one").id, actor=OPERATOR)
    submit(make_workflow("other"), title="Ferry", lane="two")
    claim(three, lane="one")
    for kept in ({"q": "ferry"}, {"workflow": "three"}, {"lane": "one"}, {"tag": "night"},
                 {"lane": "one", "q": "ferry"}, {"stalled": "yes"}):  # fmt: skip
        text = operator.get("/tasks/", kept).content.decode()
        tabs = re.findall(r'<a href="\?([^"]*)"[^>]*>[\w ]+ <span class="n">(\d+)</span></a>',
                          text[text.index('class="facets"') :])  # fmt: skip
        assert len(tabs) == len(VIEWS)
        for query, count in tabs:
            page = operator.get(f"/tasks/?{html.unescape(query)}")
            assert len(read_rows(page)) == int(count)
            assert int(count) == 0 or f"{count} of {count} task" in page.content.decode()


def test_each_filter_is_a_chip_that_can_be_taken_away(operator: Client, three: Workflow) -> None:
    submit(three, title="Ferry", tags=["night"], lane="one")
    given = {"status": "queued", "workflow": "three", "lane": "one", "tag": "night", "q": "fer"}
    text = operator.get("/tasks/", given).content.decode()
    without = re.findall(r'<a href="\?([^"]*)" aria-label="Remove filter (\w+)', text)
    assert [name for _, name in without] == ["status", "workflow", "lane", "tag", "text"]
    for query, name in without:
        kept = {key: text for key, text in given.items() if key != name.replace("text", "q")}
        assert dict(parse_qsl(html.unescape(query))) == kept
    # What is typed next is added to the filters that are on.
    hidden = dict(re.findall(r'<input type="hidden" name="(\w+)" value="([^"]*)">', text))
    assert hidden.items() >= {key: value for key, value in given.items() if key != "q"}.items()


@pytest.mark.parametrize(
    ("typed", "query"),
    [
        ("lane:one", {"lane": "one"}),
        ("ferry tag:night  times", {"tag": "night", "q": "ferry times"}),
        ('workflow:"my flow" status:dead', {"workflow": "my flow", "status": "dead"}),
        ("stalled:yes", {"stalled": "yes"}),
        ("-lane:one lane:two", {"not_lane": "one", "lane": "two"}),
        ('"a:b"', None),
        ("Fix: this", None),
    ],
)
def test_filters_can_be_typed(operator: Client, typed: str, query: dict[str, str] | None) -> None:
    response = operator.get("/tasks/", {"q": typed})
    if query is None:
        assert response.status_code == 200
    else:
        assert response.status_code == 302
        assert dict(parse_qsl(response["Location"].partition("?")[2])) == query


def test_a_row_says_which_try_and_what_was_repaired(operator: Client, three: Workflow) -> None:
    task = submit(three)
    held = claim(three)
    expire_lease()
    sweeps.reclaim_task(task.id, LEASE)
    text = operator.get("/tasks/").content.decode()
    assert "1 of 4" in text
    assert '1<span class="sr"> recovery</span>' in text
    assert held.attempts == 0


@pytest.mark.parametrize("query", [{"status": "dead!"}, {"cursor": "x"}, {"cursor": "9" * 40}])
def test_a_bad_filter_is_answered_in_words(
    operator: Client, three: Workflow, query: dict[str, str]
) -> None:
    submit(three)
    response = operator.get("/tasks/", query)
    assert response.status_code == 422
    assert b"It is left out." in response.content
    assert len(read_rows(response)) == 1


def test_search_finds_titles_and_ids(operator: Client, three: Workflow) -> None:
    one, other = submit(three, title="Ferry timetables"), submit(three, title="Water rights")
    assert read_rows(operator.get("/tasks/", {"q": "ferry"})) == [str(one.id)]
    assert read_rows(operator.get("/tasks/", {"q": str(other.id)})) == [str(other.id)]
    assert b"No task matches" in operator.get("/tasks/", {"q": "harbour"}).content


def test_a_hostile_title_is_text(operator: Client, three: Workflow) -> None:
    submit(three, title='<script>alert(1)</script>"><hx-partial hx-target="body">')
    text = operator.get("/tasks/").content.decode()
    assert "<script>alert" not in text
    assert "<hx-partial" not in text


def test_older_tasks_are_a_page_away(operator: Client, three: Workflow) -> None:
    made = [str(submit(three).id) for _ in range(53)]
    first = operator.get("/tasks/")
    assert read_rows(first) == made[:2:-1]
    older = re.search(r'href="\?(cursor=[^"]+)">Next page', first.content.decode())
    assert older
    path = f"/tasks/?{html.unescape(older[1])}"
    assert read_rows(operator.get(path)) == made[2::-1]


def test_an_unchanged_poll_is_a_304_without_a_body(operator: Client, three: Workflow) -> None:
    task = submit(three)
    path, tag = read_poll(operator.get("/tasks/"))
    poll = operator.get(path, headers=PART | {"HX-PTag": tag})
    assert (poll.status_code, poll.content) == (304, b"")
    assert poll["HX-PTag"].startswith(f"{tag}~")
    operators.cancel_task(task.id, actor=OPERATOR)
    poll = operator.get(path, headers=PART | {"HX-PTag": tag})
    assert poll.status_code == 200
    assert poll["HX-PTag"] != tag
    assert poll.content.decode().lstrip().startswith('<div id="task-list"')
    assert "Cancelled" in poll.content.decode()


def test_new_tasks_are_counted_and_push_nothing_down(operator: Client, three: Workflow) -> None:
    shown = [str(submit(three).id) for _ in range(2)][::-1]
    path, tag = read_poll(operator.get("/tasks/"))
    new = submit(three)
    poll = operator.get(path, headers=PART | {"HX-PTag": tag})
    assert read_rows(poll) == shown
    assert "1 new" in poll.content.decode()
    assert str(new.id) in read_rows(operator.get("/tasks/"))


def test_time_alone_changes_what_is_shown(operator: Client, three: Workflow) -> None:
    task = submit(three, stall_after=20.0)
    claim(three)
    path, tag = read_poll(operator.get("/tasks/"))
    clock.offset = 25.0
    poll = operator.get(path, headers=PART | {"HX-PTag": tag})
    assert poll.status_code == 200
    assert "</svg>Stalled</span>" in poll.content.decode()
    assert Task.objects.get(pk=task.pk).status == states.RUNNING
    expire_lease(LEASE)


def test_a_poll_misses_nothing_that_a_row_shows(operator: Client, three: Workflow) -> None:
    """What changes between revisions, by a worker's end, by time alone, or by being deleted."""
    make_worker(three)
    running = Task.objects.filter(pk=submit(three).pk)
    claim(three)
    queued = submit(three)
    path, tag = read_poll(operator.get("/tasks/"))

    def poll() -> Any:
        return operator.get(path, headers=PART | {"HX-PTag": tag.partition("~")[0]})

    running.update(beat=F("beat") + 1, lease_until=clock.now(LEASE))
    assert poll().status_code == 304
    changes: tuple[tuple[Callable[[], object], str], ...] = (
        (lambda: running.update(progress_done=7, progress_total=9), "7 of 9"),
        (lambda: running.update(progress_note="almost"), "almost"),
        (lambda: Worker.objects.update(stopped_at=clock.now()), "</svg>No worker</span>"),
        (lambda: running.update(lease_until=clock.now(-60)), "</svg>Lost</span>"),
        (lambda: deleting._delete_rows(queued), 'Queued <span class="n">0</span>'),
    )
    for change, said in changes:
        assert said not in operator.get(path).content.decode()
        change()
        answer = poll()
        assert answer.status_code == 200
        assert said in answer.content.decode()
        tag = answer["HX-PTag"]
        assert poll().status_code == 304


def test_an_unchanged_poll_reads_no_row_in_full(operator: Client, three: Workflow) -> None:
    submit(three)
    path, tag = read_poll(operator.get("/tasks/"))
    with CaptureQueriesContext(connection) as queries:
        assert operator.get(path, headers=PART | {"HX-PTag": tag}).status_code == 304
    assert len(queries) <= 8
    assert not [one["sql"] for one in queries if "limit_units" in one["sql"]]


def test_the_list_takes_few_queries(
    operator: Client, three: Workflow, django_assert_max_num_queries: Any
) -> None:
    for _ in range(20):
        submit(three)
    with django_assert_max_num_queries(12):
        path, tag = read_poll(operator.get("/tasks/"))
    with django_assert_max_num_queries(12):
        operator.get(path, headers=PART | {"HX-PTag": tag})


def test_the_filter_survives_a_poll_and_a_page(operator: Client, three: Workflow) -> None:
    for number in range(52):
        submit(three, title=f"Ferry {number}")
    submit(three, title="Water")
    page = operator.get("/tasks/", {"q": "ferry", "status": "queued"})
    path, _ = read_poll(page)
    assert "q=ferry" in path
    assert "status=queued" in path
    text = page.content.decode()
    assert re.search(r'href="\?[^"]*q=ferry[^"]*cursor=', text)
    assert reverse("dashboard:tasks") in path


def test_a_parent_links_to_its_children(operator: Client, three: Workflow) -> None:
    parent = submit(three)
    spawn(claim(three), three, 2)
    page = operator.get(reverse("dashboard:task", args=[parent.pk])).content.decode()
    assert f"?parent={parent.pk}" in page
    assert "2 of 2 children unfinished" in page
    listed = operator.get(reverse("dashboard:tasks"), {"parent": str(parent.pk)})
    assert {row["parent"] for row in listed.context["rows"]} == {str(parent.pk)}
    assert len(listed.context["rows"]) == 2
    assert operator.get(reverse("dashboard:tasks"), {"parent": "x"}).status_code == 422


def test_a_row_of_a_running_task_says_how_much_is_left(
    operator: Client, three: Workflow, django_assert_max_num_queries: Any
) -> None:
    ended = [make_in(states.COMPLETED, three).pk for _ in range(5)]
    Task.objects.filter(pk__in=ended).update(wall_left=F("limit_wall") - 600)
    Task.objects.filter(pk=ended[0]).update(status=states.CANCELLED)
    make_in(states.RUNNING, three)
    submit(three)

    def read_rests() -> list[str]:
        forget_runs()
        with django_assert_max_num_queries(12):
            page = operator.get("/tasks/").content.decode()
        return re.findall(r'<small class="rest">(.*?)</small>', page)

    assert read_rests() == ["no estimate yet"]
    Task.objects.filter(pk=ended[0]).update(
        status=states.COMPLETED, wall_left=F("limit_wall") - 1200
    )
    [rest] = read_rests()
    assert re.fullmatch("(9|10)\N{EN DASH}20 m left", rest)
    operator.get("/tasks/")
    with CaptureQueriesContext(connection) as queries:
        operator.get("/tasks/")
    assert not any("limit_wall" in one["sql"] and "wall_left" in one["sql"] and " - " in one["sql"]
                   for one in queries.captured_queries), "read once for a while"  # fmt: skip
