"""The tree as it was handed in, kept as an artifact, and folders of a unit's own."""

from __future__ import annotations

import contextlib
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

from harness_site.workflows.shared.archive import OWN, pack, unpack
from ledger.context import Context

ORIGINAL = "original.tgz"


def keep_original(ctx: Context) -> None:
    """Keep the workspace as it is now."""
    with make_scratch(ctx) as scratch:
        pack(ctx.workspace, scratch / ORIGINAL)
        ctx.save_artifact(ORIGINAL, scratch / ORIGINAL, "application/gzip")


@contextlib.contextmanager
def open_original(ctx: Context) -> Iterator[Path]:
    """The tree as it was kept, in a folder of its own."""
    with make_scratch(ctx) as scratch, ctx.open_artifact(ORIGINAL) as content:
        unpack(content, scratch, OWN)
        yield scratch


@contextlib.contextmanager
def make_scratch(ctx: Context) -> Iterator[Path]:
    """A folder for this unit, beside the workspace: there a killed worker leaves nothing long."""
    with tempfile.TemporaryDirectory(prefix="scratch-", dir=ctx.workspace.parent) as folder:
        yield Path(folder)


def empty_folder(folder: Path) -> None:
    """Remove all that is in it."""
    for path in folder.iterdir():
        shutil.rmtree(path) if path.is_dir() else path.unlink()
