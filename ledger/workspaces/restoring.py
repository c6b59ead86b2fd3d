"""A folder made equal to a tree, touching only what differs; and folders removed."""

from __future__ import annotations

import contextlib
import os
import shutil
import stat
from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO

from ledger import blobs, corruption
from ledger.filerules import PLAIN, Workspace
from ledger.workspaces.scanning import is_locked, scan_item, walk_tree
from ledger.workspaces.trees import Entry, Tree, WorkspaceRefused

type Opener = Callable[[str], BinaryIO]
"""Opens bytes by their digest, verified."""


def restore_tree(
    tree: Tree,
    root: Path,
    rules: Workspace = PLAIN,
    *,
    open_file: Opener | None = None,
    tick: Callable[[], None] = lambda: None,
) -> None:
    """Make what lies at `root` equal to `tree`; what is ignored stays as it is.

    `tick` is called for each file that is written. Raises CorruptArtifact and OSError; the folder
    is no tree of anybody then.
    """
    if root.is_symlink() or (root.exists() and not root.is_dir()):
        root.unlink()
    root.mkdir(mode=0o700, exist_ok=True)
    root.chmod(0o700)
    try:
        here = _remove_strangers(tree, root, rules)
    except WorkspaceRefused:  # a folder that can't be listed
        remove_tree(root)
        root.mkdir(mode=0o700)
        here = set()
    write_tree(tree, root, here, open_file or corruption.open_stored, tick)


def write_tree(
    tree: Tree, root: Path, here: set[str], open_file: Opener, tick: Callable[[], None]
) -> None:
    """Write every entry but those of `here`. Raises WorkspaceRefused for two names
    that are one to this file system."""
    top = os.fspath(root)
    folders = [path for path, entry in tree.items() if entry.kind == "dir" and path not in here]
    for path in folders:
        with contextlib.suppress(FileExistsError):
            os.mkdir(f"{top}/{path}", 0o700)
    for path, entry in tree.items():
        if entry.kind == "dir" or path in here:
            continue
        tick()
        try:
            if entry.kind == "link":
                os.symlink(entry.target, f"{top}/{path}")
            else:
                _write_file(f"{top}/{path}", entry.mode, open_file(entry.digest))
        except FileExistsError as error:
            raise WorkspaceRefused(path, "differs only by case from another; rename it") from error
    for path in reversed(folders):  # last, and children first: a folder may be read-only
        os.chmod(f"{top}/{path}", tree[path].mode)


def _write_file(path: str, mode: int, content: BinaryIO) -> None:
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    with content, os.fdopen(os.open(path, flags, 0o600), "wb") as file:
        shutil.copyfileobj(content, file, blobs.CHUNK)
        os.fchmod(file.fileno(), mode)


def _remove_strangers(tree: Tree, root: Path, rules: Workspace) -> set[str]:
    """Remove what is not in `tree` or differs; the paths of what is right."""
    right: set[str] = set()
    top = os.fspath(root)

    def skip(path: str, is_folder: bool) -> bool:
        return path not in tree and rules.ignores(path, is_folder)

    for path, item in walk_tree(top, skip if rules.hides_any else None, unlock=True):
        entry = tree.get(path)
        facts = item.stat(follow_symlinks=False)
        is_folder = stat.S_ISDIR(facts.st_mode)
        if is_folder and entry is not None and entry.kind == "dir":
            if stat.S_IMODE(facts.st_mode) == entry.mode and not is_locked(item):
                right.add(path)
            continue
        if is_folder:
            remove_tree(Path(item.path))
        elif entry is not None and _is_right(top, path, item, facts, entry):
            right.add(path)
        else:
            os.unlink(item.path)
    return right


def _is_right(
    top: str, path: str, item: os.DirEntry[str], facts: os.stat_result, entry: Entry
) -> bool:
    if entry.kind == "file":
        if facts.st_size != entry.size or stat.S_IMODE(facts.st_mode) != entry.mode:
            return False
        if facts.st_nlink != 1:  # one file under two names here is two where it is rebuilt
            return False
    try:
        return scan_item(top, path, item) == entry
    except (WorkspaceRefused, OSError):
        return False


def remove_tree(path: Path) -> None:
    """Remove a folder and all in it, also where folders are read-only; links are not followed."""
    if path.is_symlink() or not path.is_dir():
        return
    try:
        shutil.rmtree(path)
    except PermissionError:
        path.chmod(0o700)
        for _, folders, _, handle in os.fwalk(path):  # by handles: a path may be too long
            for name in folders:
                if stat.S_ISDIR(os.stat(name, dir_fd=handle, follow_symlinks=False).st_mode):
                    os.chmod(name, 0o700, dir_fd=handle)
        shutil.rmtree(path)
