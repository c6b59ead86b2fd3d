"""Effects: an action outside is called once where that can be known, else under one key."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any, ClassVar
from urllib.error import HTTPError

import pytest
from django.db import transaction

from ledger import queries
from ledger.errors import EffectConflict, LeaseLost, NotFound, Unserialisable
from ledger.events import Actor
from ledger.models import Artifact, Effect, Task
from ledger.testing import LOST, run
from ledger.transitions.effects import mark_effect
from ledger.transitions.operators import restart_task, retry_task
from ledger.transitions.submit import submit_task
from ledger.workflows import Workflow, post_json, registered
from tests.held import claim, claim_new, make_context, make_workflow

pytestmark = [pytest.mark.both_databases, pytest.mark.django_db]
ANN = Actor("user", "1")


@pytest.fixture(autouse=True)
def own_places(settings: Any, tmp_path: Path) -> None:
    settings.LONGWATCH_VAR = str(tmp_path / "var")
    settings.LONGWATCH_ARTIFACTS = str(tmp_path / "artifacts")


class Bank:
    """The world outside: it counts what it is told, and forgets nothing."""

    def __init__(self) -> None:
        self.charges: list[str] = []
        self.asked: list[str] = []

    def charge(self, key: str) -> dict[str, int]:
        self.charges.append(key)
        return {"number": len(self.charges)}

    def charge_and_die(self, key: str) -> None:
        self.charge(key)
        raise OSError("the answer was lost")

    def find(self, key: str) -> Any:
        self.asked.append(key)
        return {"found": key} if key in self.charges else None


@pytest.fixture
def flow() -> Workflow:
    return make_workflow()


@pytest.fixture
def bank() -> Bank:
    return Bank()


def take_over(task_id: Any, flow: Workflow) -> Any:
    """Another attempt at the same unit."""
    retry_task(task_id, actor=ANN)
    return make_context(claim(flow, task_id=task_id), flow)


def lose_answer(ctx: Any, bank: Bank, **options: Any) -> None:
    with pytest.raises(OSError, match="lost"):
        ctx.once("charge", bank.charge_and_die, **options)


def test_the_intent_is_stored_before_the_call_and_the_result_after_it(flow: Workflow) -> None:
    ctx = make_context(claim_new(flow), flow)
    revision = Task.objects.get().revision
    seen: list[Any] = []

    def charge(key: str) -> dict[str, int]:
        seen.append(queries.list_effects(ctx.task_id).items[0])
        return {"paid": 5}

    assert ctx.once("charge", charge, args={"cents": 5}) == {"paid": 5}
    assert (seen[0]["state"], seen[0]["key"]) == ("intent", ctx.idempotency_key("charge"))
    after = queries.list_effects(ctx.task_id).items[0]
    assert (after["state"], after["result"], after["args"]) == ("done", {"paid": 5}, {"cents": 5})
    assert Task.objects.get().revision == revision + 2  # open pages show both


def test_a_later_attempt_gets_the_stored_result_without_a_call(flow: Workflow, bank: Bank) -> None:
    ctx = make_context(claim_new(flow), flow)
    first = ctx.once("charge", bank.charge)
    again = take_over(ctx.task_id, flow).once("charge", bank.charge, verify=bank.find)
    assert (again, first) == ({"number": 1}, {"number": 1})
    assert (len(bank.charges), bank.asked) == (1, [])


def test_what_nobody_knows_is_asked_of_verify(flow: Workflow, bank: Bank) -> None:
    ctx = make_context(claim_new(flow), flow)
    lose_answer(ctx, bank)
    key = ctx.idempotency_key("charge")
    again = take_over(ctx.task_id, flow)
    assert queries.list_effects(ctx.task_id).items[0]["state"] == "unknown"
    assert again.once("charge", bank.charge, verify=bank.find) == {"found": key}
    assert (bank.charges, bank.asked) == ([key], [key])
    assert Effect.objects.get().tries == 2


@pytest.mark.parametrize("answer", [None, False])
def test_what_verify_does_not_find_is_called(flow: Workflow, bank: Bank, answer: Any) -> None:
    ctx = make_context(claim_new(flow), flow)
    with pytest.raises(ZeroDivisionError):
        ctx.once("charge", lambda: 1 / 0, verify=bank.find)
    assert bank.asked == []  # nothing was begun before
    again = take_over(ctx.task_id, flow)
    assert again.once("charge", bank.charge, verify=lambda: answer) == {"number": 1}


def test_without_verify_it_is_called_again_under_the_same_key(flow: Workflow, bank: Bank) -> None:
    ctx = make_context(claim_new(flow), flow)
    lose_answer(ctx, bank)
    take_over(ctx.task_id, flow).once("charge", bank.charge)
    assert bank.charges == [ctx.idempotency_key("charge")] * 2


def test_another_round_is_another_effect(flow: Workflow, bank: Bank) -> None:
    ctx = make_context(claim_new(flow), flow)
    ctx.once("charge", bank.charge)
    with registered(flow):
        restart_task(ctx.task_id, to_step="one", note="", actor=ANN)
    make_context(claim(flow), flow).once("charge", bank.charge)
    assert len(set(bank.charges)) == Effect.objects.count() == 2


def test_a_stale_holder_begins_nothing(flow: Workflow, bank: Bank) -> None:
    stale = make_context(claim_new(flow), flow)
    take_over(stale.task_id, flow)
    with pytest.raises(LeaseLost):
        stale.once("charge", bank.charge)
    assert (bank.charges, Effect.objects.count()) == ([], 0)


def test_a_stale_holder_stores_the_result_of_its_own_intent(flow: Workflow, bank: Bank) -> None:
    ctx = make_context(claim_new(flow), flow)

    def charge_late(key: str) -> Any:
        take_over(ctx.task_id, flow)
        return bank.charge(key)

    assert ctx.once("charge", charge_late) == {"number": 1}
    effect = Effect.objects.get()
    assert (effect.status, effect.late) == ("done", True)


def test_a_stale_holder_overwrites_no_result(flow: Workflow, bank: Bank) -> None:
    """Nor does the live one: the first result stands, and both get it."""
    ctx = make_context(claim_new(flow), flow)
    lose_answer(ctx, bank)
    new = take_over(ctx.task_id, flow)

    def charge_slowly(key: str) -> str:
        assert ctx._finish_effect("charge", "the first") == "the first"
        return "the second"

    assert new.once("charge", charge_slowly) == "the first"
    assert Effect.objects.get().result == "the first"
    assert ctx._finish_effect("charge", "the third") == "the first"


def test_who_wrote_no_intent_stores_no_result(flow: Workflow, bank: Bank) -> None:
    ctx = make_context(claim_new(flow), flow)
    lose_answer(ctx, bank)
    for other in (claim_new(flow), take_over(ctx.task_id, flow)._claimed):
        with pytest.raises(LeaseLost):
            make_context(other, flow)._finish_effect("charge", "mine")
    assert Effect.objects.get().done_at is None


def test_other_arguments_under_the_same_name_are_refused(flow: Workflow, bank: Bank) -> None:
    ctx = make_context(claim_new(flow), flow)
    ctx.once("charge", bank.charge, args={"cents": 5, "to": "x"})
    assert ctx.once("charge", bank.charge, args={"to": "x", "cents": 5}) == {"number": 1}
    with pytest.raises(EffectConflict, match="Effect charge was begun with other arguments"):
        ctx.once("charge", bank.charge, args={"cents": 6, "to": "x"})
    assert len(bank.charges) == 1


def test_what_can_t_be_on_record_is_not_begun(flow: Workflow, bank: Bank) -> None:
    ctx = make_context(claim_new(flow), flow)
    with pytest.raises(ValueError, match="is no name of an effect"):
        ctx.once("the charge", bank.charge)
    with pytest.raises(ValueError, match="keep them as an artifact"):
        ctx.once("charge", bank.charge, args="x" * 70_000)
    with pytest.raises(Unserialisable):
        ctx.once("charge", bank.charge, args={"a": object()})
    with pytest.raises(RuntimeError, match="durable write"), transaction.atomic():
        ctx.once("charge", bank.charge)
    assert (bank.charges, Effect.objects.count()) == ([], 0)


def test_a_large_result_is_an_artifact_and_a_secret_is_masked(
    flow: Workflow, monkeypatch: pytest.MonkeyPatch
) -> None:
    from ledger import secrets

    monkeypatch.setattr(secrets, "_forms", set())
    monkeypatch.setattr(secrets, "_pattern", None)
    monkeypatch.setenv("LONGWATCH_SECRET_BANK", "s3cr3t-bank")
    ctx = make_context(claim_new(flow), flow)
    ctx.secret("BANK")
    told = {"text": "x" * 70_000, "by": "s3cr3t-bank"}
    assert ctx.once("tell", lambda: told, args="s3cr3t-bank") == {**told, "by": "[secret]"}
    assert take_over(ctx.task_id, flow).once("tell", lambda: 1, args="s3cr3t-bank") == {
        **told, "by": "[secret]"
    }  # fmt: skip
    assert Artifact.objects.filter(task=ctx.task_id).count() == 1
    assert "s3cr3t" not in str(Effect.objects.values().get())


# --- What a person says ---


def begin_and_lose(flow: Workflow, bank: Bank) -> tuple[Any, Effect]:
    ctx = make_context(claim_new(flow), flow)
    lose_answer(ctx, bank)
    retry_task(ctx.task_id, actor=ANN)
    return ctx, Effect.objects.get()


def test_a_person_says_that_it_is_done(flow: Workflow, bank: Bank) -> None:
    ctx, effect = begin_and_lose(flow, bank)
    mark_effect(ctx.task_id, effect.pk, to="done", result={"n": 7}, actor=ANN, reason="seen it")
    assert make_context(claim(flow), flow).once("charge", bank.charge) == {"n": 7}
    event = queries.list_events(ctx.task_id).items[-1]
    assert (event["kind"], event["actor"]) == ("effect_marked", {"kind": "user", "id": "1"})
    assert event["data"] == {
        "effect": "charge", "before": {"state": "unknown"}, "after": {"state": "done"},
        "reason": "seen it",
    }  # fmt: skip


def test_a_person_says_that_it_is_not_done(flow: Workflow, bank: Bank) -> None:
    """Then it is called, and nobody asks `verify`."""
    ctx, effect = begin_and_lose(flow, bank)
    mark_effect(ctx.task_id, effect.pk, to="not_done", actor=ANN)
    again = make_context(claim(flow), flow)
    assert again.once("charge", bank.charge, verify=bank.find) == {"number": 2}
    assert bank.asked == []


def test_what_a_person_undid_is_not_done_again_in_its_unit(flow: Workflow, bank: Bank) -> None:
    ctx, effect = begin_and_lose(flow, bank)
    mark_effect(ctx.task_id, effect.pk, to="compensated", actor=ANN)
    with pytest.raises(EffectConflict, match="a restart from its step"):
        make_context(claim(flow), flow).once("charge", bank.charge)


def test_a_person_settles_only_what_is_open(flow: Workflow, bank: Bank) -> None:
    ctx = make_context(claim_new(flow), flow)
    lose_answer(ctx, bank)
    effect = Effect.objects.get()
    with pytest.raises(EffectConflict, match="in a worker's hands"):
        mark_effect(ctx.task_id, effect.pk, to="done", actor=ANN)
    retry_task(ctx.task_id, actor=ANN)
    other = submit_task(workflow=flow, input={}, actor=ANN)[0].pk
    with pytest.raises(NotFound):
        mark_effect(other, effect.pk, to="done", actor=ANN)
    mark_effect(ctx.task_id, effect.pk, to="done", actor=ANN)
    for to in ("done", "not_done", "anything"):
        with pytest.raises(EffectConflict, match="is done, so it can't be marked"):
            mark_effect(ctx.task_id, effect.pk, to=to, actor=ANN)


def test_a_result_that_comes_after_a_person_s_word_is_kept(flow: Workflow, bank: Bank) -> None:
    ctx, effect = begin_and_lose(flow, bank)
    mark_effect(ctx.task_id, effect.pk, to="not_done", actor=ANN)
    assert ctx._finish_effect("charge", {"n": 1}) == {"n": 1}
    assert Effect.objects.get().status == "done"


# --- Any kind of step ---


@pytest.mark.django_db(transaction=True)
def test_an_async_step_awaits_it() -> None:
    calls: list[str] = []
    flow = Workflow("async-effects")

    async def charge(key: str) -> str:
        calls.append(key)
        return f"paid {len(calls)}"

    async def find(key: str) -> str | None:
        return None

    @flow.step
    async def pay(ctx: Any) -> Any:
        return {
            "async": await ctx.once("charge", charge, verify=find),
            "plain": ctx.once("tell", lambda: "told"),
        }

    ended = run(flow, faults={"pay": [LOST]})
    assert ended.result == {"async": "paid 1", "plain": "told"}, ended.task["error"]
    assert len(calls) == 1


def test_a_plain_function_that_is_async_after_all_is_refused(flow: Workflow) -> None:
    async def charge() -> None: ...

    ctx = make_context(claim_new(flow), flow)
    with pytest.raises(TypeError, match="make the function async itself"):
        ctx.once("charge", lambda: charge())


@pytest.mark.parametrize("nested", [True, False])
def test_one_name_is_not_begun_twice_at_once(flow: Workflow, bank: Bank, nested: bool) -> None:
    """`verify` would find nothing of a charge that is on its way, and it would be made again."""
    ctx = make_context(claim_new(flow), flow)
    refused: list[str] = []

    def charge(key: str) -> Any:
        with pytest.raises(EffectConflict) as caught:
            ctx.once("charge", bank.charge) if nested else asyncio.run(call_async())
        refused.append(str(caught.value))
        return bank.charge(key)

    async def call_async() -> Any:
        async def find(key: str) -> Any:
            return bank.find(key)

        return await ctx.once("charge", bank.charge, verify=find)

    assert ctx.once("charge", charge, verify=bank.find) == {"number": 1}
    assert refused == ["Effect charge is under way in this unit; give each action its own name."]
    assert ctx.once("charge", charge) == {"number": 1}
    assert len(bank.charges) == 1


# --- The key by HTTP ---


class Counter(BaseHTTPRequestHandler):
    seen: ClassVar[list[tuple[Any, ...]]] = []

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        self.seen.append((self.headers["Idempotency-Key"], json.loads(body)))
        self.send_response(402 if self.path == "/declined" else 200)
        self.end_headers()
        self.wfile.write(b'{"ok": true}' if self.path != "/text" else b"fine")

    def log_message(self, format: str, *args: Any) -> None:
        pass


@contextmanager
def serve(handler: type[BaseHTTPRequestHandler]) -> Iterator[str]:
    with HTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            thread.join()


def test_a_request_carries_the_key(flow: Workflow) -> None:
    ctx = make_context(claim_new(flow), flow)
    Counter.seen.clear()
    with serve(Counter) as url:
        send: Callable[..., Any] = lambda key: post_json(f"{url}/charges", {"cents": 5}, key=key)  # noqa: E731
        assert ctx.once("charge", send) == {"ok": True}
        assert post_json(f"{url}/text", {}, key="k") == "fine"
        with pytest.raises(HTTPError):
            post_json(f"{url}/declined", {}, key="k")
    assert Counter.seen[0] == (ctx.idempotency_key("charge"), {"cents": 5})
    with pytest.raises(ValueError, match="no http address"):
        post_json("file:///etc/passwd", {}, key="k")
