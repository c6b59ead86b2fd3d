"""What an author writes: workflows, steps, input, outcomes."""

from __future__ import annotations

import datetime as dt
import functools
import sys
from decimal import Decimal
from typing import Any

import pytest
from pydantic import BaseModel, Field, SecretStr

from ledger import workflows as lw
from ledger.errors import InvalidInput, UnknownStep, UnknownWorkflow


class Topic(BaseModel, strict=True):
    subject: str
    day: dt.date | None = None
    sources: list[str] = []


def make_workflow(*names: str, **options: Any) -> lw.Workflow:
    workflow = lw.Workflow("sample", **options)
    for name in names or ("draft", "verify", "publish"):
        workflow.step(lambda ctx: None, name=name)
    return workflow


def normalise(value: Any, at: str = "verify") -> lw.Outcome:
    workflow = make_workflow()
    return lw.normalise(value, workflow, workflow.steps[workflow.index_of(at)])


# --- Steps ----------------------------------------------------------------------------------------


def test_step_works_bare_called_and_as_a_plain_call() -> None:
    workflow = lw.Workflow("sample")

    @workflow.step
    def one(ctx: Any) -> None: ...

    @workflow.step(timeout=lw.minutes(10), retries=5)
    def two(ctx: Any) -> None: ...

    async def four(ctx: Any) -> None: ...

    assert workflow.step(one, name="three") is one
    workflow.step(four)
    workflow.step(functools.partial(two, extra=1), name="five")
    assert [step.name for step in workflow.steps] == ["one", "two", "three", "four", "five"]
    assert (workflow.steps[1].timeout, workflow.steps[1].retries) == (600, 5)
    assert [step.is_async for step in workflow.steps] == [False, False, False, True, False]


def test_a_step_takes_the_sites_bounds_unless_it_has_its_own(settings: Any) -> None:
    settings.LONGWATCH_UNIT_SECONDS, settings.LONGWATCH_RETRIES = 11.0, 7
    step = make_workflow().steps[0]
    assert (step.timeout, step.retries) == (11.0, 7)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"name": "draft"}, "two steps named draft"),
        ({"name": "a/b"}, "web addresses"),
        ({"name": "1st"}, "a letter first"),
        ({"name": ""}, "can't be ''"),
        ({"name": "x" * 101}, "at most 100"),
        ({}, "<lambda>"),
        ({"name": "x", "timeout": 0}, "timeout of step x"),
        ({"name": "x", "timeout": float("nan")}, "timeout of step x"),
        ({"name": "x", "retries": -1}, "retries of step x"),
        ({"name": "x", "retries": True}, "retries of step x"),
    ],
)
def test_a_step_that_cannot_be_is_refused(options: dict[str, Any], words: str) -> None:
    workflow = make_workflow()
    with pytest.raises(ValueError, match=words):
        workflow.step(lambda ctx: None, **options)
    assert len(workflow.steps) == 3


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("a b",), "a workflow's name"),
        (("ok", "v 1"), "a workflow's version"),
        (("ok", "1" * 51), "at most 50"),
    ],
)
def test_a_workflow_that_cannot_be_is_refused(arguments: tuple[str, ...], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        lw.Workflow(*arguments)


def test_a_step_is_found_by_name_index_and_digits() -> None:
    workflow = make_workflow()
    assert [workflow.index_of(ref) for ref in ("verify", 1, "1", 0)] == [1, 1, 1, 0]
    for ref in ("edit", 3, -1, True, "-1", "²", None, 1.0):
        with pytest.raises(UnknownStep, match="the steps are draft, verify, publish"):
            workflow.index_of(ref)  # type: ignore[arg-type]


def test_the_digest_follows_names_and_source() -> None:
    def make(name: str, source: str) -> str:
        # exec: no file to read the source from, so the code object speaks.
        scope: dict[str, Any] = {}
        exec(f"def step(ctx):\n    return [({source}) for _ in (lambda: 1,)]", scope)
        workflow = lw.Workflow("sample")
        workflow.step(scope["step"], name=name)
        return workflow.digest()

    assert make("a", "1") == make("a", "1")
    assert len({make("a", "1"), make("b", "1"), make("a", "2")}) == 3
    workflow = make_workflow("a")
    before = workflow.digest()
    workflow.step(lambda ctx: 1, name="b")
    assert workflow.digest() != before


# --- Input ----------------------------------------------------------------------------------------


def test_input_is_cleaned_to_json_and_read_back_as_the_model() -> None:
    workflow = make_workflow(input=Topic)
    given = Topic(subject="s", day=dt.date(2026, 1, 31))
    stored = workflow.clean_input(given)
    assert stored == {"subject": "s", "day": "2026-01-31", "sources": []}
    assert workflow.read_input(stored) == given
    assert workflow.clean_input({"subject": "s"}) == {"subject": "s", "day": None, "sources": []}


@pytest.mark.parametrize(
    ("data", "field", "words"),
    [
        ({}, "input.subject", "is missing; give it a value"),
        ({"subject": "s", "sources": ["a", 1]}, "input.sources.1", "valid string"),
        ([], "input", "valid dictionary"),
        ({"subject": "s\x00"}, "input.subject", "NUL"),
    ],
)
def test_refused_input_names_the_field(data: Any, field: str, words: str) -> None:
    with pytest.raises(InvalidInput, match=words) as caught:
        make_workflow(input=Topic).clean_input(data)
    assert caught.value.field == field


def test_every_problem_of_an_input_is_told_within_a_bound() -> None:
    with pytest.raises(InvalidInput) as caught:
        make_workflow(input=Topic).clean_input({"subject": "s", "sources": list(range(9))})
    assert str(caught.value).count("valid string") == 5
    assert str(caught.value).endswith("and 4 more.")


def test_without_a_model_any_json_object_is_input() -> None:
    workflow = make_workflow()
    assert workflow.clean_input({"a": [1, None]}) == {"a": [1, None]}
    assert workflow.read_input({"a": 1}) == {"a": 1}
    for data in ([1], "text", None):
        with pytest.raises(InvalidInput, match="takes a JSON object"):
            workflow.clean_input(data)
    with pytest.raises(InvalidInput, match="a date is not JSON") as caught:
        workflow.clean_input({"a": {"b": dt.date(2026, 1, 1)}})
    assert caught.value.field == "input.a.b"


def test_an_alias_that_cannot_be_read_back_is_refused_at_submit() -> None:
    class Lopsided(BaseModel):
        name: str = Field(validation_alias="n", serialization_alias="m")

    with pytest.raises(InvalidInput, match="missing"):
        make_workflow(input=Lopsided).clean_input({"n": "x"})


def test_a_secret_in_an_input_is_never_stored_in_the_clear() -> None:
    class Login(BaseModel):
        password: SecretStr

    assert "hunter2" not in str(make_workflow(input=Login).clean_input({"password": "hunter2"}))


# --- Outcomes -------------------------------------------------------------------------------------


def test_a_dict_or_nothing_advances() -> None:
    assert normalise({"a": 1}) == lw.Advance({"a": 1})
    assert normalise(None) == lw.Advance({})
    assert normalise({"needs_repair": False, "a": 1}) == lw.Advance({"needs_repair": False, "a": 1})


@pytest.mark.parametrize("value", [1, "text", [1], True, object(), (x for x in ())])
def test_anything_else_is_a_type_error_that_names_the_step(value: Any) -> None:
    with pytest.raises(TypeError, match=f"step verify returned a {type(value).__name__}"):
        normalise(value)


@pytest.mark.parametrize("step", [0, "draft", "0"])
def test_the_plain_dict_asks_for_a_repair(step: Any) -> None:
    found = normalise(
        {"needs_repair": True, "restart_step": step, "feedback": ["f"], "to": "kept", "note": 1}
    )
    assert isinstance(found, lw.Repair)
    assert (found.to, found.feedback) == ("draft", ["f"])
    assert found.data == {"to": "kept", "note": 1}


def test_the_plain_dict_without_a_step_restarts_at_the_first() -> None:
    assert normalise({"needs_repair": True}) == lw.Repair("draft")


def test_repair_goes_back_or_stays() -> None:
    assert normalise(lw.Repair(to="verify", feedback="f", a=1)) == lw.Repair("verify", "f", a=1)
    with pytest.raises(ValueError, match=r"publish comes after verify; .*draft, verify"):
        normalise(lw.Repair(to="publish"))
    with pytest.raises(UnknownStep, match="no step 'edit'; the steps are draft, verify, publish"):
        normalise(lw.Repair(to="edit"))


def test_an_approval_names_steps() -> None:
    found = normalise(lw.AskApproval("Go?", send_back_to=0, on_reject="publish", on_expiry=0))
    assert isinstance(found, lw.AskApproval)
    assert (found.send_back_to, found.on_reject, found.on_expiry) == ("draft", "publish", "draft")
    plain = normalise(lw.AskApproval("Go?", on_expiry="reject"))
    assert plain == lw.AskApproval("Go?", on_expiry="reject")
    with pytest.raises(ValueError, match="publish comes after verify"):
        normalise(lw.AskApproval("Go?", send_back_to="publish"))
    with pytest.raises(ValueError, match=r"on_expiry=\): 'later' is neither dead nor fail nor"):
        normalise(lw.AskApproval("Go?", on_expiry="later"))


def test_an_approvals_form_may_be_a_model() -> None:
    found = lw.AskApproval("Go?", form=Topic, proposal=Topic(subject="s"))
    assert isinstance(found.form, dict)
    assert found.form["properties"]["subject"]["type"] == "string"
    assert found.proposal == {"subject": "s", "day": None, "sources": []}


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: lw.AskApproval(" "), "needs a subject"),
        (lambda: lw.AskApproval("s", risk="none"), "none of low, medium, high"),
        (lambda: lw.AskApproval("s", then="later"), "neither next nor again"),
        (lambda: lw.AskApproval("s", expires=0), "expires"),
        (lambda: lw.Again({}, after=-1), "after"),
        (lambda: lw.Sleep(), "either seconds or until"),
        (lambda: lw.Sleep(1, dt.datetime.now(dt.UTC)), "either seconds or until"),
        (lambda: lw.Sleep("1"), "seconds"),
        (lambda: lw.Sleep(until=dt.datetime(2026, 1, 1)), "no time zone"),  # noqa: DTZ001
        (lambda: lw.RetryLater(float("inf")), "RetryLater"),
    ],
)
def test_a_wrong_outcome_fails_where_it_is_made(make: Any, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        make()


def test_data_of_an_outcome_is_a_dict() -> None:
    assert lw.Again(None).data == {}  # type: ignore[arg-type]
    with pytest.raises(TypeError, match=r"Again\(data=\): a list is no dict"):
        lw.Again([1])  # type: ignore[arg-type]


# --- Limits ---------------------------------------------------------------------------------------


def test_limits_take_money_as_decimal_text() -> None:
    assert lw.Limits(cost="5.00").cost_nano == 5_000_000_000
    assert lw.Limits(cost=Decimal("0.000000001")).cost_nano == 1
    assert lw.Limits().cost_nano is None
    assert lw.Limits(wall=lw.hours(6)).wall == 21_600
    assert (lw.seconds(1), lw.minutes(1), lw.days(1)) == (1, 60, 86_400)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("tokens", -1),
        ("tokens", 1.5),
        ("tokens", True),
        ("tokens", 2**63),
        ("cost", 5.0),
        ("cost", "five"),
        ("cost", "-1"),
        ("cost", "NaN"),
        ("units", "10"),
        ("wall", -1),
        ("wall", float("nan")),
        ("deadline_at", dt.datetime(2026, 1, 1)),  # noqa: DTZ001
        ("deadline_at", "2026-01-01"),
    ],
)
def test_a_bad_limit_names_its_field(field: str, value: Any) -> None:
    with pytest.raises(ValueError, match=f"^{field}: "):
        lw.Limits(**{field: value})


# --- Registry -------------------------------------------------------------------------------------


def test_a_registered_workflow_is_known_inside_the_block_only() -> None:
    first, second = make_workflow(version="1"), make_workflow(version="2")
    with lw.registered(first, second):
        assert lw.get("sample") is second
        assert lw.get("sample", "1") is first
        assert {("sample", "1"), ("sample", "2")} <= lw.known()
        assert second in lw.all_workflows()
        with pytest.raises(UnknownWorkflow, match="sample version 3"):
            lw.get("sample", "3")
        with pytest.raises(ValueError, match="two workflows are named sample version 1"):
            lw.register(make_workflow(version="1"))
    with pytest.raises(UnknownWorkflow, match="nobody knows sample"):
        lw.get("sample")


def test_a_workflow_without_steps_is_refused() -> None:
    with pytest.raises(ValueError, match="has no steps"):
        lw.register(lw.Workflow("empty"))


MODULES = {
    "good.py": "good = make('good')",
    "twice.py": "again = make('good')",
    "broken.py": "import no_such_module",
    "leaving.py": "raise SystemExit(0)",
    "_private.py": "private = make('private')",
    "empty.py": "empty = Workflow('empty')",
}
FOUND = ("workflows.", "named_package")
HEAD = """
from ledger.workflows import Workflow
def make(name):
    made = Workflow(name)
    made.step(lambda ctx: None, name="only")
    return made
"""


def test_modules_are_found_and_a_broken_one_stops_nobody(
    tmp_path: Any, monkeypatch: pytest.MonkeyPatch, settings: Any
) -> None:
    (tmp_path / "workflows").mkdir()
    for name, text in MODULES.items():
        (tmp_path / "workflows" / name).write_text(HEAD + text)
    package = tmp_path / "named_package"
    package.mkdir()
    (package / "__init__.py").write_text(HEAD + "outer = make('outer')")
    (package / "inner.py").write_text(HEAD + "inner = make('inner')")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.chdir(tmp_path)
    settings.LONGWATCH_WORKFLOWS = ["named_package", "not_there"]
    before = dict(lw.load_errors)
    with lw.registered():
        try:
            lw.load_all()
            lw.load_all()  # again: nothing doubles
            names = {workflow.name for workflow in lw.all_workflows()}
            errors = {key.rpartition("/")[2]: text for key, text in lw.load_errors.items()}
        finally:
            lw.load_errors.clear()
            lw.load_errors.update(before)
            for name in [name for name in sys.modules if name.startswith(FOUND)]:
                del sys.modules[name]
    assert {"good", "outer", "inner"} <= names
    assert not {"private", "empty"} & names
    assert "No module named 'no_such_module'" in errors["broken.py"]
    assert "SystemExit" in errors["leaving.py"]
    assert "two workflows are named good" in errors["twice.py"]
    assert "no steps" in errors["empty.py"]
    assert "not_there" in errors
