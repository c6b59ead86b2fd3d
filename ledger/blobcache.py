"""Bytes by digest on this host's own disk: at hand, never counted on.

A copy of what lies in a store far away, and of what set-up commands made. What is opened is hashed
first, so a half-written, a damaged or another file under a digest's name is a miss and goes. Files
appear by a rename, without fsync: after a power cut they may be wrong, and are then fetched again.

Processes share it without a lock: a file that is removed under a reader stays open for it. What
was used longest ago goes when it is over `LONGWATCH_BLOB_CACHE_BYTES`.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import IO, BinaryIO, Final

from ledger.conf import load, locate_var

CHUNK: Final = 1 << 20
INCOMING: Final = ".incoming"
DRAFT_SECONDS: Final = 3_600.0
"""A copy that is unfinished for so long is of a process that died."""

LOOKS: Final = 16
"""The files are counted anew when a process has added this part of the bound; between two counts
it can be passed by that much for each process."""

_keeping = True
_unseen = -1
"""Bytes that this process added since the files were last counted; -1: never counted."""


class CacheGone(OSError):
    """The cache's folder went while it was used. No FileNotFoundError, which says of a store that
    it lacks the bytes."""


def open_cached(digest: str) -> BinaryIO | None:
    """The bytes as an open file at its start, verified; None where they are not here."""
    path = _locate(digest)
    try:
        file = path.open("rb")
    except OSError:
        return None
    try:
        if hashlib.file_digest(file, "sha256").hexdigest() == digest:
            file.seek(0)
            os.utime(file.fileno())
            return file
        path.unlink(missing_ok=True)
    except OSError:  # a page that can't be read, or a cache that may not be written
        pass
    except BaseException:
        file.close()
        raise
    file.close()
    return None


def copy_in(source: IO[bytes]) -> tuple[str, BinaryIO]:
    """Keep what is left to read of `source`; its digest, and the copy as an open file at its start.

    What is over a quarter of the bound is copied and not kept. Raises OSError; a FileNotFoundError
    is the source's own.
    """
    most = load().blob_cache_bytes if _keeping else 0
    handle, name = _make_draft()
    file = os.fdopen(handle, "w+b")
    try:
        digest = hashlib.sha256()
        while chunk := source.read(CHUNK):
            digest.update(chunk)
            file.write(chunk)
        file.flush()
        size = file.tell()
        file.seek(0)
        if size <= most // 4:
            with contextlib.suppress(FileNotFoundError):  # cleaned beside us; the copy is open
                target = _locate(digest.hexdigest())
                target.parent.mkdir(mode=0o700, exist_ok=True)
                os.replace(name, target)
            _bound_cache(size, most)
    except BaseException:
        file.close()
        raise
    finally:
        Path(name).unlink(missing_ok=True)
    return digest.hexdigest(), file


def _make_draft() -> tuple[int, str]:
    folder = _locate_top() / INCOMING
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        return tempfile.mkstemp(dir=folder)
    except FileNotFoundError as error:
        raise CacheGone(error.errno, error.strerror, str(folder)) from error


@contextlib.contextmanager
def keeping_nothing() -> Iterator[None]:
    """Within the block copies are only handed out: the disk is full."""
    global _keeping
    _keeping = False
    trim_cache(0)
    try:
        yield
    finally:
        _keeping = True


def _bound_cache(added: int, most: int) -> None:
    global _unseen
    known = _unseen >= 0
    _unseen += added
    if not known or _unseen > most // LOOKS:
        trim_cache(most)


def trim_cache(most: int) -> int:
    """Remove what was used longest ago until `most` bytes are left, and copies that died; returns
    the bytes that are left."""
    global _unseen
    _unseen = 0
    found: list[tuple[float, int, str]] = []
    for folder in _list_folders():
        if folder.name == INCOMING:
            _remove_drafts(folder)
        else:
            found += _list_files(folder)
    left = sum(size for _, size, _ in found)
    # Somewhat below it, or the next file would have all of them counted again.
    goal = most - most // LOOKS
    if left > most:
        for _, size, path in sorted(found):
            if left <= goal:
                break
            with contextlib.suppress(OSError):
                os.unlink(path)
            left -= size
    return left


def _remove_drafts(folder: Path) -> None:
    try:
        with tempfile.TemporaryFile(dir=folder) as file:
            now = os.fstat(file.fileno()).st_mtime  # by the clock that dates all of them
    except OSError:  # gone meanwhile, or the disk is full: files that count go first
        return
    for changed, _, path in _list_files(folder):
        if changed < now - DRAFT_SECONDS:
            Path(path).unlink(missing_ok=True)


def _list_folders() -> list[Path]:
    try:
        folders = list(_locate_top().iterdir())
    except FileNotFoundError:
        return []
    return [folder for folder in folders if len(folder.name) == 2 or folder.name == INCOMING]


def _list_files(folder: Path) -> Iterator[tuple[float, int, str]]:
    with contextlib.suppress(OSError), os.scandir(folder) as items:
        for item in items:
            with contextlib.suppress(OSError):
                facts = item.stat(follow_symlinks=False)
                yield facts.st_mtime, facts.st_size, item.path


def _locate_top() -> Path:
    return locate_var() / "blob-cache"


def _locate(digest: str) -> Path:
    return _locate_top() / digest[:2] / digest
