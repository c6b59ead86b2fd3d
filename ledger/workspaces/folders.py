"""Where the folders of tasks lie on this host: whose they are, and that they stay within bounds.

Each process has a home with a folder for each of its last tasks: a worker that lost its lease may
go on writing, and must not write under its successor's feet. A home is locked while its process
lives, and what a dead one left is removed by the next that starts work here. A task's folder is
locked while a unit uses it; an idle one may be removed by any process of the host that lacks room.
Locks are the kernel's, so a kill frees them.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import secrets
from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple
from uuid import UUID

from ledger.conf import load, locate_var
from ledger.errors import LedgerError
from ledger.outcomes import RetryLater
from ledger.workspaces.restoring import remove_tree

KEPT_TREES: Final = 4
"""Tasks whose folders one process keeps for their next units; the oldest give way."""

LOCK: Final = "lock"
GONE: Final = ".gone-"
BUSY_SECONDS: Final = 30.0
"""When a task is tried again whose files have no room beside those of the units in hand."""

_home: tuple[int, Path, int] | None = None
"""This process's id, home and lock handle; the id tells a forked child that it has none yet."""

_taken: Folder | None = None


class NoRoom(LedgerError):
    """The files of a task do not fit on this host."""

    code = "no_room"
    status = 507


class Folder(NamedTuple):
    """A task's folder, locked; beside it a file with its size and what it was set up with."""

    path: Path
    handle: int
    size: int
    setup: str

    def record(self, size: int, setup: str) -> None:
        """Put down how large it is, for whoever looks for room."""
        os.ftruncate(self.handle, 0)
        os.pwrite(self.handle, f"{size} {setup}".encode(), 0)


def take_folder(task_id: UUID) -> Folder:
    """This process's folder for the task, which may not exist yet; no other process removes it
    until `release_folder`, or the next is taken."""
    global _taken
    release_folder()
    path = open_home() / str(task_id)
    handle = _take_lock(Path(f"{path}.{LOCK}"))
    size, _, setup = os.pread(handle, 200, 0).decode(errors="replace").partition(" ")
    if not path.is_dir():
        setup = ""
    _taken = Folder(path, handle, int(size) if size.isdecimal() else 0, setup)
    _drop_old_trees(path)
    return _taken


def release_folder() -> None:
    """The unit is over: its folder is kept while there is room."""
    global _taken
    if _taken is not None:
        with contextlib.suppress(OSError):
            if _home is not None and _home[0] == os.getpid():  # not in a child of its holder
                # Said aloud: what the step left running may hold the handle, too.
                fcntl.flock(_taken.handle, fcntl.LOCK_UN)
            os.close(_taken.handle)
        _taken = None


def _take_lock(path: Path) -> int:
    while True:
        handle = os.open(path, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX)
            if _is_at(handle, path):
                os.utime(handle)
                return handle
        except BaseException:
            os.close(handle)
            raise
        os.close(handle)  # the folder was removed meanwhile, with its lock


def _is_at(handle: int, path: Path) -> bool:
    try:
        return path.stat().st_ino == os.fstat(handle).st_ino
    except FileNotFoundError:
        return False


# --- Room -----------------------------------------------------------------------------------------


def make_room(folder: Folder, wanted: int) -> None:
    """Have idle folders give way to one that will have `wanted` bytes.

    Raises NoRoom when it can never fit, and RetryLater when others are in use.
    """
    folder.record(wanted, "")
    most = load().workspace_bytes
    if wanted > most:
        raise NoRoom(
            f"The task's files have {wanted:,} bytes, and LONGWATCH_WORKSPACE_BYTES is {most:,}. "
            "Raise it, or keep less in the workspace."
        )
    if drop_idle(most) > most:
        raise RetryLater(BUSY_SECONDS, "no room beside the folders that other units use")


def drop_idle(most: int) -> int:
    """Remove idle folders, the longest unused first, until `most` bytes are left; returns those."""
    remove_abandoned(_locate_top())
    found = []
    for lock in _locate_top().glob(f"[0-9]*/*.{LOCK}"):
        with contextlib.suppress(OSError, ValueError):
            size = int(lock.read_text().partition(" ")[0] or 0)
            found.append((lock.stat().st_mtime, size, lock))
    left = sum(size for _, size, _ in found)
    for _, size, lock in sorted(found):
        if left <= most:
            break
        if _drop(lock):
            left -= size
    return left


def _drop(lock: Path) -> bool:
    """Remove an idle folder with its lock; False for one that is in use."""
    try:
        handle = os.open(lock, os.O_RDWR | os.O_CLOEXEC)
    except FileNotFoundError:
        return True
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if _is_at(handle, lock):
            remove_tree(lock.with_suffix(""))
            lock.unlink()
        return True
    except OSError:
        return False
    finally:
        os.close(handle)


def _drop_old_trees(current: Path) -> None:
    """Of this process's own folders, keep the last few; and no scratch that a step left."""
    home = current.parent
    locks = [lock for lock in home.glob(f"*.{LOCK}") if lock.with_suffix("") != current]
    locks.sort(key=lambda lock: lock.stat().st_mtime, reverse=True)
    for lock in locks[KEPT_TREES - 1 :]:
        _drop(lock)
    known = {lock.stem for lock in home.glob(f"*.{LOCK}")}
    for path in home.iterdir():
        if path.is_dir() and path.name not in known:
            remove_tree(path)


# --- Homes ----------------------------------------------------------------------------------------


def open_home() -> Path:
    """This process's own folder, locked while it lives; those of dead processes are removed."""
    global _home
    top = _locate_top()
    if _home is not None and _home[0] == os.getpid() and _home[1].parent == top:
        if _home[1].is_dir():
            return _home[1]
        with contextlib.suppress(OSError):
            os.close(_home[2])
    top.mkdir(mode=0o700, parents=True, exist_ok=True)
    remove_abandoned(top)
    with _locking(top):
        home = top / f"{os.getpid()}-{secrets.token_hex(4)}"
        home.mkdir(mode=0o700)
        handle = os.open(home / LOCK, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
        fcntl.flock(handle, fcntl.LOCK_EX)
    _home = (os.getpid(), home, handle)
    return home


def remove_abandoned(top: Path) -> None:
    """Remove the homes of processes that are gone, those whose lock is free; and what another
    that did so has not ended."""
    with _locking(top):  # so a home without a lock is none that is being made
        gone = [path for path in top.iterdir() if path.is_dir() and _is_abandoned(path)]
        for n, home in enumerate(gone):
            if not home.name.startswith(GONE):
                gone[n] = home.rename(top / f"{GONE}{home.name}")
    for home in gone:
        with contextlib.suppress(OSError):  # two may remove it at once
            remove_tree(home)


def _is_abandoned(home: Path) -> bool:
    if home.name.startswith(GONE):
        return True
    try:
        handle = os.open(home / LOCK, os.O_RDWR | os.O_CLOEXEC)
    except FileNotFoundError:
        return True
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return True
    except OSError:
        return False
    finally:
        os.close(handle)


@contextlib.contextmanager
def _locking(top: Path) -> Iterator[None]:
    handle = os.open(top / LOCK, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)


def _locate_top() -> Path:
    return locate_var() / "workspaces"
