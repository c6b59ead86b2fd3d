"""Two attempts at a unit, side by side."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest
from django.contrib.auth import get_user_model
from django.test import Client
from django.urls import reverse

from ledger.models import Reach, Task
from ledger.transitions import holder, operators, sweeps
from ledger.workflows import Workflow
from tests.dashboard.conftest import PART
from tests.factories import LEASE, OPERATOR, claim, expire_lease, make_unit, submit

pytestmark = [pytest.mark.both_databases, pytest.mark.django_db]


def make_tried(three: Workflow) -> Task:
    """A task whose first unit failed, was lost, was done, and was done again after a restart."""
    task = submit(three)
    bad = holder.Attempt(
        {"type": "Timeout", "message": "no <b>answer"}, log_tail="08:00:00 ERROR cold",
        tokens=7, cost=5 * 10**8,
    )  # fmt: skip
    holder.record_failure(claim(three), bad, retries=3, backoff=0)
    operators.retry_task(task.id, actor=OPERATOR)
    claim(three)
    expire_lease()
    sweeps.reclaim_expired(LEASE)
    held = claim(three)
    holder.settle_unit(held, make_unit(held, three, output='{"boat": 1, "tea": "green"}'))
    operators.restart_task(task.id, to_step="a", note="again", actor=OPERATOR)
    held = claim(three)
    holder.settle_unit(held, make_unit(held, three, output='{"boat": 2, "tea": "green"}'))
    return task


def compare(client: Client, task: Task, headers: Any = None, **query: Any) -> str:
    """The page of the first unit's attempts, or its part."""
    path = reverse("dashboard:compare", args=[task.id])
    response = client.get(path, {"step": "a", "turn": 0} | query, headers=headers or {})
    assert response.status_code == 200
    return response.content.decode()


def list_sides(text: str) -> list[str]:
    """What stands on the left and on the right, without its tags."""
    found = re.findall(r'<section class="side-\d".*?</section>', text, re.DOTALL)
    return [" ".join(re.sub(r"<[^>]+>", " ", one).split()) for one in found]


def test_the_last_two_attempts_stand_side_by_side_with_what_changed(
    operator: Client, three: Workflow
) -> None:
    task = make_tried(three)
    panel = operator.get(reverse("dashboard:task", args=[task.id]), {"step": "a"}).content.decode()
    link = re.search(r'href="([^"]+/compare/[^"]+)"', panel)
    assert link
    text = operator.get(link[1].replace("&amp;", "&")).content.decode()
    left, right = list_sides(text)
    assert left.startswith("Attempt 3 of 4 Superseded Round 0, superseded in round 1 Took")
    assert right.startswith("Attempt 4 of 4 Output stored Round 1 Took")
    assert "host:1 , fence" in right
    assert "&quot;boat&quot; : 2" in right
    changed = text[text.index("What the second output has otherwise") :]
    assert len(re.findall(r'<tr class="(add|del)">', changed)) == 2
    assert "the agent" not in text.lower()


def test_any_two_can_be_chosen_and_failures_say_why(operator: Client, three: Workflow) -> None:
    task = make_tried(three)
    text = compare(operator, task)
    seqs = re.findall(r'<option value="(\d+)"', text)[:4]
    part = compare(operator, task, PART, left=seqs[0], right=seqs[1])
    assert part.lstrip().startswith('<div class="attempts" id="attempts">')
    left, right = list_sides(part)
    for told in ("Attempt 1 of 4 Failed Round 0", "Money $0.50", "Tokens 7",
                 "Timeout : no &lt;b&gt;answer", "It left no output.", "ERROR cold"):  # fmt: skip
        assert told in left, told
    assert "Attempt 2 of 4 Worker lost Round 0" in right
    assert "WorkerLost" in right
    assert "has otherwise" not in part
    for wrong in ({"left": 9_999}, {"left": seqs[3], "right": seqs[3]}):
        assert len(list_sides(compare(operator, task, **wrong))) == 2
    assert "No attempt was made at this unit" in compare(operator, task, turn=7)
    path = reverse("dashboard:compare", args=[task.id])
    assert operator.get(path, {"turn": "x"}).status_code == 422


def test_it_takes_few_queries_and_shows_no_contents_to_who_is_shown_none(
    sign_in: Callable[..., Client], three: Workflow, django_assert_max_num_queries: Any
) -> None:
    task = make_tried(three)
    dora = sign_in("operator", "dora")
    with django_assert_max_num_queries(12):
        assert "green" in compare(dora, task)
    Reach.objects.create(user=get_user_model().objects.get(username="dora"), payload=False)
    text = compare(dora, task)
    first = re.findall(r'<option value="(\d+)"', text)[0]
    text += compare(dora, task, left=first)
    for hidden in ("green", "no &lt;b", "cold"):
        assert hidden not in text
    assert "Its output is not shown to you." in text
    Reach.objects.update(lanes=["elsewhere"])
    assert dora.get(reverse("dashboard:compare", args=[task.id])).status_code == 404
