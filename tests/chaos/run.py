"""One run: start, hurt on schedule, quiet down, wait for every task's end."""

from __future__ import annotations

import contextlib
import dataclasses
import heapq
import itertools
import signal
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.chaos.fleet import (
    SENTINEL,
    WORKER,
    Cluster,
    Fleet,
    freeze,
    make_environment,
    send_signal,
)
from tests.chaos.journal import Folder, Line
from tests.chaos.schedule import Act, Pace, draw_acts
from tests.chaos.stages import PostgreSQL, SQLite

AIM_SECONDS = 1.0
"""How long a kill may wait for the moment that it is meant for."""

NOBODY, CLAIMED, IN_STEP, SETTLING = "idle", "claimed", "in the step", "settling"
LONG_STEP = "grind"
SUCCESSOR_SECONDS = 8.0
"""Beyond its time, how long a stopped process waits for its successor to begin."""

PHASES = (NOBODY, CLAIMED, IN_STEP, SETTLING)


@dataclasses.dataclass(frozen=True)
class Options:
    """How much of it. A run ends after `seconds`, or once it has that many kills and faults."""

    seed: int
    seconds: float
    kills: int = 0
    faults: int = 0
    clusters: int = 2
    workers: int = 2
    backlog: int = 24
    pace: Pace = dataclasses.field(default_factory=Pace)
    quiet_seconds: float = 240.0


@dataclasses.dataclass(frozen=True)
class Kill:
    """One SIGKILL of the schedule, and what it met."""

    at: float
    kind: str
    phase: str
    pids: tuple[int, ...]
    held: tuple[tuple[str, int], ...] = ()
    """(task, fence) of each lease that a killed process held."""


class Run:
    """The main thread's part; it starts all processes, since they die with the thread that did."""

    def __init__(
        self, root: Path, stage: PostgreSQL | SQLite, options: Options, say: Callable[[str], None]
    ) -> None:
        self.folder = Folder(root)
        self.stage = stage
        self.options = options
        self.say = say
        self.kills: list[Kill] = []
        self.faults: Counter[str] = Counter()
        self.signals: Counter[str] = Counter()
        self.stopped_pids: set[int] = set()
        self.left_running: list[str] = []
        self.last: dict[int, Line] = {}
        """The last line in the sink of each process."""
        self.begun: dict[str, int] = {}
        """The fence of each task's newest attempt."""
        self.hurting = True
        self.seconds = self.quiet_took = 0.0
        self._later: list[tuple[float, int, Callable[[], None]]] = []
        self._numbers = itertools.count()
        self._fault: Act | None = None
        self.fleet = Fleet(root, make_environment(root, stage.product_url))

    def run(self) -> None:
        """Everything but the judgement."""
        self.fleet.migrate()
        o = self.options
        self.fleet.start(o.clusters, o.workers, o.seed, o.backlog)
        try:
            self.hurt()
            self.quiet_down()
        finally:
            self.left_running = self.fleet.stop(30)

    # --- The schedule -----------------------------------------------------------------------------

    def hurt(self) -> None:
        """Act by act, until there was enough."""
        self.wait_for_work()
        began, told = time.monotonic(), 0.0
        for act in draw_acts(self.options.seed, self.stage.name, self.options.pace):
            while (left := began + act.at - time.monotonic()) > 0:
                self.keep_house()
                time.sleep(min(left, 0.05))
            self.keep_house()
            self.seconds = time.monotonic() - began
            if self.has_enough():
                break
            self.perform(act)
            if self.seconds - told >= 10:
                told = self.seconds
                self.say(self.describe_progress())
        self.end_what_lasts()
        self.seconds = time.monotonic() - began

    def has_enough(self) -> bool:
        """Of time, or of what was asked for by number."""
        if not self.options.kills:
            return self.seconds >= self.options.seconds
        return len(self.kills) >= self.options.kills and (
            self.count_faults().total() >= self.options.faults
        )

    def perform(self, act: Act) -> None:
        """One act, and its end in due time."""
        if act.stream == "kill":
            self.kill(act)
        elif act.stream == "signal":
            self.signal(act)
        else:
            self.end_fault()  # the last one, if all is late today
            kind = self.stage.begin(act)
            self.faults.update([kind] if kind else [])
            if act.kind == "read-only" and kind:
                # Their successors open the file while it can't be written to.
                self.kill_all("read-only", self.choose(self.fleet.clusters, act).list_pids(WORKER))
            if act.seconds:
                self._fault = act
                self.later(act.seconds, lambda: self.end_fault(act))

    def end_fault(self, act: Act | None = None) -> None:
        """End the fault that lasts, or `act` if it still does."""
        if self._fault is not None and act in {None, self._fault}:
            self.stage.end(self._fault)
            self._fault = None

    def later(self, seconds: float, act: Callable[[], None]) -> None:
        """Do it in so many seconds, between two acts."""
        heapq.heappush(self._later, (time.monotonic() + seconds, next(self._numbers), act))

    def keep_house(self) -> None:
        """What is due, what has ended, what was written."""
        while self._later and self._later[0][0] <= time.monotonic():
            heapq.heappop(self._later)[2]()
        self.fleet.keep_running()
        self.read_sink()

    def end_what_lasts(self) -> None:
        """Every stop and fault ends now."""
        self.hurting = False
        while self._later:
            heapq.heappop(self._later)[2]()
        self.stage.calm_down()

    def wait_for_work(self) -> None:
        """Until every worker could have begun something."""
        until = time.monotonic() + 60
        while len(self.last) < self.options.workers and time.monotonic() < until:
            self.keep_house()
            time.sleep(0.05)

    def quiet_down(self) -> None:
        """Nothing new, no fault: every task must come to its end by itself."""
        self.say(f"{self.describe_progress()}; quiet now")
        self.folder.quiet.touch()
        began = time.monotonic()
        while time.monotonic() < began + self.options.quiet_seconds:
            self.keep_house()
            if self.fleet.client is not None and self.fleet.client.poll() == 0:
                break
            time.sleep(0.1)
        self.quiet_took = time.monotonic() - began

    def describe_progress(self) -> str:
        counted = Counter(line["what"] for line in self.folder.client.read_all())
        return (
            f"{self.seconds:.0f} s: {len(self.kills)} kills, {self.count_faults().total()} faults, "
            f"{counted['finished']} of {counted['got']} tasks finished"
        )

    def count_faults(self) -> Counter[str]:
        """Faults of the database by kind."""
        return self.faults + Counter(self.stage.count_late())

    # --- What is done to processes ----------------------------------------------------------------

    def choose[T](self, among: list[T], act: Act) -> T:
        """The act's pick of what there is at this moment."""
        return among[int(act.pick * len(among))]

    def kill(self, act: Act) -> None:
        """SIGKILL, after a look at what the victim was doing: it stands still meanwhile."""
        cluster = self.choose(self.fleet.clusters, act)
        if act.kind in {"sentinel", "parent", "pusher or monitor"}:
            self.kill_other(act, cluster)
        elif act.kind == "whole cluster":
            cluster.cause = "kill -9 of all"
            main = [cluster.process.pid] if cluster.process is not None else []
            self.kill_all(act.kind, main + cluster.list_pids())
        elif (pid := self.find_victim(act)) is not None:
            self.kill_all(act.kind, [pid])

    def kill_other(self, act: Act, cluster: Cluster) -> None:
        """A process that runs no unit."""
        if act.kind == "parent":
            pids = [cluster.process.pid] if cluster.process is not None else []
            cluster.cause = "kill -9"
        else:
            roles = (SENTINEL,) if act.kind == SENTINEL else ("pusher", "monitor")
            pids = cluster.list_pids(*roles)
            cluster.cause = f"kill -9 of the {act.kind}" if act.kind == SENTINEL else cluster.cause
        if pids and send_signal(pid := self.choose(pids, act), signal.SIGKILL):
            self.kills.append(Kill(time.time(), act.kind, NOBODY, (pid,)))

    def kill_all(self, kind: str, pids: list[int]) -> None:
        """These processes in one instant; counted as one kill, in the furthest phase of theirs."""
        frozen = freeze(pids)
        self.read_sink()
        held, phases = self.look_at(frozen)
        killed = [pid for pid in frozen if send_signal(pid, signal.SIGKILL)]
        if killed:
            phase = max(phases, key=PHASES.index, default=NOBODY)
            self.kills.append(Kill(time.time(), kind, phase, tuple(killed), tuple(held)))

    def find_victim(self, act: Act) -> int | None:
        """A worker at the moment that the act is meant for; any worker if that does not come."""
        workers = [pid for cluster in self.fleet.clusters for pid in cluster.list_pids(WORKER)]
        if not workers:
            return None
        if act.kind == "any worker":
            return self.choose(workers, act)
        long = act.kind.startswith("stop")
        until = time.monotonic() + AIM_SECONDS * (3 if long else 1)
        while time.monotonic() < until:
            lines = self.read_sink()
            if act.kind in {"holder", "stop worker"}:
                lines = [self.last[pid] for pid in workers if pid in self.last]
            wanted = {"begin"} if act.kind in {"holder", "stop worker"} else {"end", "raise"}
            pids = [
                line["pid"] for line in lines
                if line["what"] in wanted and line["pid"] in workers
                and (not long or line["step"] == LONG_STEP)
            ]  # fmt: skip
            if pids:
                if act.kind == "claiming":  # the settle takes a few milliseconds
                    time.sleep(0.02 * act.pick)
                return self.choose(pids, act)
            time.sleep(0.0005)
        return self.choose(workers, act)

    def look_at(self, pids: list[int]) -> tuple[list[tuple[str, int]], list[str]]:
        """The leases that these standing processes hold, and the phase of each.

        By the ledger if it answers: a lease without a line in the sink is claimed, with a `begin`
        in the step, with an `end` settling. Without it, by the sink alone.
        """
        leases = read_leases()
        held, phases = [], []
        for pid in pids:
            line = self.last.get(pid)
            mine = [line] if leases is None and line and line["what"] == "begin" else []
            if leases is not None:
                mine = [lease for lease in leases if lease["pid"] == pid]
            for lease in mine:
                held.append((lease["task"], lease["fence"]))
                same = line is not None and all(line[k] == lease[k] for k in ("task", "fence"))
                at = line["what"] if same and line is not None else ""
                phases.append({"": CLAIMED, "begin": IN_STEP, "made": IN_STEP}.get(at, SETTLING))
        return held, phases

    def read_sink(self) -> list[Line]:
        """What was written since, the last line of each process kept."""
        new = self.folder.sink.read_new()
        self.last.update((line["pid"], line) for line in new)
        self.begun.update((n["task"], n["fence"]) for n in new if n["what"] == "begin")
        return new

    def signal(self, act: Act) -> None:
        """SIGSTOP for a while, or SIGTERM."""
        cluster = self.choose(self.fleet.clusters, act)
        workers = [pid for one in self.fleet.clusters for pid in one.list_pids(WORKER)]
        done = True
        if act.kind == "stop cluster":
            self.stop(cluster.list_pids() + ([cluster.process.pid] if cluster.process else []), act)
        elif act.kind.startswith("stop") and workers:
            # In a long unit, or at its end: so it wakes while its successor is at work.
            self.stop([pid for pid in [self.find_victim(act)] if pid is not None], act)
        elif act.kind == "term worker" and workers:
            done = send_signal(self.choose(workers, act), signal.SIGTERM)
        elif act.kind == "term parent":
            done = cluster.send(signal.SIGTERM, "SIGTERM")
        elif act.kind == "term group":
            cluster.send_group(signal.SIGTERM, "SIGTERM to the group")
        elif act.kind == "kill client" and self.fleet.client is not None:
            self.fleet.client.kill()
        self.signals[act.kind] += done

    def stop(self, pids: list[int], act: Act) -> None:
        """Stand still for longer than the lease, then go on; who was settling does so as soon as
        its successor is at work, when a write of its own would do most harm."""
        stopped = freeze(pids)
        self.read_sink()
        held, _ = self.look_at(stopped)
        self.stopped_pids |= set(stopped)
        until = time.monotonic() + act.seconds

        def go_on() -> None:
            early = time.monotonic() < until + SUCCESSOR_SECONDS
            succeeded = all(self.begun.get(task, 0) > fence for task, fence in held)
            if act.kind == "stop settling" and held and early and not succeeded and self.hurting:
                return self.later(0.05, go_on)
            for pid in stopped:
                send_signal(pid, signal.SIGCONT)

        self.later(act.seconds if act.kind != "stop settling" else 0.05, go_on)


def read_leases() -> list[dict[str, Any]] | None:
    """Every lease in force; None while the database does not answer."""
    from django.db import DatabaseError, InterfaceError, connection

    from ledger.models import Task

    try:
        rows = list(Task.objects.filter(status="running").values_list("id", "fence", "lease_owner"))
    except (DatabaseError, InterfaceError):
        with contextlib.suppress(DatabaseError, InterfaceError):
            connection.close()
        return None
    return [
        {"task": str(task), "fence": fence, "pid": int(owner.rsplit(":", 2)[1])}
        for task, fence, owner in rows
    ]
