"""The step panel, the picture and the history of a task's page."""

from __future__ import annotations

import datetime as dt
import re
from typing import Any

import pytest
from django.test import Client
from django.urls import reverse

from dashboard import axis, bars, past, words
from ledger import clock, conf, queries, sql, states, sweeper
from ledger.models import Approval, Task
from ledger.queries.spans import Span, Timeline
from ledger.transitions import approvals, holder, operators, sweeps
from ledger.workflows import Workflow
from tests.dashboard.conftest import PART
from tests.factories import (
    LEASE,
    OPERATOR,
    OTHER,
    ask,
    attempt,
    claim,
    complete,
    expire_lease,
    make_in,
    make_unit,
    submit,
    wait_for,
)

pytestmark = [pytest.mark.both_databases, pytest.mark.django_db]
START = dt.datetime(2026, 11, 29, 12, 0, tzinfo=dt.UTC)


def path_of(task: Any) -> str:
    """The page of a task."""
    return reverse("dashboard:task", args=[task.id])


def read_page(client: Client, task: Any, **query: Any) -> str:
    """The page, as text."""
    response = client.get(path_of(task), query)
    assert response.status_code == 200
    return response.content.decode()


def cut(text: str, name: str) -> str:
    """The part of the page from the element with the id on."""
    return text[text.index(f'id="{name}"') :]


def run_loop(workflow: Workflow, turns: int, **options: Any) -> Task:
    """A task that ran its first step `turns` times and is queued for the next turn."""
    task = submit(workflow, **options)
    for turn in range(turns):
        held = claim(workflow)
        unit = make_unit(
            held, workflow, next_index=0, next_name="a", next_turn=turn + 1,
            output=f'{{"turn": {turn}}}', log_tail=f"line of {turn}",
        )  # fmt: skip
        holder.settle_unit(held, unit)
    return task


def test_a_unit_has_an_address_of_its_own(operator: Client, three: Workflow) -> None:
    task = run_loop(three, 3)
    first = Task.objects.get(pk=task.pk).outputs.get(turn=0)
    text = cut(read_page(operator, task, unit=first.seq), "task-panel")
    assert "Output of a, turn 0" in text
    assert "line of 0" in text
    assert "line of 2" not in text
    assert re.search(rf'href="[^"]*\?unit={first.seq}"[^>]* aria-current="true"', text)
    last = cut(read_page(operator, task), "task-panel")
    assert "Last output of a, turn 2" in last
    for wrong in ("999", "x", "-1", "9" * 30):
        assert operator.get(path_of(task), {"unit": wrong}).status_code == 200
    assert "There is no unit 999." in read_page(operator, task, unit=999)
    assert "has no output yet" in read_page(operator, task, step="c")


def test_polls_and_links_keep_what_was_chosen(operator: Client, three: Workflow) -> None:
    task = run_loop(three, 2)
    seq = Task.objects.get(pk=task.pk).outputs.get(turn=0).seq
    text = read_page(operator, task, unit=seq, squeeze=0)
    assert f'hx-get="{path_of(task)}?unit={seq}&amp;squeeze=0" hx-trigger="every 2s"' in text
    part = operator.get(path_of(task), {"unit": seq}, headers=PART)
    # A link's answer has no tag: the link would send it with its next click, and get a 304.
    assert "HX-PTag" not in part
    assert "Output of a, turn 0" in part.content.decode()
    where = {"HX-Current-URL": f"http://testserver{path_of(task)}?unit={seq}"}
    row = Task.objects.get(pk=task.pk)
    from dashboard.actions import name_position

    seen = {"revision": row.revision, "seen": name_position(row)}
    done = operator.post(f"{path_of(task)}pause/", seen, headers=PART | where)
    assert "Output of a, turn 0" in done.content.decode()


def test_an_output_is_exact_and_in_colours(operator: Client, three: Workflow) -> None:
    task = submit(three)
    held = claim(three)
    output = '{"big": 12345678901234567890, "text": "</pre><script>x\\u202e", "yes": true}'
    unit = make_unit(held, three, output=output)
    sql.checkpoint_unit(held, unit, lease_seconds=LEASE, groups=[])
    text = cut(read_page(operator, task, step="a"), "task-panel")
    assert '<span class="k">&quot;big&quot;</span>: <span class="v">12345678901234567890' in text
    assert '<span class="v">true</span>' in text
    assert "<script>x" not in text
    assert "[U+202E]" in text


def test_attempts_at_a_unit_say_what_went_wrong(operator: Client, three: Workflow) -> None:
    task = submit(three)
    bad = holder.Attempt(
        {"type": "Timeout", "message": "no answer"}, log_tail="secret log", tokens=7, cost=5 * 10**8
    )
    holder.record_failure(claim(three), bad, retries=3, backoff=60)
    text = cut(read_page(operator, task), "task-panel")
    assert "Attempts at a, turn 0" in text
    assert "Attempt failed, 1" in text
    assert '<span class="mono">Timeout</span>: no answer' in text
    assert "7 tokens, $0.50" in text
    assert "turn 0, attempt 2" in text
    assert "1 of 3 retries used" in text
    event = re.search(r'href="([^"]*events/\?before=(\d+)#event-\d+)"', text)
    assert event
    assert "secret log" in operator.get(event[1].split("#")[0]).content.decode()


def test_a_superseded_version_is_a_click_away(operator: Client, three: Workflow) -> None:
    task = run_loop(three, 1)
    operators.restart_task(task.id, to_step="a", note="again", actor=OPERATOR)
    held = claim(three)
    holder.settle_unit(held, make_unit(held, three, output='{"better":1}'))
    text = cut(read_page(operator, task, step="a"), "task-panel")
    assert "better" in text
    old = re.search(r'href="[^"]*\?unit=(\d+)"[^>]*><span>round 0', text)
    assert old
    text = cut(read_page(operator, task, unit=old[1]), "task-panel")
    assert "Superseded in round 1." in text


def test_repairs_and_recoveries_are_told_apart(operator: Client, three: Workflow) -> None:
    task = run_loop(three, 2)
    lost = claim(three)
    expire_lease()
    sweeps.reclaim_expired(LEASE)
    page = read_page(operator, task)
    repairs, recoveries = cut(page, "repairs-h").split('id="recoveries-h"')
    assert "None. Nothing was found wrong." in repairs
    assert "host:1</span> lost in a, turn 2" in recoveries
    assert f"under fence {lost.fence}" in recoveries
    assert "The whole unit is done again" in recoveries
    held = claim(three, owner=OTHER)
    found = {"findings": ["two sources are missing"], "output": "long\nlog"}
    holder.repair_task(held, make_unit(held, three), to_index=0, to_name="a", feedback=found)
    page = read_page(operator, task)
    repairs, recoveries = cut(page, "repairs-h").split('id="recoveries-h"')
    assert "1 of 3 repairs" in repairs
    assert "A repair, asked by a." in repairs
    assert "3 a outputs are superseded, not deleted." in repairs
    assert "two sources are missing" in repairs
    assert "did the whole unit again" in recoveries.split('id="events-h"')[0]
    vitals = re.findall(r"<dt>(Repairs|Recoveries)</dt>\s*<dd class=\"big\">(\d+)", page)
    assert vitals == [("Repairs", "1"), ("Recoveries", "1")]


def test_who_worked_and_how_much(operator: Client, three: Workflow) -> None:
    task = run_loop(three, 3)
    claim(three, owner=OTHER)
    expire_lease()
    sweeps.reclaim_expired(LEASE)
    used = re.search(r'<td class="wk".*?</td>', read_page(operator, task), re.DOTALL)
    assert used
    words = re.sub(r"<[^>]+>", "", used[0])
    assert " ".join(words.split()) == "host:1 3 unitshost:2 no unit stored, lost 1"


def test_who_has_stored_nothing_yet_worked_too(operator: Client, three: Workflow) -> None:
    failed = make_in(states.DEAD, three)
    running = make_in(states.RUNNING, three)
    for task in (failed, running):
        used = re.search(r'<td class="wk".*?</td>', read_page(operator, task), re.DOTALL)
        assert used
        assert "host:1</span> no unit stored" in used[0]


def test_feedback_may_have_any_key(operator: Client, three: Workflow) -> None:
    """A template that asks a dict for its items is given the key of that name."""
    task = submit(three)
    held = claim(three)
    found = {"items": [4, 7], "keys": "none", "values": {"items": 1}}
    holder.repair_task(held, make_unit(held, three), to_index=0, to_name="a", feedback=found)
    told = cut(read_page(operator, task), "repairs-h")
    assert "<dt>Items</dt>" in told
    assert "<dd>4, 7</dd>" in told


def test_the_lease_is_counted_down_only_after_a_missed_beat(
    operator: Client, three: Workflow
) -> None:
    task = make_in(states.RUNNING, three)
    text = read_page(operator, task)
    assert "Lease held" in text
    assert 'data-time="left"' not in text
    clock.offset += LEASE - queries.count_warning() + 1
    text = read_page(operator, task)
    assert 'data-time="left"' in text
    assert "Lease held" not in text
    assert queries.count_warning() <= 15


def test_an_estimate_needs_five_runs_of_that_version(operator: Client, three: Workflow) -> None:
    for _ in range(4):
        make_in(states.COMPLETED, three)
    task = submit(three)
    claim(three)
    assert "No estimate yet" in read_page(operator, task)
    submit(three)
    held = claim(three)
    clock.offset += 240
    complete(held, three)
    assert re.search(r"(left \(5 runs\)|longer than all of the last 5 runs)",
                     read_page(operator, task), re.IGNORECASE)  # fmt: skip


@pytest.mark.parametrize(
    ("runs", "used", "sentence"),
    [
        ([], 0, "no estimate yet"), ([60] * 4, 0, "no estimate yet"),
        ([240] * 5, 0, "about 4 m left (5 runs)"),
        ([120, 130, 200, 230, 240], 0, "2\u20134 m left (5 runs)"),
        ([120, 130, 200, 230, 240], 200, "up to 40 s left (5 runs)"),
        ([120, 130, 200, 230, 240], 300, "longer than all of the last 5 runs"),
        ([7_200, 7_200, 8_000, 9_000, 14_000], 0, "2\u20134 h left (5 runs)"),
    ],
)  # fmt: skip
def test_an_estimate_is_a_range(runs: list[float], used: float, sentence: str) -> None:
    assert past.say_rest(runs, used) == sentence


def test_questions_are_told_as_they_stand(operator: Client, three: Workflow) -> None:
    task = submit(three)
    asked = Approval.objects.get(pk=ask(claim(three), three).pk)
    text = read_page(operator, task)
    assert f'class="push nextyou" href="/approvals/{asked.id}/"' in text
    assert "Open</span>" in cut(text, "task-side")
    approvals.decide_approval(
        asked.id, decision="approve", actor=OPERATOR, digest=asked.digest, undo_seconds=8
    )
    assert "Approved</span>" in cut(read_page(operator, task), "task-side")
    approvals.undo_decision(asked.id, actor=OPERATOR)
    text = read_page(operator, task)
    assert "Open</span>" in cut(text, "task-side")
    operators.cancel_task(task.id, actor=OPERATOR)
    text = read_page(operator, task)
    assert "Void</span>" in cut(text, "task-side")
    assert "nextyou" not in text


def test_events_are_narrowed_to_a_kind_and_paged(operator: Client, three: Workflow) -> None:
    task = submit(three)
    for _ in range(110):
        operators.pause_task(task.id, actor=OPERATOR)
        operators.resume_task(task.id, actor=OPERATOR)
    assert re.search(r'href="[^"]*events/\?kind=paused"', read_page(operator, task))
    path = reverse("dashboard:events", args=[task.id])
    first = operator.get(path, {"kind": "paused"}).content.decode()
    assert first.count('id="event-') == 100
    assert "Resumed</b>" not in first
    older = re.search(r'href="\?before=(\d+)&amp;kind=paused"', first)
    assert older
    rest = operator.get(path, {"kind": "paused", "before": older[1]}).content.decode()
    assert rest.count('id="event-') == 10
    assert operator.get(path, {"kind": "nonsense"}).status_code == 422


def make_timeline(*spans: tuple[str, str, float, float]) -> Timeline:
    """(kind, step, from, to) in seconds after START."""
    made = [
        Span(kind, step, at(start), at(end), turn=n, seq=n + 1, open=kind == "running")
        for n, (kind, step, start, end) in enumerate(spans)
    ]
    return Timeline(made[0].start, max(one.end for one in made), made, [], [], [])


def at(seconds: float) -> dt.datetime:
    return START + dt.timedelta(seconds=seconds)


def test_long_idle_time_is_squeezed_and_told() -> None:
    found = make_timeline(("done", "a", 0, 100), ("paused", "a", 100, 7_300),
                          ("done", "b", 7_300, 7_400))  # fmt: skip
    drawn = axis.make_axis(found, squeeze=True)
    (gap,) = drawn.squeezed
    assert (gap.label, gap.width) == ("2 h 00 m", axis.SQUEEZED_WIDTH)
    first, second = drawn.place(at(100)) - drawn.place(at(0)), 0.0
    second = drawn.place(at(7_400)) - drawn.place(at(7_300))
    assert first == pytest.approx(second)
    assert first > 40
    plain = axis.make_axis(found, squeeze=False)
    assert plain.squeezed == []
    assert plain.place(at(100)) - plain.place(at(0)) < 2


def test_short_idle_time_is_drawn_as_it_is() -> None:
    found = make_timeline(("done", "a", 0, 100), ("done", "b", 130, 200))
    assert axis.make_axis(found, squeeze=True).squeezed == []


@pytest.mark.parametrize("length", [0.0, 0.4, 3, 59, 3_600, 90_000, 40 * 86_400])
def test_ticks_are_round_few_and_in_order(length: float) -> None:
    drawn = axis.make_axis(make_timeline(("done", "a", 0, length)), squeeze=True)
    places = [float(x.rstrip("%")) for x, _ in drawn.list_ticks(50.0)]
    assert places == sorted(places)
    assert len(places) <= axis.MAX_TICKS + 1
    assert all(0 < x < 100 and abs(x - 50) >= axis.TICK_WIDTH for x in places)
    assert drawn.place(at(-999)) == pytest.approx(axis.LEFT)
    assert drawn.place(at(99_999_999)) <= 100


def test_every_place_is_inside_and_nothing_runs_backwards() -> None:
    found = make_timeline(
        ("done", "a", 0, 10), ("waiting", "a", 10, 100_000), ("failed", "b", 100_000, 100_001),
        ("backoff", "b", 100_001, 100_301), ("running", "b", 100_301, 100_400),
    )  # fmt: skip
    drawn = axis.make_axis(found, squeeze=True)
    moments = [drawn.place(at(seconds)) for seconds in range(0, 100_401, 100)]
    assert moments == sorted(moments)
    assert axis.LEFT <= moments[0] <= moments[-1] <= 100
    assert len(drawn.squeezed) == 2


def test_a_loop_is_one_row_with_at_most_a_hundred_ticks(operator: Client, three: Workflow) -> None:
    spans = [("done", "a", n * 2.0, n * 2.0 + 1.5) for n in range(450)]
    found = make_timeline(*spans)
    row = bars.Row(0, "a", words.NOT_STARTED, False, False)
    bars.fill_row(row, found.spans, axis.make_axis(found, True), stride=5)
    assert len(row.bars) == 1
    assert row.bars[0].count == 450
    assert len(row.ticks) == 90
    assert "450 times" in row.label
    task = run_loop(three, 3)
    picture = cut(read_page(operator, task), "task-timeline").split("</table>")[0]
    assert picture.count('class="b-tick"') == 3
    assert "3 units" in picture


def test_a_row_says_in_words_what_its_bars_show(operator: Client, three: Workflow) -> None:
    task = submit(three)
    holder.record_failure(claim(three), attempt(), retries=3, backoff=60)
    clock.offset += 61
    sweeper.sweep()
    claim(three)
    text = cut(read_page(operator, task), "task-timeline")
    label = re.search(r'height="34" role="img" aria-label="([^"]*)"', text)
    assert label
    assert re.match(
        r"Failed attempt \d\d:\d\d:\d\d to .*; backing off \d.*; running \d.* until now", label[1]
    )
    assert 'class="b-wire"' in text
    assert 'class="nowl"' in text


def test_limits_that_are_nearly_used_up_are_marked(operator: Client, three: Workflow) -> None:
    task = run_loop(three, 4)
    operators.extend_limits(task.id, limits_given={"units": 5}, actor=OPERATOR)
    text = read_page(operator, task)
    assert re.search(r'class="vital is-stall">\s*<dt>Units<span class="push num">80%', text)
    assert conf.load().limit_units > 5


def test_what_died_in_a_wait_is_told_to_wait_again(operator: Client, three: Workflow) -> None:
    task = submit(three)
    wait_for(claim(three), three)
    clock.offset += conf.load().approval_seconds + 1
    sweeper.sweep()
    page = operator.get(reverse("dashboard:act", args=[task.pk, "retry"])).content.decode()
    assert "It waits for go again" in page
    assert "runs again now" not in page
