"""`python -m tests.chaos.bots`: tasks ask, bots answer at once, workers are killed meanwhile.

Two bots look for open questions without a pause to speak of. Workers are killed at random, and at
the fault points of `tests.chaos.asking` killed or stopped, so that answers come while the worker
that asked stands still. Every task has to end, by one answer.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import random
import signal
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

from tests.chaos.fleet import WORKER
from tests.chaos.ground import make_parser, open_ground, report_on, say_progress
from tests.chaos.journal import Journal
from tests.chaos.report import find_quantile

AT_ONCE = 8
"""Tasks under way: as many as the bots can answer at once, so that no question waits in a line."""
PAUSE_SECONDS = 0.0005
STILL_SECONDS = 1.5
"""How long a worker that has stopped itself stands still."""
HEAD = (
    "| date | commit | database | tasks | answered after p50 | random kills | at fault points | "
    "stranded | answered twice | leased while waiting | on again p50 / p99 | load |"
)


class Bots:
    """One run: submits, answers, kills and goes on until every task has ended."""

    def __init__(self, sink: Path, list_workers: Callable[[], list[int]], seed: int) -> None:
        self.sink = Journal(sink)
        self.list_workers = list_workers
        self.chance = random.Random(seed)
        self.kills = 0
        self.late = 0
        """Answers that found the question answered by the other bot."""
        self.faults: Counter[str] = Counter()
        self.resumed: dict[str, float] = {}
        """When a worker first went on with a task after its answer."""
        self.leased: list[str] = []
        self._over = threading.Event()
        self._trouble: list[BaseException] = []

    def run(self, count: int, kill_each: int, patience: float) -> None:
        """Until `count` tasks have ended; a worker is killed after each `kill_each` of them.

        Raises AssertionError when nothing has ended for `patience` seconds.
        """
        threads = [threading.Thread(target=self._answer, args=(name,)) for name in "ab"]
        # Of its own: who stands still inside of a write holds the file's lock, if it is a file.
        threads.append(threading.Thread(target=self._wake))
        for thread in threads:
            thread.start()
        try:
            self._drive(count, kill_each, patience)
        finally:
            self._over.set()
            for thread in threads:
                thread.join(30)
            self._take_in()
        if self._trouble:
            raise self._trouble[0]

    def _drive(self, count: int, kill_each: int, patience: float) -> None:
        from ledger import client
        from ledger.models import Task

        made, ended, moved = 0, 0, time.monotonic()
        while ended < count:
            while made < min(count, ended + AT_ONCE):
                client.submit("chaos_asking", {})
                made += 1
            now = Task.objects.filter(finished_at__isnull=False).count()
            if now > ended:
                ended, moved = now, time.monotonic()
                if ended % 100 < 2:
                    say_progress(f"{ended} tasks, {self.kills} kills, {dict(self.faults)}")
            assert time.monotonic() < moved + patience, f"nothing ends: {self.find_stranded()}"
            assert not self._trouble, self._trouble
            if ended >= kill_each * (self.kills + 1):
                self._kill_one()
            self._over.wait(0.01)

    def _kill_one(self) -> None:
        if workers := self.list_workers():
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.chance.choice(workers), signal.SIGKILL)
                self.kills += 1

    def _wake(self) -> None:
        """Take the sink in, and let those go on that stood still long enough."""
        stopped: dict[int, float] = {}
        while not self._over.wait(0.02) or stopped:
            stopped |= self._take_in()
            for pid in [pid for pid, until in stopped.items() if time.time() >= until]:
                del stopped[pid]
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGCONT)

    def _take_in(self) -> dict[int, float]:
        """Count what the sink says; who has stopped itself, and until when."""
        stopped = {}
        for line in self.sink.read_new():
            if line["what"] == "fault":
                self.faults[f"{line['fault']} {line['where']}"] += 1
                if line["fault"] == "stop":
                    stopped[line["pid"]] = line["at"] + STILL_SECONDS
            elif line["what"] == "go_on":
                self.resumed.setdefault(line["task"], line["at"])
        return stopped

    def _answer(self, name: str) -> None:
        from django.db import connections

        try:
            while not self._over.is_set():
                self._answer_open(name)
                self._over.wait(PAUSE_SECONDS)
        except BaseException as error:
            self._trouble.append(error)
        finally:
            connections.close_all()

    def _answer_open(self, name: str) -> None:
        from ledger.errors import ApprovalClosed
        from ledger.events import Actor
        from ledger.models import Approval
        from ledger.transitions.approvals import decide_approval

        found = Approval.objects.filter(status="open").values_list(
            "pk", "digest", "task__status", "task__status_reason", "task__lease_owner"
        )
        # The youngest first, and then another look: it is the one that has just appeared.
        for pk, digest, *stand in found.order_by("-requested_at")[:1]:
            if stand != ["waiting", "approval", ""]:
                self.leased.append(f"{pk}: {stand}")
            try:
                decide_approval(pk, decision="approve", actor=Actor("token", name), digest=digest)
            except ApprovalClosed:
                self.late += 1

    def find_stranded(self) -> list[str]:
        """Tasks that have not completed."""
        from ledger.models import Task

        rows = Task.objects.exclude(status="completed").order_by("created_at")
        return [f"{t.pk} {t.status} {t.status_reason} {t.step_name} {t.error}" for t in rows]

    def find_twice(self) -> list[str]:
        """Tasks with anything but one question, one vote, one decision and one unit after it."""
        from ledger.models import Task

        wrong = []
        for task in Task.objects.prefetch_related("approvals__votes"):
            asked = list(task.approvals.all())
            counts = (
                [one.status for one in asked],
                sum(len(one.votes.all()) for one in asked),
                task.events.filter(kind="approval_decided").count(),
                list(task.outputs.order_by("seq").values_list("step_name", flat=True)),
            )
            by = asked[0].decided_by if asked else ""
            if counts != (["approved"], 1, 1, ["ask", "go_on"]) or task.result != {"by": by}:
                wrong.append(f"{task.pk}: {counts} {task.result}")
        return wrong

    def list_delays(self) -> tuple[list[float], list[float]]:
        """Seconds from question to answer, and from answer to the next unit's begin; sorted."""
        from ledger.models import Approval

        times = Approval.objects.values_list("task_id", "requested_at", "decided_at")
        rows = [(str(pk), a.timestamp(), b.timestamp()) for pk, a, b in times if b]
        answers = sorted(decided - asked for _, asked, decided in rows)
        return answers, sorted(self.resumed[pk] - decided for pk, _, decided in rows)


def measure_bots(options: argparse.Namespace) -> Iterator[tuple[str, bool]]:
    """One row: its cells, and whether nothing was stranded, answered twice or leased."""
    with open_ground(options.database, MAX_RECLAIMS=100_000) as ground:
        from django.db import connection

        from ledger.workflows import registered
        from tests.chaos.asking import ODDS, asking

        if connection.vendor == "sqlite":
            # Several may stand still one after the other, each with the file's lock.
            connection.settings_dict["OPTIONS"]["timeout"] = 60
        ground.fleet.environment |= {"LONGWATCH_WORKFLOWS": "tests.chaos.asking", ODDS: "0.03"}
        ground.start(2, options.at_once)
        bots = Bots(
            ground.folder.sink.path,
            lambda: [pid for one in ground.fleet.clusters for pid in one.list_pids(WORKER)],
            options.seed,
        )
        with registered(asking):
            bots.run(options.count, kill_each=5, patience=120)
        stranded, twice = bots.find_stranded(), bots.find_twice()
        answered, resumed = bots.list_delays()
    for line in [*stranded, *twice, *bots.leased][:20]:
        say_progress(line)
    points = ", ".join(f"{name} {n}" for name, n in sorted(bots.faults.items()))
    cells = [
        options.database, options.count, f"{find_quantile(answered, 0.5) * 1000:.1f} ms",
        bots.kills, points, len(stranded), len(twice), len(bots.leased),
        f"{find_quantile(resumed, 0.5):.2f} / {find_quantile(resumed, 0.99):.2f} s",
    ]  # fmt: skip
    yield " | ".join(map(str, cells)), not (stranded or twice or bots.leased)


def main() -> int:
    """0 if every task ended by one answer."""
    return report_on(measure_bots, make_parser("bots", count=1000, at_once=3).parse_args(), HEAD)


if __name__ == "__main__":
    sys.exit(main())
