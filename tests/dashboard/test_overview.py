"""The overview: each figure opens a list of as many, nothing is written, nothing is unbounded."""

from __future__ import annotations

import re
from typing import Any

import pytest
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext

from dashboard import words
from ledger import clock, hours, states
from ledger.models import Task
from ledger.transitions import operators
from ledger.workflows import Workflow
from tests.dashboard.conftest import PART
from tests.dashboard.fleet import fill_with_trouble
from tests.factories import OPERATOR, claim, complete, make_in, make_workflow, submit

pytestmark = pytest.mark.both_databases


def read_attention(text: str) -> dict[str, tuple[int, str]]:
    """What the attention line says: label -> (count, link)."""
    found = re.findall(
        r'<a href="([^"]+)">\s*<span class="an">.*?<b class="num">([\d,]+)</b> ([a-z ]+)</span>',
        text,
    )
    return {label: (int(count), href) for href, count, label in found}


def test_an_empty_ledger_is_calm(operator: Client) -> None:
    text = operator.get("/").content.decode()
    assert "All calm: nothing needs a person." in text
    assert "<title>Overview · Longwatch</title>" in text
    assert "Nothing failed in this range." in text
    assert "No worker runs." in text


def test_each_count_opens_a_list_of_as_many(operator: Client, three: Workflow) -> None:
    fill_with_trouble(three)
    text = operator.get("/").content.decode()
    counts = read_attention(text)
    assert {label: count for label, (count, _) in counts.items()} == {
        "waiting for an answer": 1, "gave up": 2, "stalled": 2, "lost": 1, "no worker": 3,
    }  # fmt: skip
    for label, (count, href) in counts.items():
        page = operator.get(href).content.decode()
        item = r'href="/approvals/[0-9a-f-]{36}/"' if label.startswith("wait") else r'id="row-'
        assert len(set(re.findall(item + r"[^>]*", page))) == count, label
    # A lost task is queued again by itself: it needs nobody.
    assert "<title>(8) Overview · Longwatch</title>" in text


def test_each_tile_opens_a_list_of_as_many(operator: Client) -> None:
    for status in states.STATUSES:
        make_in(status, make_workflow(f"w-{status}"))
    submit(make_workflow("w-more"))
    text = operator.get("/").content.decode()
    tiles = re.findall(r'href="(/tasks/\?status=\w+)">.*?<b class="num">(\d+)</b>', text)
    assert len(tiles) == len(states.STATUSES)
    for href, count in tiles:
        rows = re.findall(r'id="row-', operator.get(href).content.decode())
        assert len(rows) == int(count) > 0


def test_the_range_bounds_what_is_counted(operator: Client, three: Workflow) -> None:
    for hours_ago, seconds in ((30.0, 100), (3.0, 40), (0.2, 20)):
        clock.offset = -3600 * hours_ago
        submit(three)
        held = claim(three)
        Task.objects.filter(pk=held.task_id).update(used_cost=1_500_000_000)
        clock.offset += seconds
        complete(held, three)
    clock.offset = 0.0
    expected = {"1h": (1, "20 s", "$1.50"), "24h": (2, "20 s", "$3.00"), "7d": (3, "40 s", "$4.50")}
    for name, (count, median, money) in expected.items():
        text = operator.get("/", {"range": name}).content.decode()
        assert f"{count} finished</b>" in text
        assert f"{count} started<" in text
        assert "gave up: 0<" in text
        assert re.search(rf">{median}(\.0 s)? median<", text)
        assert f">{money}</b>" in text
        assert f'href="?range={name}" aria-current="page"' in text
        assert f'range={name}" hx-trigger' in text
    assert "2 finished</b>" in operator.get("/", {"range": "for ever"}).content.decode()


def test_a_tile_tells_the_last_hour_against_the_same_one_yesterday(
    operator: Client, three: Workflow
) -> None:
    for hours_ago in (24.3, 24.6, 0.5, 2, 5):
        clock.offset = -3600 * hours_ago
        make_in(states.CANCELLED, three)
    make_in(states.FAILED, three)
    clock.offset = -60.0
    make_in(states.DEAD, three)
    clock.offset = 0.0
    for summed in (False, True):
        while summed and hours.sum_hour():
            pass
        text = operator.get("/", {"range": "1h"}).content.decode()
        told = {
            status: re.search(rf'status={status}">.*?yesterday: </span>(.*?)<', text)
            for status in (states.CANCELLED, states.FAILED, states.DEAD, states.COMPLETED)
        }
        assert {name: found and found[1].strip() for name, found in told.items()} == {
            "cancelled": "▼ 1", "failed": "=", "dead": "▲ 1", "completed": "=",
        }  # fmt: skip


def test_what_tasks_under_way_have_used_is_told_apart(operator: Client, three: Workflow) -> None:
    task = submit(three)
    Task.objects.filter(pk=task.pk).update(
        used_cost=1_500_000_000, used_tokens_in=1_000, used_tokens_out=234
    )
    text = operator.get("/").content.decode()
    assert "0 tokens, of tasks that ended" in text
    assert "Under way so far: $1.50, 1,234 tokens" in text


def test_failures_that_are_alike_are_one_group(operator: Client, three: Workflow) -> None:
    for _ in range(3):
        make_in(states.DEAD, three)
    make_in(states.FAILED, three)
    text = operator.get("/").content.decode()
    groups = re.findall(
        r'<b>([^<]+)</b></a><span class="dim nw">.*?</span><span class="num">(\d+)<', text
    )
    assert groups == [("Every retry of one unit failed", "3"), ("The workflow ended it", "1")]
    assert "three, a: Boom: it broke" in text


def test_an_unchanged_poll_is_a_304_and_a_change_is_the_part_alone(
    operator: Client, three: Workflow
) -> None:
    task = submit(three)
    text = operator.get("/").content.decode()
    tag = re.search(r'hx-ptag="([^"]*)"', text)
    assert tag
    poll = operator.get("/?range=24h", headers=PART | {"HX-PTag": tag[1]})
    assert (poll.status_code, poll.content) == (304, b"")
    operators.cancel_task(task.id, actor=OPERATOR)
    poll = operator.get("/?range=24h", headers=PART | {"HX-PTag": tag[1]})
    assert poll.status_code == 200
    part = poll.content.decode().lstrip()
    assert part.startswith('<div id="overview"')
    assert "<form" not in part
    assert "<title>Overview · Longwatch</title>" in part


@pytest.mark.parametrize("path", ["/", "/stalled/", "/workers/", "/workflows/",
                                  "/workflows/three/", "/legend/"])  # fmt: skip
def test_a_page_takes_few_queries_and_writes_nothing(
    operator: Client, three: Workflow, path: str, django_assert_max_num_queries: Any
) -> None:
    fill_with_trouble(three)
    for number in range(20):
        submit(make_workflow(f"w-{number % 4}"))
    before = list(Task.objects.order_by("id").values_list("id", "revision", "event_seq"))
    with django_assert_max_num_queries(12), CaptureQueriesContext(connection) as seen:
        assert operator.get(path).status_code == 200
    verbs = {query["sql"].split()[0] for query in seen.captured_queries}
    assert verbs <= {"SELECT", "WITH"}
    assert list(Task.objects.order_by("id").values_list("id", "revision", "event_seq")) == before


def test_what_a_task_says_is_text(operator: Client, three: Workflow) -> None:
    Task.objects.filter(pk=make_in(states.DEAD, three).pk).update(
        error={"type": "<script>", "message": '"><img src=x onerror=alert(1)>'}
    )
    for path in ("/", "/stalled/"):
        text = operator.get(path).content.decode()
        assert "<img src=x" not in text
        assert "&lt;script&gt;" in text


def test_the_legend_names_every_status_reason_and_event(operator: Client) -> None:
    text = operator.get("/legend/").content.decode()
    for look in (*words.LOOKS.values(), *words.EVENTS.values()):
        assert f"</svg>{look.label}</span>" in text
    for reason in words.REASONS:
        assert f">{reason}</dt>" in text
