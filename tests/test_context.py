"""What a running step is handed: what it reads, what it writes durably, what it may not."""

from __future__ import annotations

import io
import logging
import os
import time
from pathlib import Path
from typing import Any

import pytest
from django.db import OperationalError, transaction
from pydantic import BaseModel

from ledger import artifacts, limits, queries, secrets, sql, steplog, unitlog
from ledger.deadlines import RETRY_SECONDS, UnitStopped, unit_deadline
from ledger.durability import close_left_open, insist_on
from ledger.errors import LeaseLost, LimitReached, UnknownStep
from ledger.events import Actor
from ledger.models import Artifact, Spend, Task
from ledger.sql import Unit
from ledger.transitions.operators import retry_task
from tests.held import Calm, claim, claim_new, make_context, make_workflow

pytestmark = [pytest.mark.both_databases, pytest.mark.django_db]
CANARY = "canary-7f3a/é\\"


@pytest.fixture(autouse=True)
def own_places(settings: Any, tmp_path: Path) -> None:
    settings.LONGWATCH_VAR = str(tmp_path / "var")
    settings.LONGWATCH_ARTIFACTS = str(tmp_path / "artifacts")


@pytest.fixture
def secret(monkeypatch: pytest.MonkeyPatch) -> str:
    """A secret named CANARY, forgotten by the mask afterwards."""
    monkeypatch.setattr(secrets, "_forms", set())
    monkeypatch.setattr(secrets, "_pattern", None)
    monkeypatch.setenv("LONGWATCH_SECRET_CANARY", CANARY)
    return CANARY


# --- Reading --------------------------------------------------------------------------------------


def test_input_is_the_model_or_the_plain_dict() -> None:
    class Topic(BaseModel):
        subject: str

    workflow = make_workflow(input=Topic)
    assert make_context(claim_new(workflow, {"subject": "s"}), workflow).input == Topic(subject="s")
    plain = make_workflow()
    assert make_context(claim_new(plain, {"a": [1]}), plain).input == {"a": [1]}


def test_what_a_step_reads_is_a_copy() -> None:
    """The worker goes on with the same claim at the next unit; a change there would be lost."""
    workflow = make_workflow()
    held = claim_new(workflow, {"a": [1]})
    held.progress, held.feedback, held.answer = {"p": [1]}, {"f": [1]}, {"values": [1]}
    ctx = make_context(held, workflow)
    for value in (ctx.input["a"], ctx.progress["p"], ctx.feedback["f"], ctx.answer["values"]):  # type: ignore[index]
        value.append(2)
    again = make_context(held, workflow)
    assert (again.input, again.progress) == ({"a": [1]}, {"p": [1]})
    assert (again.feedback, again.answer) == ({"f": [1]}, {"values": [1]})


def test_the_output_of_a_step_is_its_last_accepted_one() -> None:
    workflow = make_workflow()
    held = claim_new(workflow)
    ctx = make_context(held, workflow)
    assert ctx.output_of("one") is None
    unit = Unit('{"n":1}', None, next_index=1, next_name="two", next_turn=0)
    sql.checkpoint_unit(held, unit, lease_seconds=60, groups=None)
    assert ctx.output_of("one") == {"n": 1}
    with pytest.raises(UnknownStep, match="the steps are one, two"):
        ctx.output_of("three")


def test_the_idempotency_key_stays_with_the_unit() -> None:
    workflow = make_workflow()
    held = claim_new(workflow)
    first = make_context(held, workflow).idempotency_key("charge")
    assert first == f"{held.task_id}:one:0:0:charge"
    retry_task(held.task_id, actor=Actor("user", "1"))
    held = claim(workflow)
    assert make_context(held, workflow).idempotency_key("charge") == first
    held.turn = 1
    assert make_context(held, workflow).idempotency_key("charge") != first


# --- Writing --------------------------------------------------------------------------------------


def test_a_report_is_seen_at_once() -> None:
    workflow = make_workflow()
    ctx = make_context(claim_new(workflow), workflow)
    ctx.report(3, 10, "reading")
    row = Task.objects.get(pk=ctx.task_id)
    assert (row.progress_done, row.progress_total, row.progress_note) == (3, 10, "reading")


def test_what_was_spent_is_added_up_and_counted_once_a_key() -> None:
    workflow = make_workflow()
    ctx = make_context(claim_new(workflow), workflow)
    ctx.spend(tokens_in=5, tokens_out=7, cost="0.10", note="model")
    ctx.spend(tokens_in=1, cost="0.01")
    ctx.spend(tokens_in=100, key="request-1")
    ctx.spend(tokens_in=100, key="request-1")
    row = Task.objects.get(pk=ctx.task_id)
    assert (row.used_tokens_in, row.used_tokens_out, row.used_cost) == (106, 7, 110_000_000)
    assert (ctx.spent_tokens, ctx.spent_nano) == (113, 110_000_000)
    assert Spend.objects.count() == 3
    with pytest.raises(ValueError, match="is a float"):
        ctx.spend(cost=0.1)  # type: ignore[arg-type]


def test_every_attempt_at_a_unit_spends_anew() -> None:
    workflow = make_workflow()
    held = claim_new(workflow)
    make_context(held, workflow).spend(tokens_in=5)
    retry_task(held.task_id, actor=Actor("user", "1"))
    make_context(claim(workflow), workflow).spend(tokens_in=5)
    assert Task.objects.get(pk=held.task_id).used_tokens_in == 10


def test_spending_past_the_limit_is_recorded_and_told() -> None:
    workflow = make_workflow()
    ctx = make_context(claim_new(workflow, limits_given={"tokens": 10}), workflow)
    with pytest.raises(LimitReached, match="10 tokens"):
        ctx.spend(tokens_in=11)
    assert ctx.spent_tokens == 11
    assert Spend.objects.get().tokens_in == 11


@pytest.mark.case(2)
def test_a_stale_holder_writes_nothing_but_what_it_spent() -> None:
    workflow = make_workflow()
    ctx = make_context(claim_new(workflow), workflow)
    retry_task(ctx.task_id, actor=Actor("user", "1"))
    with pytest.raises(LeaseLost):
        ctx.report(1, 2)
    with pytest.raises(LeaseLost):
        ctx.save_artifact("late", b"x")
    ctx.spend(tokens_in=5)
    row = Task.objects.get(pk=ctx.task_id)
    assert (row.progress_done, row.used_tokens_in) == (None, 5)
    assert Spend.objects.get().stale
    assert not Artifact.objects.exists()


@pytest.mark.case(58)
def test_a_unit_that_is_ended_meanwhile_still_records_what_it_spent(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    workflow = make_workflow()
    held = claim_new(workflow)
    ctx = make_context(held, workflow)
    record = limits.record_spend

    def spend_and_work_on() -> None:
        with unit_deadline(60) as deadline:

            def record_late(*args: Any, **named: Any) -> bool:
                deadline.interrupt("lease_lost")
                time.sleep(5 * RETRY_SECONDS)  # the signal comes here
                return record(*args, **named)

            monkeypatch.setattr(limits, "record_spend", record_late)
            ctx.spend(40, cost="0.40")
            while True:
                time.sleep(RETRY_SECONDS)

    with pytest.raises(UnitStopped, match="lease_lost"):
        spend_and_work_on()
    assert Spend.objects.get(task=held.task_id).tokens_in == 40
    assert ctx.spent_tokens == 40


@pytest.mark.case(58)
def test_an_outage_is_no_failure_of_a_step_that_writes(monkeypatch: pytest.MonkeyPatch) -> None:
    workflow = make_workflow()
    held = claim_new(workflow)
    ctx = make_context(held, workflow)
    record, tries = limits.record_spend, []

    def record_and_lose_the_answer(*args: Any, **named: Any) -> bool:
        tries.append(named["key"])
        new = record(*args, **named)
        if len(tries) < 3:
            raise OperationalError("the connection is lost")
        return new

    monkeypatch.setattr(limits, "record_spend", record_and_lose_the_answer)
    ctx.spend(40, cost="0.40")
    assert len(tries) == 3
    assert [spend.tokens_in for spend in Spend.objects.filter(task=held.task_id)] == [40]
    assert (ctx.spent_tokens, ctx.spent_nano) == (40, 400_000_000)


@pytest.mark.case(58)
def test_money_is_recorded_after_an_outage_that_cost_the_lease(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    workflow, signals = make_workflow(), Calm()
    ctx = make_context(claim_new(workflow), workflow, signals)
    record = limits.record_spend

    def record_late(*args: Any, **named: Any) -> bool:
        if not signals.lost:
            signals.lost = True
            deadline.interrupt("lease_lost")
            raise OperationalError("the connection is lost")
        return record(*args, **named)

    def spend_and_work_on() -> None:
        ctx.spend(40, cost="0.40")
        time.sleep(30)

    monkeypatch.setattr(limits, "record_spend", record_late)
    with pytest.raises(UnitStopped, match="lease_lost"), unit_deadline(60) as deadline:
        spend_and_work_on()
    assert [spend.tokens_in for spend in Spend.objects.filter(task=ctx.task_id)] == [40]


def test_an_outage_is_no_failure_of_a_step_that_saves_or_reads(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    workflow = make_workflow()
    ctx = make_context(claim_new(workflow), workflow)
    asked: list[str] = []

    def lose_first_answer(module: Any, name: str) -> None:
        real = getattr(module, name)

        def lossy(*args: Any, **named: Any) -> Any:
            answer = real(*args, **named)
            asked.append(name)
            if asked.count(name) == 1:
                raise OperationalError("the connection is lost")
            return answer

        monkeypatch.setattr(module, name, lossy)

    lose_first_answer(artifacts, "record_artifact")
    lose_first_answer(artifacts, "find_artifact")
    lose_first_answer(queries, "live_output")
    ctx.save_artifact("a", io.BytesIO(b"read once"))
    with ctx.open_artifact("a") as file:
        assert file.read() == b"read once"
    assert ctx.output_of("one") is None
    assert sorted(asked) == sorted(["record_artifact", "find_artifact", "live_output"] * 2)
    assert Artifact.objects.count() == 1


def test_a_transaction_of_the_step_does_not_outlive_its_connection() -> None:
    def ask() -> None:
        raise OperationalError("the connection is lost")

    with pytest.raises(OperationalError), transaction.atomic():
        insist_on(ask, lambda: None)


def test_a_process_that_the_step_forks_writes_nothing() -> None:
    workflow = make_workflow()
    held = claim_new(workflow)
    ctx = make_context(held, workflow)
    child = os.fork()
    if child == 0:
        try:
            ctx.spend(40)
        except RuntimeError:
            os._exit(3)
        finally:
            os._exit(4)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 3
    assert not Spend.objects.filter(task=held.task_id).exists()


def test_a_durable_write_refuses_the_steps_own_transaction() -> None:
    workflow = make_workflow()
    ctx = make_context(claim_new(workflow), workflow)
    writes = {
        "report": lambda: ctx.report(1),
        "spend": lambda: ctx.spend(tokens_in=1),
        "save_artifact": lambda: ctx.save_artifact("x", b"x"),
    }
    for name, write in writes.items():
        with (
            pytest.raises(RuntimeError, match=rf"{name}\(\) is a durable write"),
            transaction.atomic(),
        ):
            write()
    ctx.report(1)
    assert not Spend.objects.exists()


def test_an_artifact_is_read_by_a_later_step() -> None:
    workflow = make_workflow()
    held = claim_new(workflow)
    saved = make_context(held, workflow).save_artifact("a.txt", "one")
    held.step_index, held.step_name = 1, "two"
    for ref in ("a.txt", saved.id, str(saved.id)):
        with make_context(held, workflow).open_artifact(ref) as file:
            assert file.read() == b"one"


def test_the_workspace_is_made_when_it_is_asked_for(tmp_path: Path) -> None:
    workflow = make_workflow()
    ctx = make_context(claim_new(workflow), workflow)
    assert ctx.snapshot_workspace() == ""
    assert not (tmp_path / "var").exists()
    (ctx.workspace / "file").write_text("x")
    assert ctx.workspace == ctx.workspace
    assert len(ctx.snapshot_workspace()) == 64


# --- Being ended ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("sign", "reason"), [("cancel", "cancel"), ("lost", "lease_lost"), ("stop", "drain")]
)
def test_check_raises_when_the_unit_should_end(sign: str, reason: str) -> None:
    workflow = make_workflow()
    signals = Calm()
    ctx = make_context(claim_new(workflow), workflow, signals)
    ctx.check()
    setattr(signals, sign, True)
    with pytest.raises(UnitStopped) as caught:
        ctx.check()
    assert caught.value.reason == reason
    assert not isinstance(caught.value, Exception), "`except Exception` must let it pass"


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("how", ["atomic", "autocommit", "begin"])
def test_a_transaction_that_a_step_left_open_is_rolled_back(how: str) -> None:
    from django.db import connection

    workflow = make_workflow()
    held = claim_new(workflow)
    assert close_left_open() == []
    if how == "atomic":
        transaction.atomic().__enter__()
    elif how == "autocommit":
        transaction.set_autocommit(False)
    else:
        connection.cursor().execute("BEGIN")
    Task.objects.filter(pk=held.task_id).update(title="never")
    assert close_left_open() == ["default"]
    assert close_left_open() == []
    assert Task.objects.get(pk=held.task_id).title == ""
    with transaction.atomic():
        assert Task.objects.count() == 1


# --- Log ------------------------------------------------------------------------------------------


def test_the_tail_of_the_log_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(steplog.site_log, "disabled", False)
    steplog.site_log.setLevel(logging.CRITICAL)
    try:
        log = steplog.StepLog()
        for n in range(100_000):
            log.info("line %d %s", n, "x" * 60)
        log.info("long %s end", "y" * 10_000_000)
    finally:
        steplog.site_log.setLevel(logging.NOTSET)
    lines = log.read_tail().splitlines()
    assert len("\n".join(lines)) <= unitlog.MAX_TAIL
    assert 100 < len(lines) <= unitlog.MAX_LINES
    assert lines[-1].endswith(" end")
    assert len(lines[-1]) < unitlog.MAX_LINE + 100
    assert " INFO line 99999 " in lines[-2]


def test_a_log_line_never_fails_the_step(caplog: pytest.LogCaptureFixture) -> None:
    log = steplog.StepLog()
    log.info("%d apples", "no number")
    log.info("NUL \x00 and surrogate \ud800")
    try:
        raise KeyError("gone")
    except KeyError:
        log.exception("it broke")
    tail = log.read_tail()
    assert "its arguments do not fit" in tail
    assert r"NUL \x00 and surrogate \ud800" in tail
    assert "Traceback" in tail
    assert "KeyError: 'gone'" in tail
    assert "it broke" in caplog.text


# --- Secrets --------------------------------------------------------------------------------------


def test_a_secret_is_masked_wherever_the_step_writes(
    secret: str, caplog: pytest.LogCaptureFixture
) -> None:
    workflow = make_workflow()
    ctx = make_context(claim_new(workflow), workflow)
    assert ctx.secret("CANARY") == secret
    ctx.log.warning("token %s", secret)
    ctx.log.warning("as repr %r, in an address %s", secret, "?key=canary-7f3a%2F%C3%A9%5C")
    ctx.report(note=f"with {secret}")
    ctx.spend(tokens_in=1, note=f"with {secret}")
    shown = {"a": [f"x{secret}y", {secret: 1}], "n": 5}
    assert ctx.mask(shown) == {"a": ["x[secret]y", {"[secret]": 1}], "n": 5}
    row = Task.objects.get(pk=ctx.task_id)
    everything = [ctx.log_tail(), caplog.text, row.progress_note, Spend.objects.get().note]
    assert all("[secret]" in text and "canary" not in text for text in everything)


def test_a_secret_may_lie_in_a_file(
    secret: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    key = "-----BEGIN KEY-----\nabcdefgh12345678\n-----END KEY-----"
    (tmp_path / "key.pem").write_text(key + "\n")
    monkeypatch.setenv("LONGWATCH_SECRET_PEM_FILE", str(tmp_path / "key.pem"))
    assert secrets.read_secret("PEM") == key
    assert secrets.mask_text("line: abcdefgh12345678!") == "line: [secret]!"
    monkeypatch.setenv("LONGWATCH_SECRET_PEM_FILE", str(tmp_path / "gone.pem"))
    with pytest.raises(secrets.SecretUnavailable, match="LONGWATCH_SECRET_PEM_FILE can't be read"):
        secrets.read_secret("PEM")


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("MISSING", "set LONGWATCH_SECRET_MISSING, or LONGWATCH_SECRET_MISSING_FILE"),
        ("KEY", "reserved"),
        ("CANARY_FILE", "reserved"),
        ("lower", "a letter first"),
        ("../X", "a letter first"),
        ("SHORT", "fewer than 4 characters"),
    ],
)
def test_a_secret_that_cannot_be_read_names_the_cure(
    secret: str, monkeypatch: pytest.MonkeyPatch, name: str, words: str
) -> None:
    monkeypatch.setenv("LONGWATCH_SECRET_SHORT", "abc")
    monkeypatch.setenv("LONGWATCH_SECRET_KEY", "the-sites-own-signing-key")
    with pytest.raises(secrets.SecretUnavailable, match=words) as caught:
        secrets.read_secret(name)
    assert "signing" not in str(caught.value)
