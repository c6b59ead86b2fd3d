"""What lies in a folder, as a tree: walked without following a link, and hashed."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
import stat
from collections.abc import Callable, Iterator
from typing import Final

from ledger.filerules import PLAIN, Workspace
from ledger.workspaces import trees
from ledger.workspaces.trees import Entry, Tree, WorkspaceRefused

CHUNK: Final = 1 << 18

type Item = tuple[str, os.DirEntry[str]]
"""A path from the root, and what lies there."""

type Skip = Callable[[str, bool], bool]
"""Whether a path, a folder or not, is left out with all below it."""

MODE_BITS = 0o777
"""Of a mode; setuid, setgid and sticky bits are not kept."""


def scan_tree(root: str | os.PathLike[str], rules: Workspace = PLAIN) -> Tree:
    """Every entry below `root` that is not ignored, hashed.

    Raises WorkspaceRefused for what a manifest can't hold.
    """
    top = os.fspath(root)
    tree: Tree = {}
    room = trees.MAX_BYTES
    for path, item in walk_tree(top, rules.ignores if rules.hides_any else None):
        if len(tree) >= trees.MAX_ENTRIES:
            raise WorkspaceRefused(path, f"is beyond {trees.MAX_ENTRIES:,} entries; remove some")
        tree[path] = entry = scan_item(top, path, item, room)
        room -= entry.size
    return tree


def walk_tree(root: str, skip: Skip | None = None, unlock: bool = False) -> Iterator[Item]:
    """What lies below `root`, sorted, parents first; a link to a folder is not entered.

    With `unlock`, folders that can't be read or changed are made so on the way, and the one who
    asks may remove what it is given. Raises WorkspaceRefused for a folder that can't be listed.
    """
    todo = _list_folder(root, "")
    while todo:
        path, item = todo.pop()
        is_folder = item.is_dir(follow_symlinks=False)
        if skip is not None and skip(path, is_folder):
            continue
        if unlock and is_folder and is_locked(item):
            os.chmod(item.path, 0o700)
        yield path, item
        if is_folder and (not unlock or os.path.lexists(item.path)):
            todo += _list_folder(item.path, f"{path}/")


def is_locked(item: os.DirEntry[str]) -> bool:
    """Whether its owner could not list or change the folder, when it was first looked at."""
    return item.stat(follow_symlinks=False).st_mode & stat.S_IRWXU != stat.S_IRWXU


def _list_folder(folder: str, prefix: str) -> list[Item]:
    """What lies there, in reverse order, so that the first is taken first."""
    try:
        with os.scandir(folder) as found:
            items = sorted(found, key=lambda item: item.name, reverse=True)
    except OSError as error:
        raise _explain_refusal(prefix.rstrip("/"), error) from error
    return [(prefix + item.name, item) for item in items]


def scan_item(root: str, path: str, item: os.DirEntry[str], room: int = trees.MAX_BYTES) -> Entry:
    """The entry of what lies at `path`. Raises WorkspaceRefused, for over `room` bytes too."""
    if not path.isascii():
        try:
            path.encode()
        except UnicodeEncodeError:
            raise WorkspaceRefused(path, "has a name that is no UTF-8; rename it") from None
    try:
        if item.is_symlink():
            return Entry("link", target=_check_link(root, path))
        facts = item.stat(follow_symlinks=False)
        mode = facts.st_mode & MODE_BITS
        if stat.S_ISDIR(facts.st_mode):
            return Entry("dir", mode)
        if not stat.S_ISREG(facts.st_mode):
            raise WorkspaceRefused(path, "is a device, FIFO or socket; remove it")
        if facts.st_size > room:  # before a sparse terabyte is read
            raise WorkspaceRefused(path, f"is beyond {trees.MAX_BYTES:,} bytes; remove some")
        return Entry("file", mode, *_hash_file(item.path))
    except OSError as error:
        raise _explain_refusal(path, error) from error


def _hash_file(path: str) -> tuple[str, int]:
    """SHA-256 and size of a regular file, whatever it has become by now."""
    # By handle and without Python's file objects: half the time of a tree of small files.
    handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        if not stat.S_ISREG(os.fstat(handle).st_mode):
            raise FileNotFoundError(errno.ENOENT, "is no regular file any more", path)
        digest, size = hashlib.sha256(), 0
        while chunk := os.read(handle, CHUNK):
            digest.update(chunk)
            size += len(chunk)
        return digest.hexdigest(), size
    finally:
        os.close(handle)


def _check_link(root: str, path: str) -> str:
    target = os.readlink(f"{root}/{path}")
    # Resolved as the system does: `up/../x` leaves the root where `up` itself is a link upward,
    # though its text seems to stay inside.
    # And from the text that is kept: the link itself may be another one by now.
    at = os.path.dirname(f"{root}/{path}")
    real, real_root = os.path.realpath(f"{at}/{target}"), os.path.realpath(root)
    if os.path.isabs(target) or not f"{real}/".startswith(f"{real_root}/"):
        raise WorkspaceRefused(path, f"links out of the workspace, to {target!r}; remove it")
    return target


def _explain_refusal(path: str, error: OSError) -> Exception:
    """What keeps a path from being read, if that is the path itself and not the disk."""
    if error.errno in {errno.EACCES, errno.EPERM}:
        return WorkspaceRefused(path, "can't be read by the worker; change its mode or remove it")
    if error.errno == errno.ENAMETOOLONG:
        return WorkspaceRefused(path[:200], "lies too deep to be named; remove it")
    if error.errno in {errno.ENOENT, errno.ENOTDIR, errno.ELOOP, errno.ENXIO}:
        return WorkspaceRefused(path, "changed while it was read; end what writes to it")
    return error


def measure_tree(root: str | os.PathLike[str]) -> int:
    """The bytes of all files below `root`, ignored ones too, as far as they can be looked at: what
    is ignored may be anything, and may change."""
    size = 0
    for folder, _, names in os.walk(root):
        for name in names:
            with contextlib.suppress(OSError):
                facts = os.lstat(f"{folder}/{name}")
                size += facts.st_size if stat.S_ISREG(facts.st_mode) else 0
    return size
