"""The timeline read finer, narrowed and zoomed; who held the task, its cost, what is to come."""

from __future__ import annotations

import datetime as dt
import re
from decimal import Decimal
from typing import Any

import pytest
from django.test import Client
from django.urls import reverse

from dashboard import axis, tracks, tries
from dashboard.wish import ATTEMPTS, EVENTS, Wish
from ledger import clock, queries, sweeper
from ledger.models import StepOutput, Task
from ledger.queries.spans import Span, Timeline
from ledger.transitions import holder, operators
from ledger.workflows import Workflow
from tests.dashboard.test_task_panel import at, cut, make_timeline, read_page, run_loop
from tests.factories import OPERATOR, OTHER, attempt, claim, complete, make_unit, submit

pytestmark = [pytest.mark.both_databases, pytest.mark.django_db]


def read_rows(client: Client, task: Task, **query: Any) -> list[str]:
    """The rows of the timeline, each as its words."""
    picture = cut(read_page(client, task, **query), "task-timeline")
    body = picture[picture.index("<tbody") : picture.index("</tbody>")]
    heads = re.findall(r"<th scope=\"row\".*?</th>", body, re.DOTALL)
    return [" ".join(re.sub(r"<[^>]+>", " ", head).split()) for head in heads]


def fail_once(workflow: Workflow) -> Task:
    """A task whose first attempt failed, and whose next one is under way after a wait."""
    task = submit(workflow)
    held = claim(workflow)
    clock.offset += 4
    holder.record_failure(held, attempt("NoBucket"), retries=3, backoff=60)
    clock.offset += 61
    sweeper.sweep()
    clock.offset += 9
    claim(workflow, owner=OTHER)
    return task


def test_each_attempt_and_wait_has_a_row_of_its_own(operator: Client, three: Workflow) -> None:
    task = fail_once(three)
    rows = read_rows(operator, task, view=ATTEMPTS)
    backing_off = rows.pop(2)
    assert re.fullmatch(r"Backing off event \d", backing_off)
    assert rows == ["Running a", "Failed turn 0", "Queued", "Running turn 0", "Not started b",
                    "Not started c"]  # fmt: skip
    assert read_rows(operator, task) == ["Running a", "Not started b", "Not started c"]


def test_filters_leave_what_matches(operator: Client, three: Workflow) -> None:
    task = fail_once(three)
    assert read_rows(operator, task, view=ATTEMPTS, failed=1) == ["Running a", "Failed turn 0"]
    assert read_rows(operator, task, view=ATTEMPTS, kind="queued") == ["Running a", "Queued"]
    assert read_rows(operator, task, view=ATTEMPTS, find="BUCKET")[1:] == ["Failed turn 0"]
    assert read_rows(operator, task, view=EVENTS, failed=1) == ["Attempt failed a"]
    assert read_rows(operator, task, find="no such word") == []
    text = read_page(operator, task, find="no such word", list="tag=x")
    assert "Nothing here is of that kind with “no such word”" in text
    assert '<input type="hidden" name="list" value="tag=x">' in text
    assert f'href="{reverse("dashboard:task", args=[task.pk])}?list=tag%3Dx"' in text


def test_a_wait_for_a_worker_is_apart_from_the_run(three: Workflow) -> None:
    task = fail_once(three)
    row = queries.find_task(task.pk)
    found = queries.build_timeline(
        row, queries.list_units(task.pk), queries.list_record(task.pk), row.read_at  # type: ignore[attr-defined]
    )  # fmt: skip
    waited = [span for span in found.spans if span.kind == "queued"]
    assert [round(span.took.total_seconds(), -1) for span in waited] == [10]
    assert not waited[0].open


def test_after_a_unit_that_may_have_slept_no_wait_is_claimed(three: Workflow) -> None:
    task = run_loop(three, 2)
    StepOutput.objects.filter(task=task.pk, turn=1).update(
        started_at=clock.now(60), finished_at=clock.now(70)
    )
    units, record = queries.list_units(task.pk), queries.list_record(task.pk)
    row = queries.find_task(task.pk)
    now = dt.datetime.now(dt.UTC) + dt.timedelta(minutes=5)
    for sleeps, waits in ((False, 1), (True, 0)):
        told = [unit | {"sleeps": sleeps} for unit in units]
        spans = queries.build_timeline(row, told, record, now).spans
        assert sum(span.kind == "queued" and not span.open for span in spans) == waits


def test_at_most_a_hundred_rows_and_the_rest_behind_links() -> None:
    found = make_timeline(*[("done", "a", n * 2.0, n * 2.0 + 1) for n in range(450)],
                          *[("done", "b", 900 + n, 900 + n + 0.5) for n in range(300)])  # fmt: skip
    drawn = axis.make_axis(found, True)
    rows = [
        tries.Row(n, name, tries.show_kind("done"), False, False) for n, name in enumerate("ab")
    ]
    by_step = {name: [span for span in found.spans if span.step == name] for name in "ab"}
    shown, cut_off = tries.list_attempts(rows, by_step, drawn, Wish(mode=ATTEMPTS), "b")
    assert len(shown) == tries.MAX_ROWS
    assert (rows[0].closed, rows[1].closed) == (450, 0)
    assert cut_off == tries.Cut(earlier=202, before=98)
    seen = {row.unit for row in shown if row.sub}
    for skip in (98, 196, 294):
        more, cut_off = tries.list_attempts(rows, by_step, drawn, Wish(skip=skip), "b")
        seen |= {row.unit for row in more if row.sub}
    assert len(seen) == 300
    assert (cut_off.earlier, cut_off.later, cut_off.after) == (0, 294, 196)
    other, _ = tries.list_attempts(rows, by_step, drawn, Wish(open="a"), "b")
    assert [row.name for row in other if row.sub][-1] == "turn 449"


def test_a_zoom_shows_its_time_alone_and_leads_out_again() -> None:
    found = make_timeline(("done", "a", 0, 100), ("done", "b", 100, 200), ("done", "c", 200, 400))
    whole = axis.make_axis(found, False)
    zooms = axis.list_zooms(whole, found, 50.0)
    assert set(zooms) == {"in"}
    assert zooms["in"] is not None
    near = axis.make_axis(found, False, zooms["in"])
    first, last = near.pieces[0].start - at(0).timestamp(), near.pieces[-1].end - at(0).timestamp()
    assert (first, last) == (pytest.approx(100, abs=2), pytest.approx(300, abs=2))
    assert near.shows(at(102), at(200))
    assert not near.shows(at(0), at(90))
    out = axis.list_zooms(near, found, 50.0)
    assert set(out) == {"in", "out", "fit", "earlier", "later"}
    assert out["out"] is out["fit"] is None
    back = axis.make_axis(found, False, out["earlier"])
    assert back.pieces[0].start == pytest.approx(at(0).timestamp(), abs=2)
    at_end = axis.list_zooms(axis.make_axis(found, False, out["later"]), found, 50.0)
    assert "later" not in at_end


@pytest.mark.parametrize("zoom", [(0, 1), (5, 10**15), (10**14, 10**15), (3, 2)])
def test_a_zoom_that_shows_nothing_shows_all(zoom: tuple[int, int]) -> None:
    found = make_timeline(("done", "a", 0, 100))
    drawn = axis.make_axis(found, True, zoom)
    assert drawn.pieces[0].start == at(0).timestamp()
    assert drawn.pieces[-1].end == at(100).timestamp()


def test_the_zoom_is_in_the_address(operator: Client, three: Workflow) -> None:
    task = fail_once(three)
    text = read_page(operator, task)
    link = re.search(r'href="([^"]*zoom=(\d+-))"[^>]*data-zoom="\+"', text)
    assert link
    near = operator.get(link[1].replace("&amp;", "&")).content.decode()
    assert (
        f"zoom={link[2]}" in near[near.index('id="task-vitals"') :].split(">")[0]
    )  # polls keep it
    assert 'data-zoom="0"' in near
    assert 'class="nowt"' in near


def test_who_held_it_and_what_it_cost_stand_on_the_axis(operator: Client, three: Workflow) -> None:
    task = submit(three)
    for owner, nano in ((OTHER, 250_000_000), ("host:1:boot-1", 500_000_000)):
        held = claim(three, owner=owner)
        clock.offset += 30
        holder.settle_unit(held, make_unit(held, three, cost=nano))
    Task.objects.filter(pk=task.pk).update(used_cost=1_000_000_000)
    text = read_page(operator, task)
    holder_track = cut(text, "track-workers")
    label = re.search(r'aria-label="(Held by [^"]*)"', holder_track)
    assert label
    assert re.fullmatch(r"Held by \S+ from [\d:]+ to [\d:]+; \S+ from [\d:]+ to [\d:]+", label[1])
    money = re.search(r'aria-label="(\$[^"]*)"', cut(text, "track-money"))
    assert money
    assert re.fullmatch(r"\$0.25 by [\d:]+, \$0.75 by [\d:]+, \$1.00 in all", money[1])


def test_the_line_of_money_only_rises_and_ends_at_what_was_used() -> None:
    found = make_timeline(("done", "a", 0, 100), ("failed", "b", 100, 200))
    task = {"used": {"cost": "3.00", "units": 1}}
    units = [{"finished_at": at(100), "cost": "1.00", "copied_from": None}]
    record = [{"seq": 2, "at": at(200), "kind": "attempt_failed", "data": {"cost": "0.5"}}]
    drawn = tracks.draw_money(task, units, record, axis.make_axis(found, True))
    assert drawn
    heights = [float(y) for y in re.findall(r"V([\d.]+)", drawn.path)]
    assert heights == sorted(heights, reverse=True)
    assert heights[-1] == tracks.TOP
    assert Decimal(drawn.total) == 3
    free = {"used": {"cost": "0", "units": 1}}
    assert tracks.draw_money(free, units, record, axis.make_axis(found, True)) is None


def test_many_short_holds_are_few_bars() -> None:
    spans = [Span("done", "a", at(n), at(n + 0.9), n, seq=n, worker=f"host:{n % 2}:x")
             for n in range(1_000)]  # fmt: skip
    found = Timeline(at(0), at(1_000), spans, [], [], [])
    held = tracks.draw_holds(found, axis.make_axis(found, True))
    assert [one.worker for one in held] == [tracks.SEVERAL]
    assert held[0].bar.end == spans[-1].end


def test_a_long_hold_after_short_ones_keeps_its_name() -> None:
    spans = [Span("done", "a", at(n), at(n + 0.9), n, seq=n, worker=f"host:{n}:x")
             for n in range(2)]  # fmt: skip
    spans.append(Span("running", "b", at(2), at(1_000), 2, worker="host:7:x"))
    found = Timeline(at(0), at(1_000), spans, [], [], [])
    held = tracks.draw_holds(found, axis.make_axis(found, True))
    assert [one.worker for one in held] == [tracks.SEVERAL, "host:7"]


def test_steps_to_come_are_as_long_as_they_were_in_past_runs(
    operator: Client, three: Workflow
) -> None:
    task = submit(three)
    claim(three)
    assert read_page(operator, task).count("no estimate") >= 2
    operators.pause_task(task.pk, actor=OPERATOR)
    for _ in range(5):
        submit(three)
        for seconds in (10, 20):
            held = claim(three)
            clock.offset += seconds
            holder.settle_unit(held, make_unit(held, three))
        held = claim(three)
        clock.offset += 40
        complete(held, three)
    past = queries.read_past_runs("three", three.version)
    assert [round(past.steps[name]) for name in "abc"] == [10, 20, 40]
    task = submit(three)
    claim(three)
    text = cut(read_page(operator, task), "task-timeline")
    assert text.count('class="b-next"') == 4  # three steps, and the key
    assert "about 40 s" in text
    assert "About 20 s are expected, by past runs" in text
    bars = [float(x) for x in re.findall(r'class="b-next" x="([\d.]+)%', text)]
    assert bars == sorted(bars)
    assert 'class="b-next"' not in cut(read_page(operator, task, failed=1), "task-timeline")
