"""Layers of evaluators: their order, what comes of findings, what of their own faults."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel

from ledger import linting, queries, secrets
from ledger.evaluators import (
    Command,
    Cost,
    Finding,
    Lint,
    Person,
    Predicate,
    Schema,
    evaluate,
)
from ledger.evaluators.findings import MAX_BYTES, MAX_FINDINGS
from ledger.handoff import build_handoff
from ledger.testing import LOST, Ended, run
from ledger.workflows import Repair, Workflow
from tests.evaluators.conftest import make_flow

pytestmark = [pytest.mark.both_databases, pytest.mark.django_db]


class Report(BaseModel):
    """What a draft has to be."""

    title: str
    pages: list[int]


def has_end(value: dict[str, Any]) -> str | None:
    """A finding unless the title ends with a stop."""
    return None if value["title"].endswith(".") else "The title has no end."


def read_evaluation(ended: Ended, round: int = -1) -> list[dict[str, Any]]:
    units = [one["output"] for one in ended.outputs if one["step"]["name"] == "check"]
    return list(units[round]["evaluation"])


def read_feedback(ended: Ended) -> list[dict[str, Any]]:
    return [one["data"]["feedback"] for one in ended.events if one["kind"] == "repaired"]


def test_findings_are_the_feedback_of_a_repair_and_a_pass_goes_on() -> None:
    wrong, right = {"title": "Tea", "pages": [1, "two"]}, {"title": "Tea.", "pages": [1]}
    ended = run(make_flow([Schema(Report), Predicate(has_end)], [wrong, right]))
    assert ended.status == "completed"
    assert ended.units == [("draft", 0), ("check", 0), ("draft", 0), ("check", 0)]
    assert ended.task["repairs"]["count"] == 1
    first, second = read_feedback(ended)[0]["findings"]
    assert first["where"] == "$.pages[1]"
    assert first | {"message": "", "where": ""} == {
        "evaluator": "Report", "where": "", "message": "", "severity": "error",
    }  # fmt: skip
    assert second["message"] == "The title has no end."
    assert ended.outputs[2]["output"]["told"]["findings"] == [first, second]
    assert [one["passed"] for one in read_evaluation(ended, 0)] == [False, False]
    passed = read_evaluation(ended)
    assert [(one["name"], one["kind"]) for one in passed] == [
        ("Report", "schema"), ("has_end", "predicate"),
    ]  # fmt: skip
    assert all(one["passed"] and one["findings"] == [] for one in passed)
    assert all(0 <= one["seconds"] < 60 for one in passed)


def test_repairs_of_an_evaluation_are_bounded_and_going_round_is_said() -> None:
    ended = run(make_flow([Predicate(has_end)], [{"title": "Tea"}], max_repairs=2))
    assert (ended.status, ended.reason) == ("dead", "repairs_exhausted")
    first, second = read_feedback(ended)
    assert "note" not in first
    assert second["rounds"] == 2
    assert "same findings" in second["note"]
    assert first["findings"] == second["findings"]


def test_layers_run_cheapest_first_and_no_further_than_the_class_that_finds_something() -> None:
    ran: list[str] = []

    def note(name: str, *, found: bool = False, cost: int = Cost.MEMORY) -> Predicate:
        def look(value: Any) -> list[str]:
            ran.append(name)
            return ["wrong"] * found

        return Predicate(look, name=name, cost=cost)

    layers = [
        note("model", cost=Cost.MODEL), note("second", found=True), note("files", cost=Cost.FILES),
        note("third"), Command("never_looked_for"),
    ]  # fmt: skip
    ended = run(make_flow(layers, [{"title": "x"}], max_repairs=0))
    assert ran == ["second", "third"]
    assert [one["name"] for one in read_evaluation(ended)] == ["second", "third"]
    layers[1] = note("second")
    layers.pop()
    ran.clear()
    assert run(make_flow(layers, [{"title": "x"}])).status == "completed"
    assert ran == ["second", "third", "files", "model"]


def test_a_warning_is_shown_and_fails_nothing() -> None:
    weak = Predicate(lambda value: [Finding("weak", "$", "warning")], name="weak")
    ended = run(make_flow([weak], [{}]))
    assert ended.status == "completed"
    (one,) = read_evaluation(ended)
    assert one["passed"]
    assert one["findings"][0]["severity"] == "warning"


def say_two(value: Any, ctx: Any) -> Iterator[str]:
    yield from ("one", f"{ctx.step} {value['title']}")


@pytest.mark.parametrize(
    ("said", "messages"),
    [
        (lambda value: None, []),
        (lambda value: True, []),
        (lambda value: [], []),
        (lambda value: "", []),
        (lambda value: False, ["p does not hold"]),
        (lambda value: "bad", ["bad"]),
        (lambda ctx: [f"in {ctx.step}", Finding("b", "a.py:1")], ["in check", "b"]),
        (say_two, ["one", "check x"]),
    ],
)
def test_a_predicate_says_what_is_wrong(said: Any, messages: list[str]) -> None:
    ended = run(make_flow([Predicate(said, name="p")], [{"title": "x"}], max_repairs=0))
    (one,) = read_evaluation(ended)
    assert [found["message"] for found in one["findings"]] == messages
    assert one["passed"] is not bool(messages)


def crash(value: Any) -> None:
    raise KeyError("oops")


BROKEN = {
    "crash": (Predicate(crash), "the predicate crash could not judge the work: KeyError: 'oops'"),
    "number": (Predicate(lambda value: 0, name="n"), "returned a int, which says nothing"),
    "strange": (Predicate(lambda value: [3], name="s"), "a int is no finding"),
    "command": (Command("nowhere"), "LONGWATCH_CHECKS has no command 'nowhere', but nothing"),
    "rules": (Lint(rules=("NOSUCH1",)), "the lint ruff could not judge the work"),
}


@pytest.mark.parametrize("name", BROKEN)
def test_an_evaluator_that_fails_is_a_failed_attempt_neither_pass_nor_finding(name: str) -> None:
    layer, message = BROKEN[name]
    ended = run(make_flow([layer], [{"title": "x"}]))
    assert (ended.status, ended.reason) == ("dead", "retries_exhausted")
    assert ended.task["error"]["type"] == "EvaluatorFailed"
    assert message in ended.task["error"]["message"]
    assert "repaired" not in ended.kinds


def test_a_reference_out_of_a_schema_is_not_followed() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = f"http://127.0.0.1:{server.getsockname()[1]}/x.json"
        error = run(make_flow([Schema({"$ref": address})], [{}], timeout=5.0)).task["error"]
        server.setblocking(False)
        with pytest.raises(BlockingIOError):
            server.accept()
    assert error["type"] == "EvaluatorFailed"
    assert address in error["message"]


def test_a_person_is_asked_last_with_the_verdicts_and_may_send_back() -> None:
    layers = [Person("Good enough?", risk="medium"), Predicate(has_end)]
    flow = make_flow(layers, [{"title": "Tea."}])
    waits = run(flow)
    assert (waits.status, waits.reason) == ("waiting", "approval")
    (asked,) = queries.list_approvals(task_id=waits.id).items
    assert asked["subject"] == "Good enough?"
    assert asked["risk"] == "medium"
    assert [one["name"] for one in asked["payload"]["evaluation"]] == ["has_end"]
    back = {"decision": "send_back", "comment": "Longer."}
    ended = run(flow, answers={"check": [back, "approve"]})
    assert ended.status == "completed"
    assert ended.units == [("draft", 0), ("check", 0), ("draft", 0), ("check", 0)]
    assert ended.outputs[2]["output"]["told"]["comment"] == "Longer."
    assert run(flow, answers={"check": "reject"}).reason == "approval_rejected"


def test_nobody_is_asked_about_what_a_layer_found_wrong() -> None:
    ended = run(make_flow([Person("Good?"), Predicate(has_end)], [{"title": "x"}], max_repairs=0))
    assert ended.status == "dead"
    assert "approval_requested" not in ended.kinds


def test_a_step_of_the_authors_own_may_evaluate() -> None:
    flow = Workflow("own", max_repairs=1)

    @flow.step
    def write(ctx: Any) -> Any:
        verdict = evaluate(ctx, [Predicate(has_end)], {"title": "x" if ctx.round == 0 else "x."})
        if not verdict.passed:
            return Repair(to="write", feedback=verdict.feedback)
        return {"good": True, **verdict.output}

    ended = run(flow)
    assert ended.status == "completed"
    assert ended.result["good"]
    assert ended.result["evaluation"][0]["passed"]


def test_a_worker_that_is_lost_after_an_evaluation_changes_nothing() -> None:
    ended = run(make_flow([Predicate(has_end)], [{"title": "x."}]), faults={"check": LOST})
    assert ended.status == "completed"
    assert ended.units == [("draft", 0), ("check", 0)]


def test_findings_are_bounded_the_least_useful_last_and_that_is_said() -> None:
    many = [Finding(f"warning {n}", severity="warning") for n in range(100)]
    many += [Finding(f"error {n} {'x' * 600}") for n in range(400)]
    ended = run(make_flow([Predicate(lambda value: many, name="many")], [{}], max_repairs=1))
    told = read_feedback(ended)[0]
    assert len(told["findings"]) <= MAX_FINDINGS
    assert len(str(told["findings"])) < MAX_BYTES * 1.2
    assert [one["message"].split()[:2] for one in told["findings"][:2]] == [
        ["error", "0"], ["error", "1"],
    ]  # fmt: skip
    left = 500 - len(told["findings"])
    assert told["left_out"].startswith(f"{left} more")
    assert read_evaluation(ended)[0]["left_out"] == left
    long = run(make_flow([Predicate(lambda value: "y" * 10**6, name="l")], [{}], max_repairs=0))
    assert len(read_evaluation(long)[0]["findings"][0]["message"]) <= 2_000


def test_no_secret_is_in_a_finding_though_its_text_is_cut(monkeypatch: Any) -> None:
    secrets.hide_value("hunter2-hunter2")
    # The cut of a long text goes through the secret.
    text = "a" * 970 + "hunter2-hunter2" + "b" * 3_000 + "\0\x1b[31m \u202e é"
    ended = run(make_flow([Predicate(lambda value: text, name="l")], [{}], max_repairs=1))
    assert "hunter" not in str(ended.outputs) + str(ended.events)
    assert "\\x00" in read_evaluation(ended)[0]["findings"][0]["message"]


def test_the_handoff_tells_of_the_findings() -> None:
    ended = run(make_flow([Predicate(has_end)], [{"title": "Tea"}, {"title": "Tea."}]))
    assert "The title has no end." in build_handoff(ended.id).markdown


def test_a_handoff_tells_whole_findings_where_not_all_have_room() -> None:
    many = [
        Finding("exit code 1\n" + "x" * 900),
        *(Finding(f"bad {n}", f"a.py:{n}") for n in range(40)),
    ]
    ended = run(make_flow([Predicate(lambda value: many, name="many")], [{}], max_repairs=1))
    sent = build_handoff(ended.id)
    (repair,) = sent.data["repairs"]
    found = repair["feedback"]["findings"]
    assert found[0].startswith("exit code 1")
    assert found[1:3] == ["a.py:0 bad 0", "a.py:1 bad 1"]
    assert repair["feedback"]["more"] == f"{41 - len(found)} more findings"
    assert "a.py:1 bad 1" in sent.markdown


SCHEMA = {
    "type": "object",
    "properties": {"pages": {"type": "array", "items": {"$ref": "#/$defs/page"}}},
    "required": ["title"],
    "$defs": {"page": {"type": "integer"}},
}


def test_a_json_schema_judges_an_output_a_key_an_artifact_or_all_progress() -> None:
    flow = Workflow("schemas")

    @flow.step
    def draft(ctx: Any) -> Any:
        ctx.save_artifact("report.json", b'{"pages": [1, "two"], "title": "x"}')
        ctx.save_artifact("notes.txt", b"no json")
        return {"report": {"pages": [3, 4, "five"]}}

    layers = [
        Schema(SCHEMA, artifact="report.json", name="artifact"),
        Schema(SCHEMA, key="report", name="key"),
        Schema(SCHEMA, key="nothing", name="lacking"),
        Schema(SCHEMA, artifact="gone.json", name="gone"),
        Schema(SCHEMA, artifact="notes.txt", name="text"),
    ]
    flow.evaluate("check", layers, repair_to="draft")
    ended = run(flow, max_repairs=0)
    found = {one["name"]: one["findings"] for one in read_evaluation(ended)}
    assert [one["where"] for one in found["artifact"]] == ["report.json: $.pages[1]"]
    assert {one["where"] for one in found["key"]} == {"$.report", "$.report.pages[2]"}
    assert [one["message"] for one in found["lacking"]] == ["is missing"]
    assert [one["message"] for one in found["gone"]] == ["there is no such artifact"]
    assert found["text"][0]["message"].startswith("is not JSON")


def test_lint_goes_by_its_own_rules_whatever_lies_in_the_workspace() -> None:
    files = {
        "a.py": "import os\n",
        "b.py": "x = (\n",
        "pyproject.toml": "[tool.ruff]\nexclude=['*']",
    }
    files |= {".gitignore": "*.py", ".ignore": "*.py"}
    ended = run(make_flow([Lint(rules=["F"])], [{}], files, max_repairs=0))
    found = [(one["where"], one["message"]) for one in read_evaluation(ended)[0]["findings"]]
    assert ("a.py:1", "F401: `os` imported but unused") in found
    assert any(where.startswith("b.py:") for where, _ in found)


def test_what_a_schema_is_held_against_has_bounds() -> None:
    """Four million misfits in 16 MB of JSON took 10 GB, and four minutes."""
    many = {"title": "Tea.", "pages": [[["x"] * 60_000], ["x"] * 60_000]}
    for schema in (Report, {"anyOf": [{"type": "null"}, {"required": ["pages"]}]}):
        [told] = Schema(schema).find(None, many)  # type: ignore[arg-type]
        assert told.message == "has more than 100,000 values, too many to be judged"


@pytest.mark.parametrize(
    ("lint", "files"),
    [
        (Lint(rules=["F"]), {"a.py": b"\xff\xfe import os\n"}),
        (Lint(rules=["F"], paths=["src"]), {"a.py": "import sys\nsys.exit()\n"}),
    ],
)
def test_what_lint_could_not_read_is_no_pass(lint: Lint, files: dict[str, Any]) -> None:
    ended = run(make_flow([lint], [{}], files, max_repairs=0))
    assert [one["message"][:5] for one in read_evaluation(ended)[0]["findings"]] == ["E902:"]


def test_what_a_linter_writes_is_read_within_bounds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "a.py").write_text("import os\n" * 2_000)
    given: Any = (tmp_path, ["."], ["F"], "py312", "--output-format=json-lines")
    monkeypatch.setattr(linting, "MAX_OUTPUT", 100_000)
    output = linting.run_ruff(*given)
    assert 90_000 < len(output) <= 100_000
    assert [json.loads(line)["code"] for line in output.splitlines()][:2] == ["F811", "F811"]
    monkeypatch.setattr(linting, "MAX_OUTPUT", 50)
    with pytest.raises(linting.RuffFailed, match="a line of over"):
        linting.run_ruff(*given)
    with pytest.raises(ZeroDivisionError):
        linting.run_ruff(*given, tick=lambda: 1 // 0)


@pytest.mark.parametrize(
    "make",
    [
        lambda flow: flow.evaluate("x", [], of="draft"),
        lambda flow: flow.evaluate("x", "ruff", of="draft"),
        lambda flow: flow.evaluate("x", [has_end], of="draft"),
        lambda flow: flow.evaluate("x", [Lint(), Lint()], of="draft"),
        lambda flow: flow.evaluate("x", [Person("a"), Person("b")], of="draft"),
        lambda flow: flow.evaluate("x", [Lint()]),
        lambda flow: flow.evaluate("x", [Lint()], of="later"),
        lambda flow: Schema({"type": "nothing"}),
        lambda flow: Schema({"pattern": "("}),
        lambda flow: Schema(int),
        lambda flow: Lint("pylint"),
        lambda flow: Person("Good?", send_back_to="draft"),
        lambda flow: Person(" "),
        lambda flow: Predicate("text"),
        lambda flow: evaluate(None, [Person("Good?")], None),
    ],
)
def test_what_can_not_be_is_refused_when_it_is_written(make: Any) -> None:
    flow = Workflow("refused")
    flow.step(lambda ctx: None, name="draft")
    with pytest.raises(Exception, match=r".") as refused:
        make(flow)
    assert type(refused.value).__name__ in {"ValueError", "UnknownStep"}


def test_another_schema_is_another_definition() -> None:
    one, same, other = (
        make_flow([Schema({"type": kind}), Predicate(has_end)], [{}]).digest()
        for kind in ("object", "object", "array")
    )
    assert one == same != other
