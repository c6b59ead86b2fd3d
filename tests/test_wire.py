"""What passes between a worker and an isolated step: whole, bounded, and data only."""

from __future__ import annotations

import datetime as dt
import json
import os
import socket
from collections.abc import Iterator

import pytest

from ledger import wire
from ledger.errors import Unserialisable
from ledger.workflows import (
    Advance,
    Again,
    AskApproval,
    Child,
    Finish,
    Outcome,
    Repair,
    Sleep,
    Spawn,
    WaitFor,
)

type Pair = tuple[wire.Wire, wire.Wire]


@pytest.fixture
def ends() -> Iterator[Pair]:
    """Both ends of one wire."""
    one, other = socket.socketpair()
    with one, other:
        yield wire.Wire(one), wire.Wire(other)


@pytest.mark.parametrize(
    "outcome",
    [
        Advance({"a": [1, None, "ü"]}),
        Again({"a": 1}, after=3.5),
        Finish({"result": 1}, data={"a": 1}),
        Repair("draft", ["thin"], to_do=1),
        Sleep(seconds=5, data={"a": 1}),
        Sleep(until=dt.datetime(2030, 1, 2, tzinfo=dt.UTC)),
        AskApproval("Go on?", form={"type": "object"}, proposal={}, risk="high", money=True),
        AskApproval("Go on?", votes=2, assignees=("group:legal",)),
        AskApproval(
            "Go on?", escalate=[("user:3", 9)], remind=60, artifacts=["a"], diff=("a", "b")
        ),
        WaitFor("go", timeout=3.5, data={"a": 1}),
        Spawn([Child("other", {"n": 1}, tags=["x"], limits={"cost": "1"})], until="any"),
    ],
    ids=lambda outcome: type(outcome).__name__,
)
def test_every_outcome_passes_as_json(outcome: Outcome) -> None:
    told = json.loads(json.dumps(wire.encode_outcome(outcome)))
    back = wire.decode_outcome(told)
    assert type(back) is type(outcome)
    if isinstance(outcome, Spawn) and isinstance(back, Spawn):
        assert back.tasks == outcome.tasks
        assert (back.until, back.max_failed) == (outcome.until, outcome.max_failed)
    else:
        assert vars(back) == vars(outcome)


@pytest.mark.parametrize(
    ("outcome", "path"),
    [
        (Advance({"a": {1}}), "output.a"),
        (Repair("a", feedback=float("nan")), "feedback"),
        (Finish(object()), "result"),
        (AskApproval("Go on?", payload="\0"), "payload"),
    ],
)
def test_what_is_no_json_is_named_as_in_the_worker(outcome: Outcome, path: str) -> None:
    with pytest.raises(Unserialisable) as caught:
        wire.encode_outcome(outcome)
    assert caught.value.path == path


def test_an_open_file_travels_with_its_message(ends: Pair) -> None:
    here, there = ends
    read, write = os.pipe()
    os.write(write, b"through the other end")
    here.send({"a": 1}, read)
    message, file = there.receive()
    assert message == {"a": 1}
    assert file is not None
    assert os.read(file, 99) == b"through the other end"
    for end in (read, write, file):
        os.close(end)


def test_a_closed_end_is_the_end(ends: Pair) -> None:
    here, there = ends
    here.end.sendall(b"\0\0\0\0\0\0\0\5{")
    here.end.close()
    with pytest.raises(EOFError):
        there.receive()


def test_no_message_is_larger_than_the_bound(ends: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    here, there = ends
    monkeypatch.setattr(wire, "MAX_BYTES", 1_000)
    with pytest.raises(Unserialisable, match=r"keep it with ctx\.save_artifact"):
        here.send({"text": "x" * 1_000})
    here.end.sendall((2**40).to_bytes(8))
    with pytest.raises(ValueError, match="1099511627776 bytes"):
        there.receive()


@pytest.mark.parametrize("told", [{"kind": "Popen"}, {"kind": "Outcome"}, {}])
def test_what_is_no_outcome_is_refused(told: dict[str, str]) -> None:
    with pytest.raises(ValueError, match="unknown outcome"):
        wire.decode_outcome(told)
