"""Workers are killed between a call and its child, at a summary, and after a judge has spoken."""

from __future__ import annotations

import contextlib
import os
import re
import signal
from pathlib import Path
from typing import Any

import pytest
from django.db import connection

from ledger.models import Spend, Task
from tests.agents.flows import managing
from tests.agents.kit import list_parts, read_transcript
from tests.agents.model_server import Call, Fault, ModelServer, Reply
from tests.crash.cluster_kit import SIGTERM, wait_for
from tests.crash.conftest import StartSite, start_site  # noqa: F401

pytestmark = [pytest.mark.both_databases, pytest.mark.django_db(transaction=True)]
TURNS = 4
NUMBER = re.compile(r"noted (\d+);")


class Provider:
    """Counts to TURNS, with a child for each number; sums up, and judges. The first worker that
    asks for a summary is killed as it is answered."""

    def __init__(self) -> None:
        self.struck: list[str] = []

    def answer(self, body: dict[str, Any]) -> Reply | Fault:
        told = " ".join(str(one.get("content")) for one in body["messages"])
        last = max(map(int, NUMBER.findall(told)), default=-1)
        tools = {one["function"]["name"] for one in body.get("tools", ())}
        if not tools:
            return Reply(f"noted {last};", after=self.strike)
        if "verdict" in tools:
            return Reply(calls=[("verdict", {"findings": [], "passed": True})])
        if last + 1 == TURNS:
            return Reply("counted")
        return Reply(calls=[("jot", {"n": last + 1}), ("errand", {"n": last + 1})])

    def strike(self, call: Call) -> None:
        """End the worker that holds the task, once."""
        if not self.struck:
            self.struck.append(call.id)
            owner = Task.objects.get(workflow="managing").lease_owner
            connection.close()
            with contextlib.suppress(ProcessLookupError):
                os.kill(int(owner.split(":")[1]), signal.SIGKILL)


def test_kills_make_no_child_twice_sum_up_once_and_judge_once(
    start_site: StartSite,  # noqa: F811
    tmp_path: Path,
) -> None:
    provider, sink = Provider(), tmp_path / "sink"
    with (
        ModelServer(provider.answer) as server,
        start_site(
            LONGWATCH_WORKFLOWS="tests.agents.flows", LONGWATCH_MAX_RECLAIMS=1000,
            LONGWATCH_TEST_SINK=sink, LONGWATCH_LEASE_SECONDS=2, LONGWATCH_HEARTBEAT_SECONDS=0.5,
        ) as cluster,
    ):  # fmt: skip
        task = cluster.submit(managing, model=server.url)
        ended = Task.objects.filter(pk=task.pk, finished_at__isnull=False)
        wait_for("the manager is done", ended.exists, 100)
        cluster.signal(SIGTERM)
        assert cluster.wait_for_exit() == 0
    task.refresh_from_db()
    assert (task.status, task.progress["count"]) == ("completed", "counted"), task.error
    assert provider.struck
    assert all(Path(f"{sink}.{name}").exists() for name in ("jot", "judged"))
    children = Task.objects.filter(parent=task).order_by("id")
    assert [one.input["n"] for one in children] == list(range(TURNS))
    parts = [part["part_kind"] for part in list_parts(task.pk, "count")]
    assert parts.count("tool-call") == parts.count("tool-return") == 2 * TURNS

    said = [one["compaction"] for one in read_transcript(task.pk, "count") if "compaction" in one]
    kinds = [len(one.body.get("tools", ())) for one in server.paid]
    assert kinds.count(1) == 1, "the judge was asked twice"
    assert kinds.count(2) == TURNS + 1
    assert 0 <= kinds.count(0) - len(said) <= len(provider.struck), "but for the one in flight"
    assert said
    spent = [note.rpartition(" ")[2] for note in Spend.objects.values_list("note", flat=True)]
    assert len(spent) == len(set(spent)) == TURNS + 2 + len(said)
