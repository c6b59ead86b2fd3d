"""Workers are killed while people speak to their agent: each message is told once, in order."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import threading
from pathlib import Path
from typing import Any

import pytest

from ledger.events import Actor
from ledger.models import Event
from ledger.transcripts import TOLD, list_messages
from ledger.transitions.steering import steer_task
from tests.agents.flows import counting
from tests.agents.kit import read_transcript
from tests.agents.model_server import Call, ModelServer, Reply
from tests.agents.test_crash import NUMBER
from tests.agents.test_steering import tell_users
from tests.crash.cluster_kit import SIGTERM, wait_for
from tests.crash.conftest import StartSite, start_site  # noqa: F401

pytestmark = [pytest.mark.both_databases, pytest.mark.django_db(transaction=True)]

TURNS, MESSAGES, KILLS = 7, 4, 3


class Provider:
    """A model that counts; the first requests that carry a message end the worker that asks,
    before they are answered or after."""

    def __init__(self) -> None:
        self.lock, self.rng = threading.Lock(), random.Random(3)
        self.left, self.asked = KILLS, 0
        self.done = threading.Event()
        """All was said: before that the agent does not come to its end."""

    def answer(self, body: dict[str, Any]) -> Reply:
        told = " ".join(str(one.get("content")) for one in body["messages"])
        last = max(map(int, NUMBER.findall(told)), default=-1)
        with self.lock:
            self.asked += 1
            deadly = self.left > 0 and bool(tell_users(body))
            self.left -= deadly
        if last + 1 >= TURNS and self.done.wait(30):
            return Reply("counted")
        strike = {["before", "after"][self.rng.randrange(2)]: kill} if deadly else {}
        return Reply(calls=[("write_down", {"n": last + 1})], **strike)


def kill(call: Call) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(call.worker, signal.SIGKILL)


@pytest.mark.timeout(120)
def test_a_message_is_told_exactly_once_whoever_is_killed_meanwhile(
    start_site: StartSite,  # noqa: F811
    tmp_path: Path,
) -> None:
    provider = Provider()
    with (
        ModelServer(provider.answer) as server,
        start_site(
            LONGWATCH_WORKFLOWS="tests.agents.flows", LONGWATCH_MAX_RECLAIMS=1000,
            LONGWATCH_TEST_SINK=tmp_path / "sink",
            LONGWATCH_LEASE_SECONDS=2, LONGWATCH_HEARTBEAT_SECONDS=0.5,
        ) as cluster,
    ):  # fmt: skip
        task = cluster.submit(counting, model=server.url)
        for n in range(MESSAGES):
            seen = provider.asked
            steer_task(task.pk, text=f"message {n}", actor=Actor("user", "7"))
            wait_for("the agent goes on", lambda seen=seen: provider.asked > seen, 60)
        provider.done.set()
        wait_for("it is done", lambda: Event.objects.filter(kind="completed").exists(), 60)
        cluster.signal(SIGTERM)
        assert cluster.wait_for_exit() == 0
    expected = [f"message {n}" for n in range(MESSAGES)]
    turns = read_transcript(task.pk, "count")
    heard = [one["text"] for turn in turns for one in turn.get("heard", ())]
    assert heard == expected
    assert provider.left == 0, "every kill came"
    for call in server.calls:
        told = tell_users(call.body)
        assert told == [one for one in expected if one in told], "in order, none twice"
    assert {one["state"] for one in list_messages(task.pk)} == {TOLD}
