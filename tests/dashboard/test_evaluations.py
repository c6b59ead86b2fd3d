"""What evaluators found, on a task's page and beside the question of a person."""

from __future__ import annotations

from typing import Any

import pytest
from django.contrib.auth import get_user_model
from django.test import Client
from django.urls import reverse

from dashboard.evaluations import read_evaluation, read_findings
from ledger.evaluators import Finding, Person, Predicate
from ledger.models import Approval, Reach
from ledger.testing import Ended, run
from tests.evaluators.conftest import make_flow

pytestmark = [pytest.mark.both_databases, pytest.mark.django_db]

HOSTILE = Finding("<script>alert(1)</script> \u202eevil", "src/<b>.py:3")
LONG = "exit code 1; its output ends:\nline one\nline two"


def judge(value: dict[str, Any]) -> list[Any]:
    """Wrong at first, then with a warning."""
    if value["told"] is None:
        return [HOSTILE, LONG]
    return [Finding("a weak word", "$.title", "warning")]


def evaluate_once(**options: Any) -> Ended:
    layers = [Predicate(judge), Predicate(lambda value: None, name="fits"), Person("Good enough?")]
    return run(make_flow(layers, [{}]), **options)


def read_page(client: Client, ended: Ended, **query: Any) -> str:
    response = client.get(reverse("dashboard:task", args=[ended.id]), query)
    assert response.status_code == 200
    return response.content.decode()


def test_a_unit_shows_what_each_layer_said_and_the_repair_what_it_was_told(
    operator: Client,
) -> None:
    ended = evaluate_once()
    first = next(one["seq"] for one in ended.outputs if one["step"]["name"] == "check")
    text = read_page(operator, ended, unit=first)
    panel = text[text.index('id="panel-h"') :]
    assert "What the evaluation found, turn 0" in panel
    assert "Found wrong: 2 findings" in panel
    assert panel.count("line one\nline two</pre>") == 1, "as it was written, once"
    assert "<script>alert(1)" not in text
    assert "[U+202E]evil" in panel
    assert "src/&lt;b&gt;.py:3" in panel
    past = text[text.index('id="repairs-h"') :]
    assert "2 findings: &lt;script&gt;" in past
    assert "line one\nline two</pre>" in past
    assert "src/&lt;b&gt;.py:3: &lt;script&gt;" in text[text.index('id="events-h"') :]
    last = read_page(operator, ended)
    assert "Passed, with a warning: 1 finding" in last
    assert "What the evaluation found, turn 0, round 1" in last


def test_a_person_sees_the_verdicts_beside_the_question(operator: Client) -> None:
    asked = Approval.objects.get(task=evaluate_once().id)
    text = operator.get(reverse("dashboard:approval", args=[asked.pk])).content.decode()
    assert "What was checked before" in text
    assert "a weak word" in text
    assert "Full request" not in text, "nothing is left to be shown as JSON"


def test_who_sees_no_contents_sees_no_findings(sign_in: Any) -> None:
    ended = evaluate_once()
    blind = sign_in("operator", "blind")
    Reach.objects.create(user=get_user_model().objects.get(username="blind"), payload=False)
    first = next(one["seq"] for one in ended.outputs if one["step"]["name"] == "check")
    for text in (read_page(blind, ended), read_page(blind, ended, unit=first)):
        assert "weak word" not in text
        assert "line one" not in text


@pytest.mark.parametrize(
    "value",
    [
        None, [], {}, {"evaluation": None}, {"evaluation": "text"}, {"evaluation": [1]},
        {"evaluation": [{"name": "x"}]},
        {"evaluation": [{"name": 1, "kind": 2, "passed": "yes", "findings": [], "seconds": 0}]},
        {"evaluation": [{"name": 1, "kind": 2, "passed": True, "findings": [1], "seconds": 0}]},
        {"evaluation": [{"name": 1, "kind": 2, "passed": True, "findings": {}, "seconds": None}]},
        {"evaluation": [{"name": 1, "kind": 2, "passed": True, "findings": [], "seconds": 9**999}]},
    ],
)  # fmt: skip
def test_what_an_author_keeps_by_that_name_is_not_taken_for_one(value: Any) -> None:
    assert read_evaluation(value) == []
    assert read_findings(value) == []
