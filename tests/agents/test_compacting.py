"""A session that grows too long: what is sent of it then, what is kept, and what it costs."""

from __future__ import annotations

import itertools
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ledger.agents import Compact, ask
from ledger.agents.history import Past, Turn
from ledger.models import Artifact, Spend
from ledger.testing import LOST, run
from tests.agents.kit import list_parts, make_agent, make_flow, read_transcript
from tests.agents.model_server import Fault, ModelServer, Reply, count_answers, read_results

pytestmark = [pytest.mark.both_databases, pytest.mark.django_db]
TURNS = 7
PAGE = 2_000
"""Characters that each call brings back."""


def read(n: int) -> str:
    """Read a page."""
    return f"page {n} " + "x" * PAGE


def note(n: int) -> str:
    """Put something down."""
    return f"noted {n}"


class Reader:
    """A model that reads page after page in two calls each, whatever it is still told of, and sums
    up when that is what it is asked for."""

    def __init__(self, *faults: Reply | Fault) -> None:
        self.read = 0
        self.summaries: list[str] = []
        self.faults = list(faults)

    def answer(self, body: dict[str, Any]) -> Reply | Fault:
        if "tools" not in body:
            if self.faults:
                return self.faults.pop(0)
            self.summaries.append(body["messages"][1]["content"])
            return Reply(f"summary number {len(self.summaries)}")
        check_pairs(body)
        if self.read == TURNS:
            return Reply("all read")
        self.read += 1
        calls = [("read", {"n": self.read}), ("note", {"n": self.read})]
        return Reply(calls=calls, thinking=f"thought {self.read}")


def check_pairs(body: dict[str, Any]) -> None:
    """Every call that is sent has its result, and no result lacks its call."""
    made = [one["id"] for m in body["messages"] for one in m.get("tool_calls") or ()]
    assert [m["tool_call_id"] for m in body["messages"] if m["role"] == "tool"] == made


def play(reader: Reader, compact: Compact, **options: Any) -> Any:
    faults = options.pop("faults", {})
    with ModelServer(reader.answer) as server:
        flow = make_flow(make_agent(server, read, note), compact=compact, **options)
        ended = run(flow, faults=faults, answers={"look": "approve"})
    ended.__dict__["server"] = server
    return ended


def list_said(task_id: Any) -> list[str]:
    return [part["part_kind"] for part in list_parts(task_id)]


def test_a_model_sums_up_the_older_turns_in_a_unit_of_its_own_and_the_last_stay() -> None:
    reader = Reader()
    ended = play(reader, Compact(at=2_500, by="model", keep=2))
    assert (ended.status, ended.result) == ("completed", {"look": "all read"})
    turns = read_transcript(ended.id)
    done = [(n, one["compaction"]) for n, one in enumerate(turns) if one.get("compaction")]
    assert len(done) == len(reader.summaries) > 1
    for place, told in done:
        first, last = told["turns"]
        assert told["by"] == "model"
        assert first <= last < told["since"] < place
        assert turns[place]["messages"] == []
        body = find_request(ended.server, told["text"])
        opening, summary, *rest = body["messages"][1:]
        assert opening["content"] == list_parts(ended.id)[0]["content"]
        assert summary["content"].endswith(told["text"])
        kept = [m for one in turns[told["since"] : place] for m in one["messages"]]
        assert count_answers(body) == len(kept) // 2 == 2
        assert f"page {read_page(rest)} " in json.dumps(kept[1])
        stored = json.loads(ended.read_artifact(told["name"]))
        assert [one["messages"] for one in stored["turns"]] == [
            one["messages"][-2:] for one in turns[first : last + 1] if one["messages"]
        ]  # fmt: skip
        thought = turns[told["since"]]["messages"][0]["parts"][0]
        assert (thought["part_kind"], count_thoughts(body)) == ("thinking", 2)
    assert reader.summaries[1].count("summary number 1") == 1, "a summary is a part of the next"
    assert "thought" not in str(reader.summaries), "what it thought is for nobody else"
    assert list_said(ended.id) == [
        "user-prompt",
        *["thinking", "tool-call", "tool-call", "tool-return", "tool-return"] * TURNS, "text",
    ]  # fmt: skip
    assert Spend.objects.count() == len(ended.server.calls) == TURNS + 1 + len(done)


def find_request(server: ModelServer, summary: str) -> dict[str, Any]:
    """The first request of the agent that has this summary."""
    return next(
        one.body for one in server.calls
        if "tools" in one.body
        and any(str(m["content"]).endswith(summary) for m in one.body["messages"][2:3])
    )  # fmt: skip


def count_thoughts(body: dict[str, Any]) -> int:
    return sum("thought" in json.dumps(m) for m in body["messages"] if m["role"] == "assistant")


def read_page(messages: list[dict[str, Any]]) -> int:
    return int(next(m["content"] for m in messages if m["role"] == "tool").split()[1])


def test_a_worker_lost_at_any_unit_sums_up_and_pays_nothing_twice() -> None:
    reader = Reader()
    faults = [LOST, None] * (2 * TURNS)
    ended = play(reader, Compact(at=2_500, by="model", keep=1), faults={"look": faults})
    assert (ended.status, ended.kinds.count("reclaimed")) == ("completed", len(ended.units))
    assert Spend.objects.count() == len(ended.server.calls) == TURNS + 1 + len(reader.summaries)
    names = [one["compaction"]["name"] for one in read_transcript(ended.id) if "compaction" in one]
    assert len(set(names)) == len(names) == len(reader.summaries) > 2
    assert set(names) == set(Artifact.objects.values_list("name", flat=True))


def test_a_busy_model_and_an_empty_summary_are_tried_again() -> None:
    reader = Reader(Fault(429, {"retry-after": "3"}), Reply(" "), Fault(500))
    ended = play(reader, Compact(at=4_000, by="model"))
    assert (ended.status, ended.kinds.count("released")) == ("completed", 1)
    assert ended.kinds.count("attempt_failed") == 2
    assert Spend.objects.count() == TURNS + 1 + len(reader.summaries) + 1


def test_calls_that_people_are_asked_about_stay_with_their_results() -> None:
    ended = play(Reader(), Compact(at=2_000, by="model", keep=1), tools={"note": ask()})
    assert ended.status == "completed"
    assert any(one.get("compaction") for one in read_transcript(ended.id))


def test_without_a_model_a_long_session_gives_way_to_a_new_one_and_is_kept() -> None:
    reader = Reader()
    ended = play(reader, Compact(at=2_500), faults={"look": [None, None, None, LOST, LOST, LOST]})
    assert (ended.status, reader.summaries) == ("completed", [])
    turns = read_transcript(ended.id)
    opened = [n for n, one in enumerate(turns) if one["began"] == n]
    assert [turns[n]["session"] for n in opened] == list(range(len(opened)))
    assert len(opened) > 2
    for before, place in itertools.pairwise(opened):
        told = turns[place]["compaction"]
        assert (told["by"], told["turns"]) == ("handoff", [before, place - 1])
        stored = json.loads(ended.read_artifact(told["name"]))
        assert [one["turn"] for one in stored["turns"]] == list(range(before, place))
        assert stored["opening"] == turns[before]["messages"][0]
        opening = turns[place]["messages"][0]["parts"][0]["content"]
        assert f'- look, turn {before}: {{"transcript":{{"called":["read {{' in opening
        assert '"part_kind"' not in opening, "a hand-off tells of turns, it does not repeat them"
        assert f"- note: noted {place}" in opening.partition("## The last turn")[2]
    assert Spend.objects.count() == len(ended.server.calls) == TURNS + 1
    assert all(len(read_results(one.body)) <= 8 for one in ended.server.calls)


@given(
    units=st.lists(st.tuples(st.integers(0, 3), st.booleans()), max_size=12),
    keep=st.integers(1, 5), at=st.integers(1, 300),
)  # fmt: skip
def test_wherever_a_session_is_cut_no_call_is_without_its_result(
    units: list[tuple[int, bool]], keep: int, at: int
) -> None:
    turns: list[Turn] = []
    for calls, apart in units:  # apart: people answered, or children ended, before the results came
        keys = [f"{len(turns)}-{n}" for n in range(calls)]
        said = {"kind": "response", "parts": [{"tool_call_id": one} for one in keys]}
        back = {"kind": "request", "parts": [{"tool_call_id": one} for one in keys]}
        for messages in [[said], [], [back]] if apart else [[said, back]]:
            turns.append(Turn(len(turns), messages))
    plan = Compact(at=at, by="model", keep=keep)
    older = plan.list_older(Past(turns=turns), lambda: None)
    left = turns[len(older) :]
    assert older == turns[: len(older)]
    assert not older or sum(turn.opens for turn in left) == keep
    for some in (older, left):
        messages = [one for turn in some for one in turn.messages]
        called, returned = (
            [part for one in messages if one["kind"] == kind for part in one["parts"]]
            for kind in ("response", "request")
        )
        assert called == returned


def test_what_can_be_no_bound_is_refused_and_turns_that_are_long_themselves_are_no_loop() -> None:
    for wrong in (
        {"at": 0},
        {"at": 1.5},
        {"at": 0.0},
        {"at": 10, "keep": 0},
        {"at": 10, "by": "magic"},
    ):
        with pytest.raises(ValueError, match="Compact"):
            Compact(**wrong)
    reader = Reader()
    ended = play(reader, Compact(at=200, by="model", keep=3))
    assert ended.status == "completed"
    assert len(reader.summaries) < TURNS


@pytest.mark.sqlite
def test_a_share_is_of_the_models_window_and_one_that_nobody_knows_ends_the_task() -> None:
    ended = play(Reader(), Compact(at=0.02))  # of 128,000
    opened = [
        one["compaction"]["turns"] for one in read_transcript(ended.id) if "compaction" in one
    ]
    assert (ended.status, opened[0]) == ("completed", [0, 2])
    with ModelServer(Reader().answer) as server:
        agent = make_agent(server, read, note, model="our-own-7b")
        ended = run(make_flow(agent, compact=Compact(at=0.5), unpriced="count"))
    assert (ended.status, "unknown_window" in ended.task["error"]["message"]) == ("failed", True)
