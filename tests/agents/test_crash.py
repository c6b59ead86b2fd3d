"""Workers of agents are killed at every instant, and their provider fails; the server has the
count of what was paid, a file has that of what was done."""

from __future__ import annotations

import contextlib
import os
import random
import re
import signal
import threading
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from ledger.models import Event, Reservation, Spend, Task
from tests.agents.flows import counting
from tests.agents.kit import list_parts, read_transcript
from tests.agents.model_server import Call, Fault, ModelServer, Reply
from tests.crash.cluster_kit import SIGTERM, wait_for
from tests.crash.conftest import StartSite, start_site  # noqa: F401

pytestmark = [pytest.mark.both_databases, pytest.mark.django_db(transaction=True)]
PROOF = bool(os.environ.get("LONGWATCH_TEST_PROOF"))
TURNS = 500 if PROOF else 12
KILLS = 0 if PROOF else 2
EVERY = 10.0 if PROOF else 0.0
"""Seconds between two kills from outside; in the short form the calls alone are deadly."""
FAILING = 0.05
NUMBER = re.compile(r"noted (\d+);")


class Provider:
    """A model that counts to TURNS. Some requests fail; some workers die while it answers."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.lock = threading.Lock()
        self.left = KILLS
        self.killed: set[int] = set()
        """Workers."""

    def answer(self, body: dict[str, Any]) -> Reply | Fault:
        """Whatever session asks: one more than the largest number that was noted."""
        told = " ".join(str(one.get("content")) for one in body["messages"])
        last = max(map(int, NUMBER.findall(told)), default=-1)
        with self.lock:
            chance, kind = self.rng.random(), self.rng.randrange(3)
            deadly = self.left > 0 and self.rng.random() < 0.25
            self.left -= deadly
        if chance < FAILING:
            return [Fault(429, {"retry-after": "0.2"}), Fault(500), Fault(cut=True)][kind]
        calls = [("write_down", {"n": last + 1})] if last + 1 < TURNS else []
        strike = self.strike if deadly else None
        early, late = (strike, None) if kind else (None, strike)
        text = "" if calls else "counted"
        return Reply(text, calls=calls, before=early, after=late, slow=0.01 if PROOF else 0)

    def strike(self, call: Call) -> None:
        """End the worker that asks."""
        time.sleep(self.rng.random() * 0.02)
        self.kill(call.worker)

    def kill(self, pid: int) -> None:
        """End a worker."""
        self.killed.add(pid)
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


@pytest.mark.timeout(3600 if PROOF else 120)
def test_a_killed_agent_pays_no_answer_twice_and_its_transcript_has_no_gap_and_no_repeat(
    start_site: StartSite,  # noqa: F811
    tmp_path: Path,
) -> None:
    provider = Provider(seed=7)
    with (
        ModelServer(provider.answer) as server,
        start_site(
            LONGWATCH_WORKFLOWS="tests.agents.flows", LONGWATCH_MAX_RECLAIMS=1000,
            LONGWATCH_TEST_SINK=tmp_path / "sink",
            LONGWATCH_LEASE_SECONDS=2, LONGWATCH_HEARTBEAT_SECONDS=0.5,
        ) as cluster,
    ):  # fmt: skip
        deadly = 0.01 if PROOF else 0.05
        task = cluster.submit(counting, model=server.url, deadly=deadly)
        kill_until_finished(provider, server, task)
        cluster.signal(SIGTERM)
        assert cluster.wait_for_exit() == 0
    task.refresh_from_db()
    assert (task.status, task.result) == ("completed", {"count": "counted"}), task.error
    judge(task, provider, server, tmp_path / "sink")


def kill_until_finished(provider: Provider, server: ModelServer, task: Task) -> None:
    """In the long form, end the worker that asked last, every EVERY seconds."""
    struck = time.monotonic()

    def look() -> bool:
        nonlocal struck
        if EVERY and time.monotonic() - struck > EVERY and server.calls:
            struck = time.monotonic()
            provider.kill(server.calls[-1].worker)
        return Task.objects.filter(pk=task.pk, finished_at__isnull=False).exists()

    wait_for("the agent is done", look, 3500 if PROOF else 110)


def judge(task: Task, provider: Provider, server: ModelServer, sink: Path) -> None:
    """Nothing missing, nothing twice, everything counted."""
    parts = list_parts(task.pk, "count")
    kinds = Counter(part["part_kind"] for part in parts)
    assert kinds["tool-call"] == kinds["tool-return"] == TURNS
    returned = [part["content"] for part in parts if part["part_kind"] == "tool-return"]
    assert returned == [f"noted {n};" for n in range(TURNS)]
    written = [line.split() for line in sink.read_text().splitlines()]
    assert [int(n) for _, n in written] == list(range(TURNS)), "each once, in order"

    turns = read_transcript(task.pk, "count")
    answers = [m for turn in turns for m in turn["messages"] if m["kind"] == "response"]
    said = [answer["provider_response_id"] for answer in answers]
    assert len(said) == len(set(said)) == TURNS + 1
    paid = {call.id for call in server.paid}
    spent = [note.rpartition(" ")[2] for note in Spend.objects.values_list("note", flat=True)]
    assert sorted(spent) == sorted(said), "each answer that counts is paid once"
    assert set(said) <= paid
    lost = paid - set(said)
    last = {call.worker: call.id for call in server.calls}
    struck = {last.get(pid) for pid in provider.killed}
    told = [(call.id, call.worker, last[call.worker]) for call in server.calls if call.id in lost]
    ends = list(Event.objects.filter(task=task, kind="reclaimed").values_list("data", flat=True))
    assert lost <= struck, f"only what was in flight at a kill is paid again: {told}, {ends}"
    cut = sum(call.outcome == "cut" for call in server.calls)
    failed = Counter(call.outcome for call in server.calls)
    print(f"{len(server.calls)} requests {dict(failed)}, {len(lost)} paid in flight at a kill")  # noqa: T201
    unsettled = Reservation.objects.filter(task=task, state="open").count()
    assert unsettled >= len(lost) + cut, "what nobody knows goes on counting"
    assert task.used_tokens_in == 100 * len(said)
    assert provider.left == 0, "every kill that was planned came"
    assert provider.killed, "nobody died of a request"
