"""Stalled, lost, no worker, gave up: grouped, with the actions that are allowed there."""

from __future__ import annotations

import datetime as dt
import html
import re
from collections.abc import Callable
from typing import Any

import pytest
from django.test import Client

from dashboard.stuck import SHOWN
from ledger import clock, hours, states
from ledger.models import HourSum, Task
from ledger.queries import count_trouble, list_trouble, list_unknown, load_fleet, trouble
from ledger.queries.overtime import read_bounds
from ledger.transitions import holder, operators
from ledger.workflows import Workflow
from tests.dashboard.conftest import PART
from tests.dashboard.fleet import fill_with_trouble, make_worker
from tests.factories import OPERATOR, attempt, claim, complete, make_in, make_workflow, submit

pytestmark = pytest.mark.both_databases


def list_offered(text: str, task: Task) -> list[str]:
    """The actions that a page offers for a task."""
    return re.findall(rf'role="button" href="/tasks/{task.id}/(\w+)/\?back=', text)


def test_a_kind_lists_what_it_counts(three: Workflow, db: None) -> None:
    fill_with_trouble(three)
    unknown = list_unknown(load_fleet())
    counts = count_trouble(unknown)
    for kind in trouble.TASK_KINDS:
        rows = list_trouble(kind, unknown)
        assert len(rows) == counts[kind].count > 0
        since = [getattr(row, trouble.SINCE[kind]) for row in rows]
        assert (min(since), max(since)) == (counts[kind].first, counts[kind].last)


def test_a_lost_task_is_not_stalled_as_well(three: Workflow, db: None) -> None:
    fill_with_trouble(three)
    unknown = list_unknown(load_fleet())
    seen = [row.pk for kind in trouble.TASK_KINDS for row in list_trouble(kind, unknown)]
    assert len(seen) == len(set(seen))


def test_a_version_that_one_live_worker_knows_is_no_trouble(three: Workflow, db: None) -> None:
    submit(three)
    assert count_trouble(list_unknown(load_fleet()))[trouble.NO_WORKER].count == 1
    make_worker(three)
    assert count_trouble(list_unknown(load_fleet()))[trouble.NO_WORKER].count == 0


def test_a_tab_shows_its_kind_alone(operator: Client, three: Workflow) -> None:
    fill_with_trouble(three)
    text = operator.get("/stalled/").content.decode()
    tabs = dict(re.findall(r">([A-Z][a-z ]+) <span class=\"n\">(\d+)</span>", text))
    assert tabs == {"All": "8", "Stalled": "2", "Lost": "1", "No worker": "3", "Over time": "0",
                    "Gave up": "2"}  # fmt: skip
    for kind in (*trouble.TASK_KINDS, trouble.OVER):
        page = operator.get("/stalled/", {"kind": kind}).content.decode()
        assert re.findall(r'class="gsec" id="([a-z-]+)"', page) == [kind]
    assert operator.get("/stalled/", {"kind": "../x"}).status_code == 200


def test_a_page_of_all_kinds_is_bounded_and_says_where_the_rest_is(
    operator: Client, three: Workflow
) -> None:
    most, _, most_of_group = SHOWN
    dead = [make_in(states.DEAD, three) for _ in range(most_of_group + 2)]
    for _ in range(most + 3):
        submit(three, stall_after=20.0)
        claim(three)
    make_worker(three)
    Task.objects.filter(status=states.RUNNING).update(stall_after=-60.0)
    text = operator.get("/stalled/").content.decode()
    assert text.count('class="srow" id="row-') == most
    assert text.count(' id="row-') == most + most_of_group
    assert f"{len(dead)} tasks" in text
    assert '<a href="/stalled/?kind=stalled"><u>3 more</u></a>' in text
    for kind, rows in (("stalled", most + 3), ("gave-up", len(dead))):
        page = operator.get("/stalled/", {"kind": kind}).content.decode()
        assert page.count(' id="row-') == rows
        assert "<u>3 more</u>" not in page
    tag = re.search(r'hx-ptag="([^"]*)"', text)
    assert tag
    headers = PART | {"HX-PTag": tag[1]}
    assert operator.get("/stalled/", headers=headers).status_code == 304
    Task.objects.filter(pk=dead[0].pk).update(revision=99, used_cost=500_000_000)
    assert f'id="row-{dead[0].pk}"' not in text, "the oldest is not on the page, its money is"
    assert "$0.50" in operator.get("/stalled/", headers=headers).content.decode()


def test_nothing_wrong_is_said_in_words(operator: Client) -> None:
    assert b"All calm" in operator.get("/stalled/").content
    assert b"None now." in operator.get("/stalled/?kind=lost").content


def test_each_row_has_the_actions_that_the_diagram_allows(
    operator: Client, three: Workflow
) -> None:
    running, queued = make_in(states.RUNNING, three), submit(make_workflow("unknown"))
    dead = make_in(states.DEAD, three)
    poor = submit(three)
    holder.bury_task(claim(three), attempt(), states.LIMIT_COST)
    Task.objects.filter(pk=running.pk).update(stall_after=-60.0)
    text = operator.get("/stalled/").content.decode()
    assert list_offered(text, running) == ["retry", "restart", "cancel"]
    assert list_offered(text, queued) == ["restart", "cancel"]
    assert list_offered(text, dead) == ["retry", "restart", "cancel"]
    assert list_offered(text, poor) == ["retry", "limits", "restart", "cancel"]
    assert "Extend limit and continue…" in text
    assert "The money limit is used up" in text


def test_a_viewer_is_offered_nothing(sign_in: Callable[..., Client], three: Workflow) -> None:
    task = make_in(states.DEAD, three)
    text = sign_in("viewer").get("/stalled/").content.decode()
    assert f'id="row-{task.id}"' in text
    assert list_offered(text, task) == []


def test_messages_that_differ_by_numbers_are_one_group(operator: Client, three: Workflow) -> None:
    for number in range(3):
        submit(three)
        held = claim(three)
        Task.objects.filter(pk=held.task_id).update(used_cost=500_000_000)
        bad = holder.Attempt({"type": "Busy", "message": f"request {number} of 0x{number}f"})
        holder.record_failure(held, bad, retries=0, backoff=1)
    text = operator.get("/stalled/?kind=gave-up").content.decode()
    assert text.count('<li class="grp">') == 1
    assert "Busy: request 2 of 0x2f" in text
    assert "3 tasks" in text
    assert "$1.50" in text
    assert text.count('id="row-') == 3


def test_the_way_back_is_the_list(operator: Client) -> None:
    """An action from the list ends at the list, with and without a script."""
    back = "/stalled/?kind=gave-up"
    for headers in ({}, PART):
        task = make_in(states.DEAD, make_workflow(f"flow-{len(headers)}"))
        path = f"/tasks/{task.id}/retry/"
        form = operator.get(path, {"back": back}, headers=headers).content.decode()
        assert f'name="back" value="{back}"' in form
        assert f'href="{back}"' in form
        sent = dict(re.findall(r'name="(revision|seen|back)" value="([^"]*)"', form))
        done = operator.post(path, sent, headers=headers)
        assert Task.objects.get(pk=task.pk).status == states.QUEUED
        place = done["HX-Redirect"] if headers else done["Location"]
        assert place == back
        assert b"Queued again." in operator.get(back).content


@pytest.mark.parametrize("back", ["https://evil.example/", "//evil.example/", "evil", "/\\evil"])
def test_the_way_back_is_on_this_site(operator: Client, three: Workflow, back: str) -> None:
    task = make_in(states.DEAD, three)
    path = f"/tasks/{task.id}/retry/"
    form = operator.get(path, {"back": back}, headers=PART).content.decode()
    assert "evil" not in form
    sent = dict(re.findall(r'name="(revision|seen)" value="([^"]*)"', form))
    done = operator.post(path, sent | {"back": back})
    assert done["Location"] == f"/tasks/{task.id}/"


def test_an_unchanged_poll_is_a_304(operator: Client, three: Workflow) -> None:
    task = make_in(states.DEAD, three)
    tag = re.search(r'hx-ptag="([^"]*)"', operator.get("/stalled/").content.decode())
    assert tag
    headers: dict[str, Any] = PART | {"HX-PTag": tag[1]}
    assert operator.get("/stalled/", headers=headers).status_code == 304
    operators.retry_task(task.id, actor=OPERATOR)
    part = operator.get("/stalled/", headers=headers)
    assert part.status_code == 200
    assert part.content.decode().lstrip().startswith('<div id="trouble"')


def bury(flow: Workflow, message: str, kind: str = "Busy", **columns: Any) -> Task:
    """A task that gave up by this failure."""
    submit(flow)
    held = claim(flow)
    holder.record_failure(
        held, holder.Attempt({"type": kind, "message": message}), retries=0, backoff=1
    )
    Task.objects.filter(pk=held.task_id).update(**columns)
    return Task.objects.get(pk=held.task_id)


def test_a_group_counts_what_its_list_shows(operator: Client, three: Workflow) -> None:
    for number in range(23):
        bury(three, f"request {number}")
    bury(three, "", kind="")
    other = bury(three, "", kind="Full: disk & more")
    text = html.unescape(operator.get("/stalled/?kind=gave-up").content.decode())
    groups = re.findall(r'href="(/tasks/\?[^"]*)"><u>(All \d+ i|I)n the task list', text)
    assert [said for _, said in groups] == ["All 23 i", "I", "I"]
    for path, said in groups:
        count = said[4:-2] or "1"
        assert f"{count} of {count} task" in operator.get(path).content.decode(), path
    [alone] = [path for path, _ in groups if "Full" in path]
    assert str(other.pk) in operator.get(alone).content.decode()


@pytest.mark.parametrize(
    ("query", "count"),
    [("error=busy", 3), ("q=request+1", 1), ("reason=retries_exhausted", 4), ("older=1d", 1),
     ("reason=limit_cost", 0), ("error=Full&older=1d", 1), ("workflow=none", 0), ("step=a", 4)],
)  # fmt: skip
def test_the_dead_are_searched_and_tabs_count_what_is_found(
    operator: Client, three: Workflow, query: str, count: int
) -> None:
    for number in range(3):
        bury(three, f"request {number}")
    old = bury(three, "disk", kind="Full")
    Task.objects.filter(pk=old.pk).update(finished_at=clock.now(-2 * 86_400.0))
    text = html.unescape(operator.get(f"/stalled/?kind=gave-up&{query}").content.decode())
    assert re.search(rf'Gave up <span class="n">{count}</span>', text)
    assert text.count(' id="row-') == count
    poll = re.search(r'id="trouble" hx-get="([^"]*)"', text)
    assert poll
    assert operator.get(poll[1], headers=PART).content.decode().count(' id="row-') == count


def test_a_wrong_age_is_said(operator: Client, three: Workflow) -> None:
    bury(three, "x")
    page = operator.get("/stalled/?older=soon")
    assert (page.status_code, page.content.count(b' id="row-')) == (422, 1)


def test_a_group_says_how_last_week_was(operator: Client, three: Workflow) -> None:
    for days in (1, 8, 9, 20):
        task = bury(three, "x")
        Task.objects.filter(pk=task.pk).update(finished_at=clock.now(-days * 86_400.0))
    text = operator.get("/stalled/?kind=gave-up").content.decode()
    assert re.search(r'<dd class="num">1<small class="dim">2 in the 7 before', text)


def test_a_group_is_acted_on_as_a_whole_and_as_exactly_these(
    operator: Client, sign_in: Callable[..., Client], three: Workflow
) -> None:
    for number in range(3):
        bury(three, f"request {number}")
    bury(three, "disk", kind="Full")
    make_worker(three)
    text = html.unescape(operator.get("/stalled/?kind=gave-up").content.decode())
    links = re.findall(r'href="(/bulk/new/\?action=(\w+)&[^"]*)"', text)
    assert [name for _, name in links] == ["retry", "restart", "cancel"]
    for path, name in links:
        page = operator.get(path)
        assert page.status_code == 200, name
        assert "3 tasks" in page.content.decode(), name
    assert "/bulk/new/" not in sign_in("viewer").get("/stalled/?kind=gave-up").content.decode()


def test_over_time_is_what_runs_three_times_as_long_as_nearly_all_did(
    operator: Client, three: Workflow, django_assert_max_num_queries: Any
) -> None:
    """Nineteen of twenty took a minute and one an hour: over three minutes is over time."""
    five = make_workflow("five")  # of which too few runs completed
    runs = [(three, 3_600.0), *[(three, 60.0)] * 19, *[(five, 60.0)] * 4]
    for flow, seconds in runs:
        clock.offset = -86_400.0
        submit(flow)
        held = claim(flow)
        clock.offset += seconds
        complete(held, flow)
    clock.offset = 0.0
    assert read_bounds() == {}
    while hours.sum_hour():
        pass
    assert read_bounds() == {("three", "1"): pytest.approx(180, rel=0.01)}
    flows = (three, three, three, five, three)  # the last one has only begun
    over, lost, stalled, other, _ = (submit(flow) for flow in flows)
    for flow in flows:
        claim(flow)
    now = clock.read()
    long_ago = {"started_at": now - dt.timedelta(seconds=240)}
    of = {over: {}, other: {}, lost: {"lease_until": now - dt.timedelta(seconds=1)},
          stalled: {"stall_after": -60.0}}  # fmt: skip
    for task, more in of.items():
        Task.objects.filter(pk=task.pk).update(**long_ago, **more)
    with django_assert_max_num_queries(12):
        text = operator.get("/stalled/").content.decode()
    tabs = dict(re.findall(r">([A-Z][a-z ]+) <span class=\"n\">(\d+)</span>", text))
    assert (tabs["Over time"], tabs["Lost"], tabs["Stalled"], tabs["All"]) == ("1", "1", "1", "3")
    page = operator.get("/stalled/?kind=over-time").content.decode()
    assert re.findall(r'class="srow" id="row-([0-9a-f-]+)"', page) == [str(over.pk)]
    assert "Over 3 m" in page
    assert list_offered(page, over)
    aged = operator.get("/stalled/?kind=over-time&older=1h").content.decode()
    assert "None matches." in aged
    Task.objects.filter(pk=over.pk).update(lane="night")
    blind = operator.get("/stalled/?kind=over-time&workflow=five").content.decode()
    assert 'class="srow"' not in blind
    HourSum.objects.all().delete()
    empty = operator.get("/stalled/?kind=over-time").content.decode()
    assert "once five of its runs have completed" in empty
