"""A task's files: a folder while a unit runs, a manifest and blobs at each checkpoint.

The manifest lists every path with its mode and digest; it is a blob itself, and its digest on the
task row is the workspace. Before a step sees its folder, the folder is made equal to the manifest
byte for byte, by hashing what lies there, so nothing that a half-done unit, a former holder or a
process left behind changed can reach the next unit.

Each process works in a folder of its own: a worker that lost its lease may go on writing, and
must not write under its successor's feet. A folder whose process is gone is removed by the next
process that starts work here.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import secrets
import shutil
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple
from uuid import UUID

from ledger import blobs, canonical, sql
from ledger.artifacts import write_blob_rows
from ledger.conf import locate_var
from ledger.errors import LedgerError
from ledger.sql import Claimed

MAX_ENTRIES = 100_000
MAX_BYTES = 4 * 1024**3
KEPT_TREES = 4
"""Tasks whose folders one process keeps for their next units; the oldest give way."""

MANIFEST_VERSION = 1
LOCK = "lock"


class WorkspaceRefused(LedgerError):
    """Something in the workspace can't be kept; the message names the path and the cure."""

    code = "workspace_refused"
    status = 422

    def __init__(self, path: str, why: str) -> None:
        super().__init__(f"workspace: {path!r} {why}")


class Entry(NamedTuple):
    """One path: a file (mode, digest, size), a folder (mode) or a link (target)."""

    kind: str
    mode: int = 0
    digest: str = ""
    size: int = 0
    target: str = ""


type Tree = dict[str, Entry]
"""Entries by their path from the workspace's root, with slashes; parents before children."""


class Workspace:
    """The files of a claimed task, on this worker, for one unit."""

    def __init__(self, claimed: Claimed) -> None:
        self._claimed = claimed
        self._known = read_manifest(claimed.workspace) if claimed.workspace else {}
        self.path = _open_home() / str(claimed.task_id)
        """The folder, equal to the last checkpoint's; it may lie elsewhere in the next unit."""
        restore_tree(self._known, self.path)
        _drop_old_trees(self.path)

    def snapshot(self) -> str:
        """Store what changed and return the digest of the tree's manifest.

        Raises WorkspaceRefused for what can't be kept and LeaseLost.
        """
        tree = scan_tree(self.path)
        if tree == self._known and self._claimed.workspace:
            return self._claimed.workspace
        have = {entry.digest for entry in self._known.values()}
        changed = [
            path
            for path, entry in tree.items()
            if entry.kind == "file" and entry.digest not in have
        ]
        stored = blobs.store_blobs(self.path / path for path in changed)
        for path, one in zip(changed, stored, strict=True):
            # What was stored counts: a file that something still writes to may have changed.
            tree[path] = tree[path]._replace(digest=one.digest, size=one.size)
        manifest = blobs.store_blobs([write_manifest(tree)])[0]
        with sql.hold_task(self._claimed.lease, "workspace"):
            write_blob_rows([*dict.fromkeys(stored), manifest])
        self._known = tree
        return manifest.digest


def write_manifest(tree: Tree) -> bytes:
    """The manifest's bytes: the same tree gives the same bytes."""
    entries = [{"path": path, **_trim(entry)} for path, entry in sorted(tree.items())]
    return canonical.dump_json({"version": MANIFEST_VERSION, "entries": entries}).encode()


def read_manifest(digest: str) -> Tree:
    """The tree of a stored manifest. Raises CorruptArtifact."""
    with blobs.open_blob(digest) as file:
        data = json.load(file)
    return {entry.pop("path"): Entry(**entry) for entry in data["entries"]}


def scan_tree(root: Path) -> Tree:
    """Every entry below `root`, hashed. Raises WorkspaceRefused for what a manifest can't hold."""
    tree: Tree = {}
    total = 0
    for path, item in _walk(root, ""):
        tree[path] = entry = _scan_item(root, path, item)
        total += entry.size
        if len(tree) > MAX_ENTRIES or total > MAX_BYTES:
            raise WorkspaceRefused(
                path, f"is beyond {MAX_ENTRIES:,} entries or {MAX_BYTES:,} bytes; remove some"
            )
    return tree


def restore_tree(tree: Tree, root: Path) -> None:
    """Make what lies at `root` equal to `tree`, touching only what differs."""
    if root.is_symlink() or (root.exists() and not root.is_dir()):
        root.unlink()
    root.mkdir(mode=0o700, exist_ok=True)
    root.chmod(0o700)
    here = _remove_strangers(tree, root)
    folders = [path for path, entry in tree.items() if entry.kind == "dir"]
    for path in folders:
        (root / path).mkdir(mode=0o700, exist_ok=True)
    for path, entry in tree.items():
        if path in here:
            continue
        if entry.kind == "file":
            _restore_file(root / path, entry)
        elif entry.kind == "link":
            os.symlink(entry.target, root / path)
    for path in reversed(folders):  # last, and children first: a folder may be read-only
        os.chmod(root / path, tree[path].mode)


def _remove_strangers(tree: Tree, root: Path) -> set[str]:
    """Remove what is not in `tree` or differs; the paths of files and links that are right."""
    right: set[str] = set()
    for path, item in _walk(root, "", unlock=True):
        entry = tree.get(path)
        try:
            found = _scan_item(root, path, item)
        except (WorkspaceRefused, OSError):
            found = None
        if entry is not None and found is not None and found.kind == entry.kind == "dir":
            continue
        # A hard link is one file under two names here, and two files when rebuilt elsewhere.
        alone = item.stat(follow_symlinks=False).st_nlink == 1
        if entry is not None and found == entry and alone:
            right.add(path)
        elif item.is_dir(follow_symlinks=False):
            remove_tree(root / path)
        else:
            os.unlink(root / path)
    return right


def _restore_file(target: Path, entry: Entry) -> None:
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW
    with (
        blobs.open_blob(entry.digest) as source,
        os.fdopen(os.open(target, flags, 0o600), "wb") as file,
    ):
        shutil.copyfileobj(source, file, blobs.CHUNK)
        os.fchmod(file.fileno(), entry.mode)


def _walk(root: Path, below: str, unlock: bool = False) -> Iterator[tuple[str, os.DirEntry[str]]]:
    """Paths and entries below, sorted, parents first; a link to a folder is not entered.

    With `unlock`, folders that can't be read or changed are made so on the way.
    """
    folder = root / below
    with os.scandir(folder) as found:
        items = sorted(found, key=lambda item: item.name)
    for item in items:
        path = f"{below}/{item.name}" if below else item.name
        if unlock and item.is_dir(follow_symlinks=False):
            os.chmod(root / path, 0o700)
        yield path, item
        if item.is_dir(follow_symlinks=False) and os.path.lexists(root / path):
            yield from _walk(root, path, unlock)


def _scan_item(root: Path, path: str, item: os.DirEntry[str]) -> Entry:
    try:
        path.encode()
    except UnicodeEncodeError:
        raise WorkspaceRefused(path, "has a name that is no UTF-8; rename it") from None
    if item.is_symlink():
        return Entry("link", target=_check_link(root, path))
    facts = item.stat(follow_symlinks=False)
    mode = stat.S_IMODE(facts.st_mode) & 0o777
    if stat.S_ISDIR(facts.st_mode):
        return Entry("dir", mode)
    if not stat.S_ISREG(facts.st_mode):
        raise WorkspaceRefused(path, "is a device, FIFO or socket; remove it")
    with blobs.open_regular(root / path) as file:
        digest = blobs.hash_file(file)
        return Entry("file", mode, digest, file.tell())


def _check_link(root: Path, path: str) -> str:
    target = os.readlink(root / path)
    # Resolved as the system does: `up/../x` leaves the root where `up` itself is a link upward,
    # though its text seems to stay inside.
    real, real_root = os.path.realpath(root / path), os.path.realpath(root)
    if os.path.isabs(target) or not f"{real}/".startswith(f"{real_root}/"):
        raise WorkspaceRefused(path, f"links out of the workspace, to {target!r}; remove it")
    return target


def _trim(entry: Entry) -> dict[str, Any]:
    return {name: value for name, value in entry._asdict().items() if value not in {"", 0}}


# --- Folders of processes -------------------------------------------------------------------------

_home: tuple[int, Path, int] | None = None
"""This process's id, folder and lock handle; the id tells a forked child that it has none yet."""


def _open_home() -> Path:
    """This process's own folder, locked while it lives; those of dead processes are removed."""
    global _home
    if _home is not None and _home[0] == os.getpid() and _home[1].is_dir():
        return _home[1]
    top = locate_var() / "workspaces"
    top.mkdir(mode=0o700, parents=True, exist_ok=True)
    remove_abandoned(top)
    home = top / f"{os.getpid()}-{secrets.token_hex(4)}"
    draft = top / f".{home.name}"
    draft.mkdir(mode=0o700)
    handle = os.open(draft / LOCK, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
    fcntl.flock(handle, fcntl.LOCK_EX)
    draft.rename(home)  # locked before it can be seen as abandoned
    _home = (os.getpid(), home, handle)
    return home


def remove_abandoned(top: Path) -> None:
    """Remove the folders of processes that are gone: those whose lock is free."""
    for home in top.glob("[0-9]*"):
        with contextlib.suppress(OSError):
            handle = os.open(home / LOCK, os.O_RDWR | os.O_CLOEXEC)
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                remove_tree(home)
            finally:
                os.close(handle)


def remove_workspace(task_id: UUID) -> None:
    """Remove this process's copy of a task's files, if it has one: the task is finished."""
    if _home is not None and _home[0] == os.getpid():
        remove_tree(_home[1] / str(task_id))


def remove_tree(path: Path) -> None:
    """Remove a folder and all in it, also where folders are read-only; links are not followed."""
    if not path.is_symlink() and path.is_dir():
        path.chmod(0o700)
        for _ in _walk(path, "", unlock=True):
            pass
        shutil.rmtree(path)


def _drop_old_trees(current: Path) -> None:
    trees = [tree for tree in current.parent.iterdir() if tree.name != LOCK and tree != current]
    os.utime(current)
    trees.sort(key=lambda tree: tree.stat().st_mtime, reverse=True)
    for tree in trees[KEPT_TREES - 1 :]:
        remove_tree(tree)
