"""A task's files as one of its units left them: found, compared, written to a folder."""

from __future__ import annotations

import contextlib
import fcntl
import glob
import os
import secrets
from collections.abc import Callable
from pathlib import Path
from uuid import UUID

from ledger.errors import InvalidInput, LedgerError, NotFound
from ledger.models import StepOutput, Task
from ledger.workspaces.restoring import remove_tree, restore_tree
from ledger.workspaces.trees import Tree, read_manifest


class NotEmpty(LedgerError):
    """The folder that was named has something in it, or is none."""

    code = "not_empty"
    status = 409


def find_workspace(task_id: UUID, unit: str | None = None) -> str:
    """The digest of the manifest that the unit left: by the `seq` of its output, by `step:turn`, or
    by `step` its latest; without one, what the task's next unit would get.

    Raises NotFound, and InvalidInput for a unit that kept no files, naming one that did.
    """
    task = Task.objects.filter(pk=task_id).values("workspace").first()
    if task is None:
        raise NotFound("task", task_id)
    if unit is None:
        if not task["workspace"]:
            raise InvalidInput("at", "no unit of the task has used its workspace yet.")
        return str(task["workspace"])
    rows = StepOutput.objects.filter(task=task_id)
    step, _, turn = unit.partition(":")
    if unit.isdecimal():
        chosen = rows.filter(seq=int(unit))
    else:
        chosen = rows.filter(step_name=step, superseded_in_round__isnull=True)
        chosen = chosen.filter(turn=int(turn)) if turn.isdecimal() else chosen
    row = chosen.order_by("-seq").values("seq", "workspace").first()
    if row is None or (turn and not turn.isdecimal()):
        shape = "a unit is the seq of an output, or STEP:TURN of one that no restart has superseded"
        raise InvalidInput("at", f"the task has no unit {unit!r}; {shape}.")
    if not row["workspace"]:
        before = rows.filter(seq__lt=row["seq"]).exclude(workspace="").order_by("-seq").first()
        cure = f"; the last before it that did is {before.seq}" if before else ""
        raise InvalidInput("at", f"unit {unit} did not use the workspace{cure}.")
    return str(row["workspace"])


def compare_trees(old: Tree, new: Tree) -> list[tuple[str, str]]:
    """(`A` added, `D` deleted, `M` changed, path) in order of the paths."""
    return [
        ("A" if path not in old else "D" if path not in new else "M", path)
        for path in sorted(old.keys() | new.keys())
        if old.get(path) != new.get(path)
    ]


def check_out(digest: str, target: Path, tick: Callable[[], None] = lambda: None) -> Tree:
    """Write the tree of a manifest to `target`, which must be empty or not exist yet.

    It is there whole or not at all: built beside it and renamed. `tick` is called for each file.
    Raises NotEmpty, CorruptArtifact and OSError.
    """
    target = target.absolute()
    mode = _check_target(target)
    tree = read_manifest(digest)
    target.parent.mkdir(parents=True, exist_ok=True)
    _remove_drafts(target)
    draft = target.parent / f".{target.name}.checkout-{secrets.token_hex(4)}"
    draft.mkdir(mode=0o700)
    handle = os.open(draft, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
        restore_tree(tree, draft, tick=tick)
        draft.chmod(mode)
        try:
            draft.rename(target)
        except OSError as error:  # filled meanwhile, or where a file system is mounted
            raise NotEmpty(f"{target} can't be replaced: {error.strerror}.") from error
    except BaseException:
        remove_tree(draft)
        raise
    finally:
        os.close(handle)
    return tree


def _check_target(target: Path) -> int:
    """The mode that the folder has, or will have."""
    if target.is_symlink() or (target.exists() and not target.is_dir()):
        raise NotEmpty(f"{target} is no folder. Name a new or an empty one.")
    if target.exists():
        if any(target.iterdir()):
            raise NotEmpty(f"{target} is not empty. Name a new or an empty folder.")
        return target.stat().st_mode & 0o777
    mask = os.umask(0)
    os.umask(mask)
    return 0o777 & ~mask


def _remove_drafts(target: Path) -> None:
    """Remove what killed checkouts to the same folder have left: those that nobody holds."""
    for draft in target.parent.glob(f".{glob.escape(target.name)}.checkout-*"):
        with contextlib.suppress(OSError):
            handle = os.open(draft, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                remove_tree(draft)
            finally:
                os.close(handle)
