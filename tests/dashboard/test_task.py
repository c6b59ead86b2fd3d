"""One task's page: what it says, and what a poll answers."""

from __future__ import annotations

import re
from typing import Any
from uuid import uuid4

import pytest
from django.test import Client
from django.urls import reverse

from ledger import sql, states
from ledger.models import Task
from ledger.transitions import holder, operators
from ledger.transitions.lanes import set_lane
from ledger.transitions.workers import drain_worker
from ledger.workflows import Workflow
from tests.dashboard.conftest import PART
from tests.dashboard.fleet import make_worker
from tests.dashboard.test_templates import Elements
from tests.factories import (
    LEASE,
    OPERATOR,
    attempt,
    claim,
    complete,
    expire_lease,
    make_in,
    make_unit,
    submit,
)

pytestmark = pytest.mark.both_databases


def path_of(task: Any) -> str:
    """The page of a task."""
    return reverse("dashboard:task", args=[task.id])


def read_tag(response: Any) -> str:
    """The tag that the polled part was sent with."""
    found = re.search(r'id="task-vitals"[^>]* hx-ptag="([^"]*)"', response.content.decode())
    assert found
    return found[1]


def read_units(text: str) -> list[tuple[str, bool]]:
    """(turn, superseded) of each unit of the shown step, newest first."""
    found = re.search(r'<details class="blk" id="panel-units".*?</details>', text, re.DOTALL)
    assert found
    items = re.findall(r'<li( class="was")?><a [^>]*>turn (\d+)', found[0])
    return [(turn, bool(was)) for was, turn in items]


def read_rows(text: str) -> dict[str, str]:
    """The state of each step of the picture."""
    rows = re.findall(r'<span class="sr">([^<]*)</span></span>\s*<a [^>]*>(\w+)</a>', text)
    return {name: state for state, name in rows}


def test_the_page_tells_steps_units_events_and_limits(operator: Client, three: Workflow) -> None:
    task = submit(three, title="Ferry timetables", tags=["nightly"], input={"x": 12345678901234567})
    held = claim(three)
    sql.checkpoint_unit(held, make_unit(held, three), lease_seconds=LEASE, groups=[])
    text = operator.get(path_of(task)).content.decode()
    assert "<title>Ferry timetables · Running · Longwatch</title>" in text
    for part in ("12345678901234567", "nightly", "host:1", "Step 2 of 3", "Submitted", "of 10,000"):
        assert part in text
    assert read_rows(text) == {"a": "Completed", "b": "Running", "c": "Not started"}
    assert re.search(r'(?s)aria-current="step">\s*<th((?!</th>).)*step=b"', text)
    of_a = operator.get(path_of(task), {"step": "a"}).content.decode()
    assert read_units(of_a) == [("0", False)]


def test_a_restart_marks_what_it_superseded(operator: Client, three: Workflow) -> None:
    task = submit(three)
    held = claim(three)
    assert sql.checkpoint_unit(held, make_unit(held, three), lease_seconds=LEASE, groups=[])
    operators.restart_task(task.id, to_step="a", note="look at the sources", actor=OPERATOR)
    text = operator.get(path_of(task)).content.decode()
    assert read_units(text) == [("0", True)]
    assert "Superseded in round 1" in text
    assert 'class="b-old"' in text
    assert "Restarted from a step" in text
    assert "1 a output is superseded, not deleted." in text
    assert "look at the sources" in text


@pytest.mark.parametrize(
    ("status", "sentence"),
    [(states.DEAD, "Gave up: every retry of one unit failed."),
     (states.FAILED, "Failed: the workflow ended it.")],
)  # fmt: skip
def test_an_end_gives_its_reason_in_words(
    operator: Client, three: Workflow, status: str, sentence: str
) -> None:
    text = operator.get(path_of(make_in(status, three))).content.decode()
    assert sentence in text
    assert "it broke" in text


def test_a_hostile_error_is_text_and_hides_nothing(operator: Client, three: Workflow) -> None:
    task = submit(three)
    bad = holder.Attempt({"type": "Boom", "message": "</pre><script>x</script>\u202etxt.exe"})
    holder.record_failure(claim(three), bad, retries=0, backoff=1)
    text = operator.get(path_of(task)).content.decode()
    assert "<script>x" not in text
    assert "[U+202E]txt.exe" in text


def test_an_unchanged_poll_is_a_304_without_a_body(operator: Client, three: Workflow) -> None:
    task = make_in(states.RUNNING, three)
    tag = read_tag(operator.get(path_of(task)))
    assert tag == f"{task.revision}.{task.beat}"
    poll = operator.get(path_of(task), headers=PART | {"HX-PTag": tag})
    assert (poll.status_code, poll.content) == (304, b"")
    assert set(poll.headers) == {"HX-PTag", "X-Request-ID", "Cache-Control"}


def test_a_beat_sends_the_vitals_and_the_picture(operator: Client, three: Workflow) -> None:
    task = submit(three)
    held = claim(three)
    tag = read_tag(operator.get(path_of(task)))
    holder.report_progress(held.lease, 20, 34, "files edited")
    poll = operator.get(path_of(task), headers=PART | {"HX-PTag": tag})
    text = poll.content.decode()
    assert "20 of 34 · files edited" in text
    assert re.findall(r'<hx-partial hx-target="#([a-z-]+)"', text) == ["task-timeline"]
    assert "task-events" not in text


def test_a_change_sends_every_part_once(operator: Client, three: Workflow) -> None:
    task = submit(three)
    held = claim(three)
    tag = read_tag(operator.get(path_of(task)))
    sql.checkpoint_unit(held, make_unit(held, three), lease_seconds=LEASE, groups=[])
    poll = operator.get(path_of(task), headers=PART | {"HX-PTag": tag})
    text = poll.content.decode()
    assert text.lstrip().startswith('<dl class="vitals eight" id="task-vitals"')
    targets = re.findall(r'<hx-partial hx-target="#([a-z-]+)"', text)
    assert targets == ["task-timeline", "task-head", "task-actions", "task-tabs", "task-children",
                       "task-past", "task-panel", "task-side", "task-events"]  # fmt: skip
    for name in targets:
        assert text.count(f'id="{name}"') == 1


def test_a_lost_worker_shows_before_anybody_reclaims(operator: Client, three: Workflow) -> None:
    task = make_in(states.RUNNING, three)
    tag = read_tag(operator.get(path_of(task)))
    expire_lease()
    poll = operator.get(path_of(task), headers=PART | {"HX-PTag": tag})
    assert poll.status_code == 200
    assert poll["HX-PTag"].endswith(".lost")
    assert 'id="task-head"' in poll.content.decode()


def test_a_queued_task_shows_when_nothing_can_start_it_any_more(
    operator: Client, three: Workflow
) -> None:
    """Nothing is written to it then, so its revision says nothing of that."""
    worker = make_worker(three)
    task = submit(three)
    tag = read_tag(operator.get(path_of(task)))

    def poll() -> str:
        nonlocal tag
        answer = operator.get(path_of(task), headers=PART | {"HX-PTag": tag})
        tag = answer.get("HX-PTag", tag)
        return answer.content.decode()

    assert poll() == ""
    set_lane(task.lane, {}, paused=True, actor=OPERATOR)
    assert "its lane is paused" in poll()
    assert poll() == ""
    set_lane(task.lane, {}, paused=False, actor=OPERATOR)
    assert "its lane is paused" not in poll()
    drain_worker(worker.owner, actor=OPERATOR)
    assert "every worker for it drains" in poll()
    worker.delete()
    assert "no worker is running" in poll()


@pytest.mark.parametrize("status", sorted(states.FINISHED))
def test_a_finished_task_is_not_polled(operator: Client, three: Workflow, status: str) -> None:
    text = operator.get(path_of(make_in(status, three))).content.decode()
    assert 'id="task-vitals"' in text
    assert 'hx-trigger="every' not in text


def test_the_last_poll_stops_the_polling(operator: Client, three: Workflow) -> None:
    task = make_in(states.RUNNING, three)
    tag = read_tag(operator.get(path_of(task)))
    operators.retry_task(task.id, actor=OPERATOR)
    held = claim(three)
    held.step_index = 2
    complete(held, three)
    poll = operator.get(path_of(task), headers=PART | {"HX-PTag": tag})
    assert 'hx-trigger="every' not in poll.content.decode()
    assert 'data-status="completed"' in poll.content.decode()


def test_a_polled_part_holds_no_form(operator: Client, three: Workflow) -> None:
    """A poll that swaps a form would take what somebody types in it."""
    text = operator.get(path_of(make_in(states.RUNNING, three))).content.decode()
    part = re.search(r'<dl class="vitals eight" id="task-vitals".*?</dl>', text, re.DOTALL)
    assert part
    assert {tag for tag, _ in Elements(part[0]).found}.isdisjoint({"form", "input", "textarea"})


@pytest.mark.parametrize("status", states.STATUSES)
def test_the_page_and_its_poll_take_few_queries(
    operator: Client, three: Workflow, django_assert_max_num_queries: Any, status: str
) -> None:
    """The most that a page can need: people and tokens to be named, a wait for a worker."""
    task = make_in(status, three)
    by_token = {"submitted_by": "token:01a226da-9930-78b7-a7dd-ee53d01bdb66"}
    Task.objects.filter(pk=task.pk).update(**by_token, started_at=task.created_at)
    if status in states.UNFINISHED:
        operators.extend_limits(task.pk, limits_given={"units": 77}, actor=OPERATOR)
    with django_assert_max_num_queries(12):
        page = operator.get(path_of(task))
    if status in states.FINISHED:
        return
    tag = read_tag(page)
    with django_assert_max_num_queries(5 if status == states.QUEUED else 4):
        poll = operator.get(path_of(task), headers=PART | {"HX-PTag": tag})
    assert poll.status_code == 304
    with django_assert_max_num_queries(12):
        poll = operator.get(path_of(task), headers=PART | {"HX-PTag": "0.0"})
    assert poll.status_code == 200


def test_what_is_not_there_is_a_404(operator: Client, three: Workflow) -> None:
    task = submit(three)
    for path in (
        f"/tasks/{uuid4()}/", f"/tasks/{task.id}/outputs/99/", f"/tasks/{task.id}/explode/",
        f"/approvals/{uuid4()}/", f"/artifacts/{uuid4()}/", "/tasks/x/",
    ):  # fmt: skip
        assert operator.get(path).status_code == 404


def test_one_unit_is_shown_whole(operator: Client, three: Workflow) -> None:
    task = submit(three)
    held = claim(three)
    unit = make_unit(held, three, output='{"text":"' + "x" * 66_000 + 'END"}', log_tail="hello log")
    sql.checkpoint_unit(held, unit, lease_seconds=LEASE, groups=[])
    seq = Task.objects.get(pk=task.pk).outputs.get().seq
    page = operator.get(path_of(task), {"unit": seq}).content.decode()
    assert "END" not in page
    assert "more characters" in page
    assert reverse("dashboard:output", args=[task.id, seq]) in page
    text = operator.get(reverse("dashboard:output", args=[task.id, seq])).content.decode()
    assert "END" in text
    assert "hello log" in text


def test_the_whole_record_is_a_page_away(operator: Client, three: Workflow) -> None:
    task = submit(three)
    for _ in range(60):
        operators.pause_task(task.id, actor=OPERATOR)
        operators.resume_task(task.id, actor=OPERATOR)
    text = operator.get(path_of(task)).content.decode()
    assert text.count('id="event-') == 20
    assert reverse("dashboard:events", args=[task.id]) in text
    first = operator.get(reverse("dashboard:events", args=[task.id])).content.decode()
    assert first.count('id="event-') == 100
    older = re.search(r'href="\?before=(\d+)"', first)
    assert older
    rest = operator.get(reverse("dashboard:events", args=[task.id]), {"before": older[1]})
    assert "Submitted" in rest.content.decode()
    bad = operator.get(reverse("dashboard:events", args=[task.id]), {"before": "x"})
    assert bad.status_code == 422


def test_an_attempt_that_failed_is_on_the_page(operator: Client, three: Workflow) -> None:
    task = submit(three)
    holder.record_failure(claim(three), attempt("ValueError"), retries=3, backoff=60)
    text = operator.get(path_of(task)).content.decode()
    assert "Last failure" in text
    assert "Attempt failed" in text
    assert "ValueError: it broke" in text


def test_a_copy_and_a_child_lead_to_where_they_come_from(operator: Client, three: Workflow) -> None:
    first, second = submit(three), submit(three)
    Task.objects.filter(pk=second.pk).update(copied_from=first.pk, parent=first.pk)
    text = operator.get(path_of(second)).content.decode()
    link = f'<a class="mono" href="{path_of(first)}">'
    assert f"copied from {link}" in text
    assert f"child of {link}" in text
