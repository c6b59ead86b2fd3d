"""For tests of workspaces: folders of their own, and a new process where one is meant."""

from __future__ import annotations

import contextlib
import os
import stat
from pathlib import Path
from typing import Any

from ledger.sql import Claimed
from ledger.workspaces import TaskFolder, folders


def forget_home() -> None:
    """As in a new process: it has no folder yet, and the old one's locks are free."""
    folders.release_folder()
    if folders._home is not None:
        with contextlib.suppress(OSError):
            os.close(folders._home[2])
    folders._home = None


def move_on(held: Claimed, workspace: TaskFolder) -> None:
    """What an accepted checkpoint leaves on the task."""
    held.workspace = workspace.snapshot()


def describe(root: Path) -> dict[str, Any]:
    """Everything below `root`, read without the code under test."""
    found: dict[str, Any] = {}
    for folder, below, files in os.walk(root):
        for name in (*below, *files):
            path = Path(folder, name)
            key = str(path.relative_to(root))
            if path.is_symlink():
                found[key] = ("link", os.readlink(path))
            elif path.is_dir():
                found[key] = ("dir", stat.S_IMODE(path.stat().st_mode))
            else:
                found[key] = ("file", stat.S_IMODE(path.stat().st_mode), path.read_bytes())
    return found
