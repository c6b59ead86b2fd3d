"""Remove bytes of the artifact store that nothing names: of deleted tasks, of writes that died.

Mark and sweep. What lives is what an artifact's row names, what the manifest of any workspace
names, and the manifests. Bytes that nobody names go once they and their row are older than a grace;
a writer stores them anew and makes the row young before it counts on it (`blobs.store_blobs`,
`artifacts.write_blob_rows`). One collector at a time.
"""

from __future__ import annotations

import datetime as dt
import fcntl
import itertools
import os
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple

from django.db import IntegrityError, connection
from django.db.models import ProtectedError

from ledger import blobs, clock, corruption, sql
from ledger.blobs import CorruptArtifact
from ledger.conf import locate_var
from ledger.errors import LedgerError
from ledger.models import Artifact, Blob, StepOutput, Task, UploadPart
from ledger.stores import GOING, ForeignStore
from ledger.workspaces import read_manifest

GRACE = 86_400.0
"""Seconds. From storing a first byte to the row that names the last one of a large tree may be a
while."""

ALONE = 0x6C77636F
"""The advisory lock of whoever collects: "lwco"."""


class NotCollectable(LedgerError):
    """The store is none whose files can be told apart by age, or somebody else is at it."""

    code = "not_collectable"
    status = 409


class Collected(NamedTuple):
    """What was removed, and what is unnamed but too young."""

    files: int
    size: int
    young: int


def collect_files(grace: float = GRACE) -> Collected:
    """Remove what is unnamed and older than `grace` seconds, with its rows.

    Raises NotCollectable for a store of the site's own or beside another collector, and
    CorruptArtifact when a manifest can't be read: what it names is not known then, and nothing is
    removed. An alert names its task and the cure.
    """
    store = blobs.get_storage()
    if isinstance(store, ForeignStore):
        raise NotCollectable(f"Artifacts are kept by {store.place}; use the rules of that store.")
    with being_alone(), store.naming_trouble():
        if isinstance(store, blobs.DurableFiles):
            return _collect_folder(Path(store.location), grace)
        return _collect_bucket(store, grace)


@contextmanager
def being_alone() -> Iterator[None]:
    """The only collector of this database, and on this host. Raises NotCollectable.

    That saves work and no more: the database's lock ends with its session, and then two may be at
    it until the first one asks the database again. Each removes only what is old and what the row
    lets go under its lock, and a file that one of them looks at may be put back by the other.
    """
    busy = NotCollectable("Somebody collects already.")
    locate_var().mkdir(mode=0o700, parents=True, exist_ok=True)
    with (locate_var() / "collect.lock").open("ab") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise busy from None
        if connection.vendor != "postgresql":
            yield
            return
        with connection.cursor() as cursor:
            cursor.execute("SELECT pg_try_advisory_lock(%s)", [ALONE])
            if not cursor.fetchone()[0]:
                raise busy
        try:
            yield
        finally:
            with connection.cursor() as cursor:
                cursor.execute("SELECT pg_advisory_unlock(%s)", [ALONE])


def _collect_folder(root: Path, grace: float) -> Collected:
    oldest = read_store_time(root) - grace  # first: what is stored from here on is young
    live = mark_live()
    files = size = young = 0
    for path in list_files(root):
        if path.name in live:
            continue
        removed = remove_file(path, oldest, grace)
        young += removed is None
        if removed is not None:
            files, size = files + 1, size + removed
    return Collected(files, size, young)


def _collect_bucket(store: Any, grace: float) -> Collected:
    """A key is never written twice, so one that is old here is old when its delete arrives."""
    oldest = store.read_time() - dt.timedelta(seconds=grace)
    live = mark_live()
    files = size = young = 0
    for digest, found in itertools.groupby(store.list_keys(), lambda key: key.digest):
        keys = sorted(found, key=lambda key: (key.modified, key.name))
        going = [key for key in keys if key.modified < oldest]
        if len(going) == len(keys) and (digest in live or not delete_row(digest, grace)):
            going.pop()  # the newest is the one that is read
        young += digest not in live and len(keys) - len(going)
        for key in going:
            store.remove_key(key.name)
            files, size = files + 1, size + key.size
    store.abort_uploads(oldest)
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
    wrong: list[CorruptArtifact] = []
    for tree in trees:
        try:
            live |= {entry.digest for entry in read_manifest(tree).values() if entry.digest}
        except CorruptArtifact as error:  # told of, each of them
            wrong.append(error)
    if wrong:
        raise wrong[0]
    marked = Blob.objects.filter(corrupt_at__isnull=False).values_list("digest", flat=True)
    corruption.note_sound(trees.intersection(marked))
    return live | trees


def list_files(root: Path) -> Iterator[Path]:
    """Every blob of the store, and what was left of writes that died."""
    for folder in sorted(root.iterdir()):
        if folder.is_dir() and (len(folder.name) == 2 or folder.name == blobs.INCOMING):
            for path in sorted(folder.iterdir()):
                whole = path.with_name(path.name.removesuffix(GOING))
                if whole != path and path.is_file():  # of a collector that was killed
                    put_back(path, whole)
                if whole.is_file():
                    yield whole


def remove_file(path: Path, oldest: float, grace: float) -> int | None:
    """Remove an unnamed file and its row; returns its bytes, or None when it stays."""
    try:
        size = path.stat().st_size
        if path.stat().st_mtime >= oldest:
            return None
        going = path.with_name(path.name + GOING)
        os.replace(path, going)
    except FileNotFoundError:
        return None
    # From here on a writer stores the bytes anew. One that had stored them by then counts on this
    # file, and one that has stored them since has come to count on the row.
    try:
        is_young = going.stat().st_mtime >= oldest
    except FileNotFoundError:  # put back by another collector, see `being_alone`
        return None
    if is_young or not delete_row(path.name, grace, path.exists):
        put_back(going, path)
        return None
    going.unlink(missing_ok=True)
    return size


def put_back(going: Path, path: Path) -> None:
    """As young as what a writer may have stored there meanwhile, which it takes the place of."""
    with suppress(FileNotFoundError):  # another collector has done it
        os.utime(going)
        os.replace(going, path)


def delete_row(digest: str, grace: float, is_back: Callable[[], bool] = lambda: False) -> bool:
    """Take the blob's row away; False when somebody names it, or has stored its bytes again."""
    row = Blob.objects.filter(digest=digest)
    try:
        with sql.atomic():
            # Held, so that who stores the bytes again waits, and then makes a row of its own.
            if row.select_for_update().first() is not None:
                if not row.filter(created_at__lt=clock.now(-grace)).exists():
                    return False
                row.delete()
            if is_back():
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
