"""The pool of processes: django-q2's sentinel, pusher, monitor and worker over parts without locks.

Its own queue, event and timer are multiprocessing's. Whoever is killed inside one of them keeps its
lock, and then no worker ever gets another ticket, or the sentinel hangs. So they are replaced here,
method by method; everything else of django-q2 runs unchanged. docs/why.md, "Workers".
"""

from __future__ import annotations

import contextlib
import logging
import mmap
import os
import time
from collections.abc import Callable
from multiprocessing.connection import wait as wait_readable
from typing import Any, Final, Literal
from uuid import UUID

import psutil
from django_q.brokers import Broker
from django_q.cluster import Sentinel
from django_q.conf import Conf
from django_q.monitor import monitor
from django_q.pusher import pusher
from django_q.signing import SignedPackage
from django_q.worker import worker

from ledger import conf
from ledger.cluster import deaths, runtime
from ledger.cluster.pipes import Flag, Pipe
from ledger.cluster.runtime import Role
from ledger.cluster.worker import Worker
from ledger.fitness import SILENT

STOP: Final = "STOP"
"""django-q2's word for: no more."""

AGAIN_SECONDS: Final = 0.5
"""A worker asks again for its ticket: whoever was handing it over may have been killed."""

ORPHAN_SECONDS: Final = 2.0
"""Between two looks whether the sentinel lives, where the kernel does not say so."""

ROUND_SECONDS: Final = 0.5
"""From one round of the sentinel to the next at least, so that what dies at once is not begun
again at once."""

ROLES: Final = {worker: Role.WORKER, pusher: Role.PUSHER, monitor: Role.MONITOR}

log = logging.getLogger(__name__)


class Tickets:
    """The task queue. A ticket is a byte and names no task, so a surplus or a lost one is harmless.

    `hungry` tells the pusher that a worker waits, so there are never more tickets than takers.
    """

    def __init__(self) -> None:
        self.hungry = Pipe()
        self._tickets = Pipe()
        self._worker: Worker | None = None
        self._count = 0

    def put(self, item: object) -> None:
        self._tickets.put(b"S" if item == STOP else b"T")

    def get(self) -> dict[str, Any] | Literal["STOP"]:
        """In a worker: the next ticket, whose function is the resident loop."""
        if self._worker is None:
            self._worker = Worker()
            self._worker.open()
        with self._worker.waiting():
            while not self._worker.must_leave():
                self.hungry.put(b"?")
                if byte := self._tickets.take(AGAIN_SECONDS):
                    return self._write_ticket(self._worker) if byte == b"T" else STOP
        return STOP

    def _write_ticket(self, worker: Worker) -> dict[str, Any]:
        self._count += 1
        name = f"{os.getpid()}-{self._count}"
        # timeout -1: django-q2's timeouts lose results and wedge queues; units have deadlines.
        return {
            "id": name, "name": name, "func": worker.run_ticket, "args": (), "kwargs": {},
            "timeout": -1, "save": False,
        }  # fmt: skip

    def close(self) -> None:
        pass

    def join_thread(self) -> None:
        pass

    def empty(self) -> bool:
        return True

    def qsize(self) -> int:
        return 0


class Results(Tickets):
    """The result queue. Results live in the ledger; what comes here is a ticket that ended."""

    def put(self, item: Any) -> None:
        if item == STOP:
            self._tickets.put(b"S")
        elif not item["success"]:
            log.error("a ticket failed: %s", item["result"])

    def get(self) -> Literal["STOP"]:
        """In the monitor: wait for the end."""
        while not (self._tickets.take(ORPHAN_SECONDS) or runtime.is_orphan()):
            pass
        return STOP


class Timer:
    """A worker's timer without its lock; with no timeouts the sentinel never has to wait for it.

    Beside it the worker's pulse, which says that Python runs there and nothing else.
    """

    def __init__(self) -> None:
        self._shared = memoryview(mmap.mmap(-1, mmap.PAGESIZE)).cast("d")
        self.value = -1.0
        self._seen = self._looked = self._silence = 0.0

    def beat(self) -> None:
        """In the worker: it runs."""
        self._shared[1] += 1.0

    def measure_silence(self, pid: int) -> float:
        """In the sentinel, once a round: for how many seconds the worker has not beaten.

        Only rounds of the sentinel's own count, and none in which the worker was stopped from
        outside: after a stop of a process or of the machine nobody is late.
        """
        now, before, beats = time.monotonic(), self._looked, self._shared[1]
        self._looked = now
        if beats == self._seen and not _is_stopped(pid):
            self._silence += min(now - before, 2 * Conf.GUARD_CYCLE)
        else:
            self._seen, self._silence = beats, 0.0
        return self._silence if beats else 0.0

    @property
    def value(self) -> float:
        return self._shared[0]

    @value.setter
    def value(self, to: float) -> None:
        self._shared[0] = to

    def get_lock(self) -> contextlib.AbstractContextManager[None]:
        return contextlib.nullcontext()


class LedgerBroker(Broker):  # type: ignore[misc]  # django-q2 is not typed
    """Hands out tickets; it never looks at the ledger and needs no database."""

    tickets: Tickets | None = None
    leave: Flag
    look: Callable[[], None] = staticmethod(lambda: None)

    def dequeue(self) -> list[tuple[None, str]] | None:
        """In the pusher: a ticket for each worker that waits. Never raises, never blocks long."""
        if runtime.is_orphan():
            os._exit(0)
        if self.tickets is None or runtime.get_drain():
            self.leave.wait(0.1)  # the pusher asks again at once
            return None
        asking = self.tickets.hungry.take(
            ORPHAN_SECONDS, limit=16, unless=[self.leave.fileno(), *runtime.list_stops()]
        )
        return [(None, SignedPackage.dumps({})) for _ in asking]

    def enqueue(self, task: object) -> None:
        raise RuntimeError("this cluster has no queue: submit to the ledger (ledger.client.submit)")

    def set_stat(self, key: str, value: str, timeout: int) -> None:
        """In the sentinel, once a round: its sign of life, and its look at the workers'."""
        runtime.beat()
        self.look()

    def ping(self) -> bool:
        return True

    def info(self) -> str:
        return "ledger"

    def queue_size(self) -> int:
        return 0

    def lock_size(self) -> int:
        return 0


class Rounds:
    """The sentinel's flag to stop, the wait for which is its time between two rounds: short when a
    child has ended."""

    def __init__(self, stop: Flag, pool: Pool) -> None:
        self._stop, self._pool = stop, pool

    def is_set(self) -> bool:
        return self._stop.is_set()

    def wait(self, timeout: float) -> bool:
        """Until a child ends, or for `timeout` seconds; whether the flag is up."""
        begun = time.monotonic()
        children = [*self._pool.pool, self._pool.monitor, self._pool.pusher]
        ended = wait_readable([self._stop.fileno(), *(one.sentinel for one in children)], timeout)
        least = ROUND_SECONDS if ended else 0.0
        return self._stop.wait(max(0.0, begun + least - time.monotonic()))


class Pool(Sentinel):  # type: ignore[misc]  # django-q2 is not typed
    """The sentinel. Its constructor runs, in a process of its own, until the pool has ended."""

    def __init__(self, stop: Flag, started: Flag, cluster_id: UUID) -> None:
        status = 1
        try:
            super().__init__(stop, started, cluster_id, broker=LedgerBroker(), start=False)
            self.task_queue = self.broker.tickets = Tickets()
            self.result_queue = Results()
            self.event_out = self.broker.leave = Flag()
            self.stop_event = Rounds(stop, self)
            self.broker.look = self._end_silent
            tunables = conf.load()
            self._patience = tunables.lease_seconds + tunables.heartbeat_seconds
            self._silent: set[int] = set()
            self.start()
            status = 0
        except BaseException:
            log.exception("the sentinel failed")
        finally:
            # Not through multiprocessing's exit, which joins children that may never end.
            os._exit(status)

    def spawn_process(self, target: Any, *args: Any) -> Any:
        with runtime.forking(ROLES[target]):
            return super().spawn_process(target, *args)

    def _end_silent(self) -> None:
        """Kill each worker in which no Python has run for longer than its lease: its unit keeps the
        interpreter's lock in native code, and may keep a lock of the database with it."""
        if runtime.get_drain() is not runtime.Drain.RUN:
            return  # the main process counts the grace
        for process in self.pool:
            if process.timer.measure_silence(process.pid) > self._patience:
                log.critical("worker %d is silent for longer than its lease: killed", process.pid)
                self._silent.add(process.pid)
                process.kill()

    def reincarnate(self, process: Any) -> None:
        """In the sentinel: `process` has ended. How is kept for whoever reclaims its task."""
        silent = process.pid in self._silent
        self._silent.discard(process.pid)
        deaths.note_death(process.pid, SILENT if silent else process.exitcode)
        super().reincarnate(process)

    def spawn_worker(self) -> None:
        self.spawn_process(worker, self.task_queue, self.result_queue, Timer(), self.timeout)


def _is_stopped(pid: int) -> bool:
    """SIGSTOP, or a debugger."""
    try:
        return psutil.Process(pid).status() in {psutil.STATUS_STOPPED, psutil.STATUS_TRACING_STOP}
    except psutil.NoSuchProcess:
        return False
