"""The folder of a claimed task: rebuilt before a unit sees it, stored when the unit is over."""

from __future__ import annotations

import errno
import logging
import os
from collections.abc import Callable
from pathlib import Path

from ledger import blobcache, blobs, sql
from ledger.artifacts import write_blob_rows
from ledger.errors import StoreUnavailable
from ledger.filerules import PLAIN, Workspace
from ledger.sql import Claimed
from ledger.workspaces import folders, preparing
from ledger.workspaces.restoring import restore_tree
from ledger.workspaces.scanning import measure_tree, scan_tree
from ledger.workspaces.trees import (
    Tree,
    WorkspaceRefused,
    read_manifest,
    total_size,
    write_manifest,
)

FULL = {errno.ENOSPC, errno.EDQUOT}


class TaskFolder:
    """The files of a claimed task, on this worker, for one unit."""

    def __init__(
        self,
        claimed: Claimed,
        rules: Workspace = PLAIN,
        log: logging.Logger | None = None,
        check: Callable[[], None] = lambda: None,
    ) -> None:
        """Rebuild it, and set it up where that is due; the command's output goes to `log`, and
        `check` may end it. Raises CorruptArtifact, SetupFailed, NoRoom, RetryLater."""
        self._claimed = claimed
        self._rules = rules
        self._check = check
        promised = read_manifest(claimed.workspace) if claimed.workspace else {}
        self._known = _leave_ignored(promised, rules)
        self._digest = claimed.workspace if len(self._known) == len(promised) else ""
        self._folder = folders.take_folder(claimed.task_id)
        self.path: Path = self._folder.path
        """The folder, equal to the last checkpoint's; it may lie elsewhere in the next unit."""
        setup = self._folder.setup
        wanted = total_size(self._known)
        if wanted > self._folder.size or not self.path.is_dir():
            folders.make_room(self._folder, wanted)
        # Until this unit is accepted nothing is known of what is ignored.
        self._folder.record(max(wanted, self._folder.size), "")
        self._restore()
        self._setup = preparing.name_setup(rules, self._known)
        if self._setup and self._setup != setup:
            preparing.set_up(self.path, rules, self._setup, log or logging.getLogger(), check)
            self._restore()  # what it did beside its outputs would be missing where it is not run

    def snapshot(self) -> str:
        """Store what changed and return the digest of the tree's manifest.

        Raises WorkspaceRefused for what can't be kept and LeaseLost.
        """
        tree = scan_tree(self.path, self._rules)
        if tree != self._known or not self._digest:
            self._digest = self._store(tree)
        size = measure_tree(self.path) if self._rules.hides_any else total_size(tree)
        self._folder.record(size, self._setup)
        return self._digest

    def _store(self, tree: Tree) -> str:
        have = {entry.digest for entry in self._known.values()}
        changed = [
            path
            for path, entry in tree.items()
            if entry.kind == "file" and entry.digest not in have
        ]
        try:
            stored = blobs.store_blobs(self.path / path for path in changed)
        except (ValueError, FileNotFoundError) as error:
            for path in changed:
                if not os.path.isfile(self.path / path) or os.path.islink(self.path / path):
                    why = "changed while it was stored; end what writes to it"
                    raise WorkspaceRefused(path, why) from error
            raise
        for path, one in zip(changed, stored, strict=True):
            # What was stored counts: a file that something still writes to may have changed.
            tree[path] = tree[path]._replace(digest=one.digest, size=one.size)
        manifest = blobs.store_blobs([write_manifest(tree)])[0]
        with sql.hold_task(self._claimed.lease, "workspace"):
            write_blob_rows([*dict.fromkeys(stored), manifest])
        self._known = tree
        return manifest.digest

    def _restore(self) -> None:
        try:
            restore_tree(self._known, self.path, self._rules, tick=self._check)
        except (OSError, StoreUnavailable) as error:
            if not _is_full(error):
                raise
            folders.drop_idle(0)
            try:
                with blobcache.keeping_nothing():
                    restore_tree(self._known, self.path, self._rules, tick=self._check)
            except (OSError, StoreUnavailable) as again:
                if not _is_full(again):
                    raise
                raise folders.NoRoom(
                    f"The task's files, {total_size(self._known):,} bytes, do not fit on the disk "
                    f"of {self.path.parent.parent}. Make room there."
                ) from again


def _is_full(error: BaseException) -> bool:
    """Whether this host's disk is, met by us or by a store on its way here."""
    cause = error.__cause__ if isinstance(error, StoreUnavailable) else error
    return isinstance(cause, OSError) and cause.errno in FULL


def _leave_ignored(tree: Tree, rules: Workspace) -> Tree:
    """What has come to be ignored since it was stored is promised no more."""
    if not rules.hides_any:
        return tree
    kept: Tree = {}
    for path, entry in tree.items():
        parent = path.rpartition("/")[0]
        if (not parent or parent in kept) and not rules.ignores(path, entry.kind == "dir"):
            kept[path] = entry
    return kept
