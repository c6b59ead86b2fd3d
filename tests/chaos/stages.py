"""The two databases of a run, each with its faults.

A fault is begun and ended by the schedule. What this machine does not allow is named in `left_out`.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import sqlite3
import subprocess
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Self

import psycopg

from tests.chaos.proxy import Proxy
from tests.chaos.schedule import Act
from tests.durable import DURABLE
from tests.pg import Cluster as Server

DISK_BYTES = 512 * 2**20
FAKETIME = ("/usr/lib/*/faketime/libfaketime.so.1", "/usr/lib*/faketime/libfaketime.so.1")


class PostgreSQL:
    """A server of its own behind a proxy; the product connects to the proxy only."""

    name = "postgresql"

    def __init__(self, folder: Path) -> None:
        self.left_out: list[str] = []
        self.problems: list[str] = []
        self.server = Server()
        self.proxy = Proxy(self.server.port)
        self.clock = self._make_clock()

    def _make_clock(self) -> Path | None:
        """The file that says how far the server's clock is off, if it can be made to read one."""
        libraries = sorted(found for pattern in FAKETIME for found in Path("/").glob(pattern[1:]))
        if not libraries:
            self.left_out = ["clock step (no libfaketime here: apt install faketime)"]
            return None
        clock = self.server.folder / "clock"
        clock.write_text("+0")
        self.server.surroundings["env"] |= {
            "LD_PRELOAD": str(libraries[0]),
            "FAKETIME_TIMESTAMP_FILE": str(clock),
            "FAKETIME_NO_CACHE": "1",  # else sessions disagree for a while
            "FAKETIME_DONT_FAKE_MONOTONIC": "1",
        }
        return clock

    def __enter__(self) -> Self:
        self.server.__enter__()
        self.proxy.__enter__()
        options = "?sslmode=disable&gssencmode=disable"
        self.direct_url = self.server.url + options
        self.product_url = f"postgresql://postgres@127.0.0.1:{self.proxy.port}/postgres{options}"
        return self

    def __exit__(self, *exc: object) -> None:
        self.proxy.__exit__()
        self.server.__exit__()

    def begin(self, act: Act) -> str:
        """Begin a fault; the kind to count it under, "" for none yet."""
        if act.kind == "stall":
            self.proxy.stall()
        elif act.kind == "drop":
            self.proxy.drop()
        elif act.kind == "terminate":
            with psycopg.connect(self.direct_url, autocommit=True) as connection:
                connection.execute(
                    "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
                    "WHERE application_name = 'longwatch' AND pid <> pg_backend_pid()"
                )
        elif act.kind.startswith("restart"):
            self.server.stop(signal.SIGINT if act.kind.endswith("fast") else signal.SIGQUIT)
        elif act.kind == "cut":
            self.proxy.arm(act.detail)
            return ""  # counted by the proxy, when it happens
        elif act.kind == "clock step":
            return self._step_clock(float(act.detail))
        return act.kind

    def _step_clock(self, offset: float) -> str:
        """Move the server's clock for good: the next step goes from there.

        Never ahead of the machine's, as a signal handler in the server sees the latter and would
        put its timeouts off.
        """
        if self.clock is None:
            return ""
        new = self.clock.with_suffix(".new")
        new.write_text(f"{offset:+.1f}")
        new.replace(self.clock)
        with psycopg.connect(self.direct_url, autocommit=True) as connection:
            query = "SELECT extract(epoch FROM clock_timestamp())::float8"
            (now,) = connection.execute(query).fetchone() or (0.0,)
        if abs(now - time.time() - offset) > 5:
            self.problems.append(f"the server's clock did not step to {offset:+.1f} s")
        return "clock step"

    def end(self, act: Act) -> None:
        """End it."""
        if act.kind == "stall":
            self.proxy.flow()
        elif act.kind.startswith("restart"):
            self.server.start()

    def calm_down(self) -> None:
        """No fault from here on."""
        self.proxy.flow()
        self.proxy.disarm()

    def save(self, target: Path) -> None:
        """Keep what the ledger held, as evidence."""
        command = [self.server.binaries / "pg_dump", "--dbname", self.server.url, "--inserts"]
        with target.with_suffix(".sql").open("wb") as file:
            subprocess.run(command, stdout=file, check=True)

    def count_late(self) -> dict[str, int]:
        """Faults that come after their act: replies swallowed, by what had been committed."""
        return {f"cut after {label}": n for label, n in self.proxy.cuts.items()}


class SQLite:
    """A file on a small disk of its own, in a mount namespace that this run alone sees."""

    name = "sqlite"

    def __init__(self, folder: Path) -> None:
        self.left_out: list[str] = []
        self.problems: list[str] = []
        self.folder = folder / "disk"
        self.folder.mkdir()
        self.read_only = folder / "read-only"
        self.copies = folder / "copies"
        self.copies.mkdir()
        self.file = self.folder / "ledger.sqlite3"
        self.direct_url = self.product_url = f"sqlite:///{self.file}"
        self._locker: sqlite3.Connection | None = None
        self._copying: list[threading.Thread] = []
        self._copied = 0
        self._mounted = self._mount_disk()

    def _mount_disk(self) -> bool:
        """Whether the file got a disk of its own; what needs one is left out otherwise."""
        try:
            os.unshare(os.CLONE_NEWNS)
            _run("mount", "--make-rprivate", "/")
            self._mount_file() if DURABLE else self._mount_memory()
            self.read_only.mkdir()
            _run("mount", "--bind", str(self.folder), str(self.read_only))
            _run("mount", "-o", "remount,bind,ro", str(self.read_only))
            return True
        except (OSError, AttributeError, subprocess.CalledProcessError) as error:
            self.left_out = [f"{kind} ({error})" for kind in ("full disk", "read-only")]
            return False

    def _mount_memory(self) -> None:
        _run("mount", "-t", "tmpfs", "-o", f"size={DISK_BYTES}", "tmpfs", str(self.folder))

    def _mount_file(self) -> None:
        """A disk that commits are forced to, as memory is none."""
        image = self.folder.with_suffix(".image")
        with image.open("wb") as file:
            file.truncate(DISK_BYTES)
        _run("mkfs.ext4", "-q", "-m", "0", str(image))
        _run("mount", "-o", "loop", str(image), str(self.folder))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.calm_down()
        if self._mounted:
            with contextlib.suppress(subprocess.CalledProcessError):
                _run("umount", "-l", str(self.read_only))
                _run("umount", "-l", str(self.folder))

    def begin(self, act: Act) -> str:
        """Begin a fault; the kind to count it under, "" for none."""
        if any(reason.startswith(act.kind) for reason in self.left_out):
            return ""
        if act.kind == "write lock":
            self._locker = sqlite3.connect(self.file, timeout=5, autocommit=True)
            try:
                self._locker.execute("BEGIN IMMEDIATE")
            except sqlite3.OperationalError:
                return ""
        elif act.kind == "copy":
            thread = threading.Thread(target=self._copy, name="copy")
            self._copying.append(thread)
            thread.start()
            return ""  # counted when it is done
        elif act.kind == "full disk":
            self._fill_disk()
        elif act.kind == "read-only":
            # Over it, not instead of it: a mount with open files can't be made read-only. Who
            # opens the file from here on finds it so.
            _run("mount", "--bind", str(self.read_only), str(self.folder))
        return act.kind

    def end(self, act: Act) -> None:
        """End it."""
        if act.kind == "write lock" and self._locker is not None:
            self._locker.close()
            self._locker = None
        elif act.kind == "full disk":
            (self.folder / "ballast").unlink(missing_ok=True)
        elif act.kind == "read-only" and not self.left_out:
            _run("umount", "-l", str(self.folder))

    def calm_down(self) -> None:
        """No fault from here on."""
        for thread in self._copying:
            thread.join(60)

    def save(self, target: Path) -> None:
        """Keep what the ledger held, as evidence."""
        with (
            contextlib.closing(sqlite3.connect(self.file)) as source,
            contextlib.closing(sqlite3.connect(target.with_suffix(".sqlite3"))) as copy,
        ):
            source.backup(copy)

    def count_late(self) -> dict[str, int]:
        """Faults that come after their act: copies made."""
        return {"copy under load": self._copied}

    def _fill_disk(self) -> None:
        with (self.folder / "ballast").open("wb") as ballast:
            size = shutil.disk_usage(self.folder).free
            while size >= 4096:  # the product takes some of it meanwhile
                try:
                    os.posix_fallocate(ballast.fileno(), ballast.seek(0, os.SEEK_END), size)
                except OSError:
                    size //= 2

    def _copy(self) -> None:
        """Copy the file while it is written to; the copy must hold together by itself."""
        target = self.copies / f"{time.monotonic_ns()}.sqlite3"
        try:
            with (
                contextlib.closing(sqlite3.connect(self.file, timeout=30)) as source,
                contextlib.closing(sqlite3.connect(target)) as copy,
            ):
                source.backup(copy)
                self.problems += check_copy(copy)
                self._copied += 1
        except sqlite3.OperationalError:
            pass  # into the next fault: no copy, and none counted
        finally:
            target.unlink(missing_ok=True)


def check_copy(copy: sqlite3.Connection) -> list[str]:
    """What is wrong with a copy: it must be as sound as the ledger at one instant."""
    queries = {
        "a copy is corrupt": "SELECT * FROM pragma_integrity_check WHERE integrity_check <> 'ok'",
        "a copy has a gap in a record": (
            "SELECT t.id FROM longwatch_task t WHERE t.event_seq <> "
            "(SELECT count(*) FROM longwatch_event e WHERE e.task_id = t.id) + "
            "(SELECT count(*) FROM longwatch_step_output o WHERE o.task_id = t.id)"
        ),
        "a copy has a lease outside running": (
            "SELECT id FROM longwatch_task WHERE (status = 'running') <> (lease_owner <> '')"
        ),
    }
    found = []
    for what, query in queries.items():
        rows = copy.execute(query).fetchmany(5)
        if rows:
            found.append(f"{what}: {rows}")
    return found


def _run(*command: str) -> None:
    subprocess.run(command, check=True, capture_output=True)


STAGES: dict[str, Callable[[Path], PostgreSQL | SQLite]] = {
    "postgresql": PostgreSQL,
    "sqlite": SQLite,
}
"""By name; a stage is a context manager."""
