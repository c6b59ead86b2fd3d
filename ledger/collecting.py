"""Remove files of the artifact store that nothing names: of deleted tasks, of writes that died.

Mark and sweep. What lives is what an artifact's row names, what the manifest of any workspace
names, and the manifests. A file that is named by nobody goes once it is older than a grace; a
writer that meets such a file makes it young again before it counts on it (`blobs.store_blobs`).
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from django.db import IntegrityError
from django.db.models import ProtectedError

from ledger import blobs, sql
from ledger.errors import LedgerError
from ledger.models import Artifact, Blob, StepOutput, Task, UploadPart
from ledger.workspaces import read_manifest

GRACE = 3_600.0
"""Seconds; from storing bytes to the row that names them it is far less."""

GOING = ".going"
"""Suffix of a file that is looked at for the last time."""


class NotCollectable(LedgerError):
    """The store is none whose files can be told apart by age."""

    code = "not_collectable"
    status = 409


class Collected(NamedTuple):
    """What was removed, and what is unnamed but too young."""

    files: int
    size: int
    young: int


def collect_files(grace: float = GRACE) -> Collected:
    """Remove the unnamed files that are older than `grace` seconds, with their rows.

    Raises NotCollectable for another store than a folder, and CorruptArtifact when a manifest can't
    be read: what it names is not known then, and nothing is removed.
    """
    storage = blobs.get_storage()
    if not isinstance(storage, blobs.DurableFiles):
        raise NotCollectable("Artifacts are not in a folder; use the rules of that store.")
    root = Path(storage.location)
    oldest = read_store_time(root) - grace  # first: what is stored from here on is young
    live = mark_live()
    files = size = young = 0
    for path in list_files(root):
        if path.name in live:
            continue
        removed = remove_file(path, oldest)
        young += removed is None
        if removed is not None:
            files, size = files + 1, size + removed
    return Collected(files, size, young)


def mark_live() -> set[str]:
    """The digests that something names. All of them are in memory: 100 MB for a million."""
    live = {
        digest for digest in Artifact.objects.values_list("blob_id", flat=True).distinct() if digest
    }
    live |= set(UploadPart.objects.values_list("blob_id", flat=True))
    trees: set[str] = set()
    for table in (Task, StepOutput):
        named = table._default_manager.exclude(workspace="").order_by()
        trees |= set(named.values_list("workspace", flat=True).distinct())
    for tree in trees:
        live |= {entry.digest for entry in read_manifest(tree).values() if entry.digest}
    return live | trees


def list_files(root: Path) -> Iterator[Path]:
    """Every blob of the store, and what was left of writes that died."""
    for folder in sorted(root.iterdir()):
        if folder.is_dir() and (len(folder.name) == 2 or folder.name == blobs.INCOMING):
            for path in sorted(folder.iterdir()):
                whole = path.with_name(path.name.removesuffix(GOING))
                if whole != path and path.is_file():  # of a collector that was killed
                    os.replace(path, whole)
                if whole.is_file():
                    yield whole


def remove_file(path: Path, oldest: float) -> int | None:
    """Remove an unnamed file and its row; returns its bytes, or None when it stays."""
    try:
        size = path.stat().st_size
        if path.stat().st_mtime >= oldest:
            return None
        going = path.with_name(path.name + GOING)
        os.replace(path, going)
    except FileNotFoundError:
        return None
    # From here on a writer stores the bytes anew. One that had made the file young by then counts
    # on it, and one that has stored them since has come to count on the row.
    if going.stat().st_mtime >= oldest or not delete_row(path):
        os.replace(going, path)
        return None
    going.unlink()
    return size


def delete_row(path: Path) -> bool:
    """Take the blob's row away; False when somebody names it, or has stored its bytes again."""
    try:
        with sql.atomic():
            Blob.objects.filter(digest=path.name).delete()
            if path.exists():
                raise IntegrityError
    except (ProtectedError, IntegrityError):
        return False
    return True


def read_store_time(root: Path) -> float:
    """The time of a file that is written now, by the clock that dates all of them."""
    folder = root / blobs.INCOMING
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    with tempfile.NamedTemporaryFile(dir=folder) as file:
        return os.fstat(file.fileno()).st_mtime
