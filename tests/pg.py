"""A PostgreSQL cluster of our own in a temporary folder: for the test ring, and for single tests
that stop, kill or restart their database.

    with Cluster() as cluster:
        connect(cluster.url)
        cluster.stop(); cluster.start()      # or cluster.kill(): as a power cut
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import pwd
import random
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, Self

import psycopg

PR_SET_PDEATHSIG = 1

DURABLE = os.environ.get("LONGWATCH_TEST_DURABLE") == "1"
"""See tests.durable; here since the benchmark's peers, who start a cluster too, have no Django."""

# The tests kill processes, never the machine.
HASTY = {} if DURABLE else {"fsync": "off", "full_page_writes": "off"}
SETTINGS = HASTY | {
    "listen_addresses": "127.0.0.1",
    "max_connections": 200,
    "log_min_messages": "fatal",
    "timezone": "UTC",
}


def find_binaries() -> Path | None:
    """The folder with initdb and postgres of the newest version here, or None."""
    found = shutil.which("postgres")
    candidates = [Path(found).resolve().parent] if found else []
    for root in ("/usr/lib/postgresql", "/usr/local/opt", "/opt/homebrew/opt", "/usr"):
        folders = Path(root).glob("*/bin" if "postgresql" in root else "*pgsql*/bin")
        candidates += sorted(folders, key=_read_version, reverse=True)
    return next((path for path in candidates if (path / "initdb").exists()), None)


def _read_version(folder: Path) -> tuple[int, ...]:
    return tuple(int(part) for part in folder.parent.name.split(".") if part.isdigit())


def find_free_port() -> int:
    """A loopback port that was free a moment ago, and that no outgoing connection is given."""
    while True:
        port = random.SystemRandom().randrange(12_000, 32_000)  # randomly seeds the other one
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port


def die_with_parent() -> None:
    """In a child, before exec: be interrupted when the parent goes, however it goes (Linux)."""
    # A job that a script starts in the background inherits that interrupts are ignored.
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGINT)


class Cluster:
    """One running server. `url` names its `postgres` database; it outlives nobody who made it.

    With `keep`, a folder, its data stay there for the next one, else they go when it does.
    """

    def __init__(self, *, keep: Path | None = None, **settings: str | int) -> None:
        binaries = find_binaries()
        if binaries is None:
            raise FileNotFoundError("no PostgreSQL server here: apt install postgresql")
        self.binaries = binaries
        self.settings = SETTINGS | settings
        self.port = find_free_port()
        self.kept = keep is not None
        # Short, as a socket's path must fit in 107 bytes.
        self.folder = keep or Path(tempfile.mkdtemp(prefix="lw-pg-", dir="/tmp"))
        self.folder.mkdir(parents=True, exist_ok=True)
        self.data = self.folder / "data"
        self.process: subprocess.Popen[bytes] | None = None
        self.surroundings = self._choose_surroundings()
        if not (self.data / "PG_VERSION").exists():
            self._run(
                "initdb", "-D", self.data, "-U", "postgres", "-A", "trust", "-E", "UTF8", "-N"
            )

    @property
    def url(self) -> str:
        """For LONGWATCH_DATABASE_URL."""
        return f"postgresql://postgres@127.0.0.1:{self.port}/postgres"

    def _choose_surroundings(self) -> dict[str, Any]:
        """How a child runs: not as root, which the server refuses, and not in our environment."""
        around: dict[str, Any] = {
            "cwd": self.folder,
            "env": {"PATH": os.environ["PATH"], "LC_ALL": "C.UTF-8"},
        }
        if os.geteuid() == 0:
            names = {entry.pw_name for entry in pwd.getpwall()}
            user = pwd.getpwnam("postgres" if "postgres" in names else "nobody")
            os.chown(self.folder, user.pw_uid, user.pw_gid)
            around |= {"user": user.pw_uid, "group": user.pw_gid, "extra_groups": []}
        return around

    def _run(self, name: str, *arguments: str | Path) -> None:
        subprocess.run(
            [self.binaries / name, *arguments],
            check=True,
            stdout=subprocess.DEVNULL,
            **self.surroundings,
        )

    def start(self, timeout: float = 60) -> Self:
        """Start the server and wait until it answers."""
        options = [f"-c{name}={value}" for name, value in self.settings.items()]
        options += [f"-cport={self.port}", f"-cunix_socket_directories={self.folder}"]
        with (self.folder / "log").open("ab") as log:
            self.process = subprocess.Popen(
                [self.binaries / "postgres", "-D", self.data, *options],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                preexec_fn=die_with_parent,
                process_group=0,  # a Ctrl-C at the terminal is for the tests; they stop it after
                **self.surroundings,
            )
        deadline = time.monotonic() + timeout
        while True:
            try:
                psycopg.connect(self.url, connect_timeout=5).close()
                return self
            except psycopg.OperationalError:
                if self.process.poll() is not None or time.monotonic() > deadline:
                    raise RuntimeError((self.folder / "log").read_text()[-2000:]) from None
                time.sleep(0.05)

    def stop(self, how: signal.Signals = signal.SIGINT, timeout: float = 30) -> None:
        """Stop the server: SIGINT drops every connection, SIGQUIT leaves it to recovery."""
        if self.process is None:
            return
        self.process.send_signal(how)
        try:
            self.process.wait(timeout)
        except subprocess.TimeoutExpired:
            self.process.send_signal(signal.SIGQUIT)
            self.process.wait(timeout)
        self.process = None

    def kill(self) -> None:
        """Stop it without any shutdown; the next start recovers from the log."""
        self.stop(signal.SIGQUIT)

    def close(self) -> None:
        """Stop the server and remove its folder, unless that is kept."""
        with contextlib.suppress(OSError):
            self.stop()
        if not self.kept:
            shutil.rmtree(self.folder, ignore_errors=True)

    def __enter__(self) -> Self:
        try:
            return self.start()
        except BaseException:
            self.close()
            raise

    def __exit__(self, *exc: object) -> None:
        self.close()
