"""One question, several doors at the same instant: two tabs, two people, API, dashboard and admin.

Short here; with LONGWATCH_TEST_PROOF=1 each race is run 200 times.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import pytest
from django.contrib.auth import get_user_model
from django.test import Client

from ledger import states
from ledger.access import APPROVE
from ledger.models import Approval, Task
from ledger.tokens import make_token
from ledger.transitions import approvals, holder, operators
from ledger.workflows import Workflow
from tests.admin.test_form import Form, read_errors
from tests.api.conftest import Api
from tests.dashboard.test_approvals import answer, path_of, put
from tests.factories import OPERATOR, ask, claim, expire_lease, make_unit
from tests.ledger.threads import Crew

PROOF = bool(os.environ.get("LONGWATCH_TEST_PROOF"))
TRIALS = 200 if PROOF else 12
pytestmark = [
    pytest.mark.both_databases,
    pytest.mark.django_db(transaction=True),
    pytest.mark.timeout(900 if PROOF else 120),
    pytest.mark.case(46),
]


@pytest.fixture
def together(transactional_db: None) -> Iterator[Crew]:
    """Runs what it is given in threads that begin at the same instant."""
    crew = Crew()
    yield crew
    crew.close()


def judge(asked: Approval, three: Workflow) -> Approval:
    """The question with its one decision; the step after it runs once, and the task ends."""
    asked.refresh_from_db()
    task = Task.objects.get(pk=asked.task_id)
    decided = task.events.filter(kind="approval_decided")
    closed = decided | task.events.filter(kind="approval_voided")
    assert [event.actor for event in closed] == [asked.decided_by]
    assert asked.votes.count() == decided.count()
    if (task.status_reason, asked.status) == (states.DECIDED, "approved"):
        expire_lease(9)
        assert approvals.apply_decision(task.pk)
        assert not approvals.apply_decision(task.pk)
    if asked.status == "approved":
        held = claim(three)
        holder.settle_unit(held, make_unit(held, three))
        assert [row.step_name for row in task.outputs.all()] == ["a", "b"]
    if task.status != states.CANCELLED:
        operators.cancel_task(task.pk, actor=OPERATOR)
    return asked


def judge_page(asked: Approval, response: Any, typed: str) -> None:
    """The loser's page: who decided what, and what they typed themselves."""
    assert response.status_code == 409
    text = response.content.decode()
    by = get_user_model().objects.get(pk=asked.decided_by.removeprefix("user:")).get_username()
    assert f"This request is already {asked.status}." in text
    assert f"{by}: {asked.status}" in text
    assert typed in text


def test_a_double_click_is_one_answer(
    sign_in: Callable[..., Client], three: Workflow, together: Crew
) -> None:
    approver = sign_in("approver")
    for _ in range(TRIALS):
        asked = put(three)
        click = partial(answer, approver, asked, "approve", comment="clicked")
        responses = together(click, click)
        assert sorted(one.status_code for one in responses) == [302, 409]
        (lost,) = (one for one in responses if one.status_code == 409)
        judge_page(judge(asked, three), lost, "clicked")


@pytest.mark.parametrize("people", [1, 2], ids=["two-tabs", "two-people"])
def test_of_yes_and_no_in_two_browsers_one_counts_and_the_other_is_told(
    sign_in: Callable[..., Client], three: Workflow, together: Crew, people: int
) -> None:
    first = sign_in("approver", "first")
    second = sign_in("approver", "second") if people == 2 else first
    for _ in range(TRIALS):
        asked = put(three)
        responses = together(
            partial(answer, first, asked, "approve", comment="typed in the first"),
            partial(answer, second, asked, "reject", comment="typed in the second"),
        )
        assert sorted(one.status_code for one in responses) == [302, 409]
        typed = "first" if responses[0].status_code == 409 else "second"
        lost = responses[0 if typed == "first" else 1]
        judge_page(judge(asked, three), lost, f"typed in the {typed}")


def test_api_dashboard_and_admin_at_the_same_instant_have_one_winner(
    sign_in: Callable[..., Client], three: Workflow, together: Crew
) -> None:
    approver, admin = sign_in("approver"), sign_in("admin")
    api = Api(make_token("bot", [APPROVE], created_by="cli:test")[1])
    seen = set()
    for _ in range(TRIALS):
        asked = put(three)
        form = Form(admin, asked.task)
        given = {"decision": "approve", "digest": asked.digest}
        by_api, by_page, by_admin = together(
            partial(api.post, f"/approvals/{asked.pk}/answer", given),
            partial(answer, approver, asked, "reject", comment="typed"),
            partial(form.send, status=states.CANCELLED),
        )
        won = [by_api.status == 200, by_page.status_code == 302, not read_errors(by_admin)]
        assert sum(won) == 1
        judge(asked, three)
        seen.add(asked.status)
        if not won[0]:
            told = by_api.expect_problem(409, "approval_closed")["detail"]
            assert f"already {asked.status} by {asked.decided_by}" in told
        if not won[1]:
            assert by_page.status_code == 409
            assert "typed" in by_page.content.decode()
        if not won[2]:
            assert "has changed since you looked" in read_errors(by_admin)
    assert len(seen) > 1 or not PROOF, "no door is always first"


def test_an_old_tab_answers_nothing_but_the_question_that_it_shows(
    sign_in: Callable[..., Client], three: Workflow
) -> None:
    """By its address the first question, by its digest what was shown; the task has moved on."""
    approver, other = sign_in("approver"), sign_in("approver", "other")
    old = put(three)
    approvals.decide_approval(old.pk, decision="approve", actor=OPERATOR, digest=old.digest)
    held = claim(three)
    assert held.task_id == old.task_id
    new = ask(held, three, body="and this too")
    late = answer(other, old, "approve", comment="typed")
    assert late.status_code == 409
    assert "already approved" in late.content.decode()
    forged = approver.post(
        path_of(new, "answer"), {"decision": "approve", "digest": old.digest, "comment": ""}
    )
    assert forged.status_code == 409
    assert b"has changed since you were shown it" in forged.content
    new.refresh_from_db()
    assert (new.status, new.votes.count()) == ("open", 0)
