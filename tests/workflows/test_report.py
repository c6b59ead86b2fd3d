"""The bundled `report`: one repair, then an artifact."""

from __future__ import annotations

import pytest

from harness_site.workflows import report
from ledger.errors import InvalidInput
from ledger.testing import LOST, run

pytestmark = [pytest.mark.both_databases, pytest.mark.django_db(transaction=True)]


def test_the_draft_is_repaired_once_and_kept() -> None:
    ended = run(report, {"subject": "tea\n# trees", "sources": ["a book", "a\nfriend"]})
    assert ended.status == "completed"
    steps = [name for name, _ in ended.units]
    assert steps == ["draft", "verify", "draft", "verify", "finalize"]
    repaired = [event["data"] for event in ended.events if event["kind"] == "repaired"]
    (found,) = (one for data in repaired for one in data["feedback"]["findings"])
    assert (found["evaluator"], found["where"]) == ("find_missing", "Sources")
    assert ended.task["repairs"]["count"] == 1
    text = ended.read_artifact("report.md").decode()
    assert text == (
        "# tea # trees\n\n## Summary\n\nWhat is known about tea # trees, from 2 sources.\n\n"
        "## Sources\n\n1. a book\n2. a friend\n"
    )
    assert ended.result == {"report": "report.md", "words": len(text.split())}


def test_without_sources_it_says_so() -> None:
    ended = run(report, {"subject": "tea"})
    assert ended.read_artifact("report.md").endswith(b"## Sources\n\nNone were given.\n")


def test_a_lost_worker_changes_nothing() -> None:
    faults = {"draft": LOST, "verify": [None, LOST], "finalize": LOST}
    ended = run(report, {"subject": "tea"}, faults=faults)
    assert ended.status == "completed"
    assert ended.task["repairs"]["count"] == 1
    assert ended.kinds.count("reclaimed") == 3


@pytest.mark.parametrize(
    ("given", "field"),
    [
        ({}, "input.subject"),
        ({"subject": ""}, "input.subject"),
        ({"subject": "x" * 201}, "input.subject"),
        ({"subject": "x", "sources": "y"}, "input.sources"),
        ({"subject": "x", "sauces": []}, "input.sauces"),
    ],
)
def test_bad_input_is_refused_by_name(given: dict[str, object], field: str) -> None:
    with pytest.raises(InvalidInput) as refused:
        run(report, given)
    assert refused.value.field == field
