"""How a workflow does, on its pages: figures of a bounded sample; and the dry run of its form."""

from __future__ import annotations

import re
from typing import Any

import pytest
from django.test import Client

from ledger import clock, sql, states
from ledger.models import AuditEntry, Event, StepOutput, Task
from ledger.queries import runs
from ledger.transitions import holder, operators, sweeps
from ledger.workflows import Workflow
from tests.dashboard.fleet import make_worker
from tests.factories import LEASE, OPERATOR, ask, attempt, claim, make_in, make_unit, submit

pytestmark = pytest.mark.both_databases


def run_through(three: Workflow, *, cost: int = 1_000_000_000) -> Task:
    """A run of three units: b fails once, c loses its worker once."""
    task = submit(three)

    def store(**fields: Any) -> None:
        held = claim(three)
        unit = make_unit(held, three, **fields)
        sql.checkpoint_unit(held, unit, lease_seconds=LEASE, groups=[])
        task.refresh_from_db()
        if task.status == states.RUNNING:  # kept: nobody else is there
            operators.retry_task(task.pk, actor=OPERATOR)

    store(cost=cost)
    holder.record_failure(claim(three), attempt(), retries=3, backoff=0)
    operators.retry_task(task.pk, actor=OPERATOR)
    store(cost=3 * cost)
    claim(three)
    task.refresh_from_db()
    sweeps.end_lease(task, clock.read(), "it burns")
    store()
    task.refresh_from_db()
    assert task.status == states.COMPLETED
    return task


def read_steps(text: str) -> list[list[str]]:
    """The cells of each step's row, as text."""
    table = text.split('aria-labelledby="steps-h"')[-1].split("</table>")[0]
    return [
        [" ".join(re.sub(r"<[^>]+>", " ", cell).split()) for cell in re.findall(
            r"<t[dh][^>]*>(.*?)</t[dh]>", row, re.DOTALL)]
        for row in table.split("<tr")[2:]
    ]  # fmt: skip


def test_the_page_says_how_each_step_does(operator: Client, three: Workflow) -> None:
    for _ in range(2):
        run_through(three)
    make_in(states.QUEUED, three)
    text = operator.get("/workflows/three/").content.decode()
    rows = read_steps(text)
    assert [row[0].split()[1] for row in rows] == ["a", "b", "c"]
    assert [row[2] for row in rows] == ["0%", "50%", "50%"]
    assert [row[4] for row in rows] == ["$2.00 25%", "$6.00 75%", "$0.00 0%"]
    assert "1 unit a run" in rows[0][0]
    assert "Of the last 2 runs of this version" in text
    assert "1 under way" in text
    assert "may not answer its questions" in text


def test_questions_of_the_sample_and_how_long_they_waited(
    operator: Client, three: Workflow
) -> None:
    task = submit(three)
    ask(claim(three), three)
    operators.cancel_task(task.pk, actor=OPERATOR)
    text = operator.get("/workflows/three/").content.decode()
    assert "1 asked, 1 a run; 0 answered" in text


def test_the_sample_is_bounded_and_says_so(
    operator: Client, three: Workflow, monkeypatch: pytest.MonkeyPatch
) -> None:
    for _ in range(3):
        run_through(three)
    monkeypatch.setattr(runs, "SAMPLE", 2)
    found = runs.sample_runs("three", three.version)
    assert (found.count, found.steps["a"].units, found.whole) == (2, 2, True)
    monkeypatch.setattr(runs, "UNITS_READ", 4)
    found = runs.sample_runs("three", three.version)
    assert (sum(step.units for step in found.steps.values()), found.whole) == (4, False)
    assert "their last 20,000 units" in operator.get("/workflows/three/").content.decode()
    assert runs.sample_runs("three", "77").count == 0


def test_the_list_says_how_versions_do(operator: Client, three: Workflow) -> None:
    run_through(three)
    make_in(states.DEAD, three)
    Task.objects.update(used_cost=2_000_000_000)
    make_worker(three)
    text = operator.get("/workflows/").content.decode()
    card = next(one for one in text.split('<li class="grp">') if ">three</a>" in one)
    told = re.findall(r"<dt>([^<]+)</dt><dd class=\"num\">(?:<a[^>]*>)?([^<]+)<", card)
    figures = dict(told)
    assert (figures["Ended"], figures["Success"], figures["Money a run"]) == ("2", "50%", "$2.00")
    assert figures["Failed last"].endswith("ago")
    assert "active" in card


def read_token(operator: Client) -> str:
    found = re.search(
        r'name="token" value="([^"]+)"', operator.get("/workflows/three/").content.decode()
    )
    assert found
    return found[1]


def test_a_dry_run_judges_all_and_keeps_nothing(operator: Client, three: Workflow) -> None:
    sent = {
        "do": "check", "version": three.version, "token": read_token(operator), "in-input": "{}",
        "lane": "night", "priority": "3", "tags": "", "key": "", "title": "Ferries",
    }  # fmt: skip
    done = operator.post("/workflows/three/", sent)
    text = done.content.decode()
    assert done.status_code == 200
    assert "It would start: lane night, priority 3, 3 steps, and wait for a worker." in text
    assert 'value="Ferries"' in text  # what was typed stands
    for model in (Task, Event, StepOutput, AuditEntry):
        assert not model.objects.exists()
    for typed, said in (
        ({"in-input": "[]"}, "It takes a JSON object."),
        ({"priority": "1000"}, "less than or equal"),
        ({"lane": "a\nb"}, "Nothing was started."),
    ):  # fmt: skip
        bad = operator.post("/workflows/three/", sent | typed)
        assert bad.status_code == 422
        assert said in bad.content.decode()
    started = operator.post("/workflows/three/", sent | {"do": "", "key": "k"})
    assert started.status_code == 303
    again = operator.post("/workflows/three/", sent | {"key": "k"}).content.decode()
    assert "It would be the task that this key has made already" in again
    assert Task.objects.count() == 1


def test_the_pages_take_few_queries(
    operator: Client, three: Workflow, django_assert_max_num_queries: Any
) -> None:
    for _ in range(3):
        run_through(three)
    for path in ("/workflows/", "/workflows/three/"):
        with django_assert_max_num_queries(12):
            operator.get(path)
