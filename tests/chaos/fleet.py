"""The clusters of a run: started, signalled, and started again when they end, as systemd would."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import sys
import time
import uuid
from collections import Counter
from pathlib import Path

import psutil

from tests.conftest import ROOT
from tests.crash.cluster_kit import MARK, is_alive
from tests.durable import bound_leases
from tests.pg import die_with_parent

RESTART_SECONDS = 0.3
WORKER, SENTINEL = "worker", "sentinel"
_BIRTH = re.compile(rb"(\w+) (\d+) started$", re.MULTILINE)


def make_environment(root: Path, url: str) -> dict[str, str]:
    """Of every process of the product: short leases, files under `root`."""
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("LONGWATCH_", "DJANGO_"))}
    return kept | {
        "LONGWATCH_DATABASE_URL": url,
        "LONGWATCH_VAR": str(root / "var"),
        "LONGWATCH_WORKFLOWS": "tests.chaos.flows",
        "LONGWATCH_CHAOS_DIR": str(root),
        "LONGWATCH_MAX_RECLAIMS": "100000",
        "PYTHONUNBUFFERED": "1",
        **bound_leases(LONGWATCH_DRAIN_SECONDS="12"),
    }


class Cluster:
    """One `manage.py qcluster`, in a session of its own, and whoever follows it in its place."""

    def __init__(self, name: str, folder: Path, environment: dict[str, str], workers: int) -> None:
        self.name = name
        self.log = folder / f"{name}.log"
        self.environment = environment
        self.workers = workers
        self.process: subprocess.Popen[bytes] | None = None
        self.exits: Counter[str] = Counter()
        self.cause = "?"
        """What was last done to its main process."""
        self._born: dict[int, str] = {}
        self._read = 0
        self._start_at = 0.0

    def start(self) -> None:
        """Start it; from the main thread, since it dies with the thread that started it."""
        self.cause = "by itself"
        self._born = {}
        with self.log.open("ab") as log:
            self._read = log.tell()
            self.process = subprocess.Popen(
                [sys.executable, "manage.py", "qcluster", "--workers", str(self.workers)],
                cwd=ROOT,
                env=self.environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
                preexec_fn=die_with_parent,
            )

    def note_end(self) -> None:
        """Take its end in, if it has ended."""
        if self.process is not None and self.process.poll() is not None:
            self.exits[f"{self.cause}: {self.process.returncode}"] += 1
            self.process = None
            self._start_at = time.monotonic() + RESTART_SECONDS

    def keep_running(self) -> None:
        """Start it again a moment after its end."""
        self.note_end()
        if self.process is None and time.monotonic() >= self._start_at:
            self.start()

    def list_pids(self, *roles: str) -> list[int]:
        """Its living processes of these roles (all but the main one, if none), oldest first."""
        with self.log.open("rb") as log:
            log.seek(self._read)
            whole, end, _ = log.read().rpartition(b"\n")
        self._read += len(whole) + len(end)
        for name, pid in _BIRTH.findall(whole):
            self._born[int(pid)] = name.decode()
        return [p for p, role in self._born.items() if (not roles or role in roles) and is_alive(p)]

    def send(self, signum: int, cause: str) -> bool:
        """Signal the main process."""
        self.cause = cause
        return send_signal(self.process.pid if self.process else 0, signum)

    def send_group(self, signum: int, cause: str) -> None:
        """Signal every process of it."""
        self.cause = cause
        if self.process is not None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.process.pid, signum)


class Fleet:
    """All clusters and the client; every process of theirs carries this run's mark."""

    def __init__(self, folder: Path, environment: dict[str, str]) -> None:
        self.mark = uuid.uuid4().hex
        self.folder = folder
        self.environment = {**environment, MARK: self.mark}
        self.clusters: list[Cluster] = []
        self.client: subprocess.Popen[bytes] | None = None
        self._client_arguments: list[str] = []

    def migrate(self) -> None:
        """Make the ledger's tables."""
        command = [sys.executable, "manage.py", "migrate", "--verbosity", "0"]
        subprocess.run(command, cwd=ROOT, env=self.environment, check=True)

    def start(self, clusters: int, workers: int, seed: int, backlog: int) -> None:
        """Start everything."""
        self._client_arguments = [str(seed), str(backlog)]
        self.start_clusters(clusters, workers)
        self.keep_running()

    def start_clusters(self, clusters: int, workers: int) -> None:
        """Start the clusters only."""
        self.clusters = [
            Cluster(f"cluster-{n}", self.folder, self.environment, workers)
            for n in range(1, clusters + 1)
        ]
        for cluster in self.clusters:
            cluster.start()

    def keep_running(self) -> None:
        """Start again what has ended, the client only while it has something left to do."""
        for cluster in self.clusters:
            cluster.keep_running()
        if self.client is None or self.client.poll() not in {None, 0}:
            with (self.folder / "client.log").open("ab") as log:
                self.client = subprocess.Popen(
                    [sys.executable, "-m", "tests.chaos.client", *self._client_arguments],
                    cwd=ROOT,
                    env=self.environment,
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    preexec_fn=die_with_parent,
                )

    def stop(self, seconds: float) -> list[str]:
        """End all in good order within `seconds`; what had to be killed then."""
        for cluster in self.clusters:
            cluster.send(signal.SIGTERM, "the end")
        if self.client is not None:
            self.client.terminate()
        until = time.monotonic() + seconds
        while (living := self.find_living()) and time.monotonic() < until:
            time.sleep(0.2)
            if self.client is not None:
                self.client.poll()
            for cluster in self.clusters:
                cluster.note_end()
        left = []
        for process in living:
            with contextlib.suppress(psutil.NoSuchProcess):
                left.append(f"{process.pid} {' '.join(process.cmdline())[:100]}")
                process.kill()
        return left

    def find_living(self) -> list[psutil.Process]:
        """Every process that carries the mark."""

        def is_ours(process: psutil.Process) -> bool:
            try:
                return process.environ().get(MARK) == self.mark and is_alive(process.pid)
            except psutil.Error:
                return False

        return [process for process in psutil.process_iter() if is_ours(process)]


def send_signal(pid: int, signum: int) -> bool:
    """Whether it was there to take the signal."""
    if pid <= 0:
        return False
    try:
        os.kill(pid, signum)
    except ProcessLookupError:
        return False
    return True


def freeze(pids: list[int]) -> list[int]:
    """SIGSTOP and wait until it holds; those that stand still."""
    sent = [pid for pid in pids if send_signal(pid, signal.SIGSTOP)]
    still = {psutil.STATUS_STOPPED, psutil.STATUS_ZOMBIE, psutil.STATUS_DEAD}
    until = time.monotonic() + 1.0
    while not {_read_status(pid) for pid in sent} <= still and time.monotonic() < until:
        time.sleep(0.001)
    return [pid for pid in sent if _read_status(pid) == psutil.STATUS_STOPPED]


def _read_status(pid: int) -> str:
    try:
        return str(psutil.Process(pid).status())
    except psutil.NoSuchProcess:
        return psutil.STATUS_DEAD
