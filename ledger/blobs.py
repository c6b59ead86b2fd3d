"""Bytes by digest: stored durably through Django's storage API, verified when read.

Under LONGWATCH_ARTIFACTS the bytes of SHA-256 `d` lie at `d[:2]/d`. A blob appears whole or not at
all: temporary name, fsync of the file, rename, fsync of the folders, and only then may a row name
it. A site that keeps its artifacts elsewhere configures the storage alias `longwatch`; bytes are
then spooled to a temporary file and handed to that storage.
"""

from __future__ import annotations

import functools
import hashlib
import os
import stat
import time
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any, BinaryIO

from ledger import blobcache
from ledger.errors import LedgerError, PayloadTooLarge
from ledger.stores import (
    INCOMING,
    BlobStore,
    DurableFiles,
    Stored,
    get_storage,
    name_blob,
)

type Source = bytes | str | Path | BinaryIO | Iterable[bytes]
"""What can be stored: bytes, text (as UTF-8), a regular file, an open binary file, chunks."""

CHUNK = 1 << 20
LARGE = 64 << 20
BELIEVED_SECONDS = 60.0
MOST_BELIEVED = 256


class CorruptArtifact(LedgerError):
    """The stored bytes are not those that were saved, or are gone."""

    code = "artifact_corrupt"
    status = 500

    def __init__(self, digest: str, why: str, name: str = "") -> None:
        of = f"artifact {name!r} ({digest})" if name else digest
        super().__init__(f"The stored bytes of {of} {why}. Restore them from a backup.")
        self.digest, self.why = digest, why


def store_blobs(
    sources: Iterable[Source],
    limit: int | None = None,
    is_marked: Callable[[str], bool] = lambda digest: False,
) -> list[Stored]:
    """Store each source, durably when this returns; equal bytes are stored once.

    `is_marked` tells a digest whose stored bytes are known to be wrong: they are stored anew.
    Streams, so memory stays at a chunk. Raises PayloadTooLarge above `limit` bytes, ValueError
    for a path that is no regular file, StoreUnavailable when the store refuses, and what reading a
    source raises.
    """
    store = get_storage()
    stored = []
    for source in sources:
        with store.spool() as spooled:
            stored.append(_fill(spooled, source, limit, store))
            store.keep_spooled(spooled, stored[-1], anew=is_marked(stored[-1].digest))
    store.settle_kept()
    return stored


def _fill(spooled: Any, source: Source, limit: int | None, store: BlobStore) -> Stored:
    digest, size = hashlib.sha256(), 0
    for chunk in read_chunks(source):
        size += len(chunk)
        if limit is not None and size > limit:
            raise PayloadTooLarge("content", f"is larger than {limit} bytes.")
        digest.update(chunk)
        with store.naming_trouble():
            spooled.write(chunk)
    with store.naming_trouble():
        spooled.flush()
    return Stored(digest.hexdigest(), size)


def note_start(source: Source) -> Callable[[], object] | None:
    """What takes a source back to where it stands now; None for one that can be read once only."""
    if isinstance(source, (bytes, bytearray, memoryview, str, Path)):
        return lambda: None
    file: Any = source
    if getattr(file, "seekable", lambda: False)():
        return functools.partial(file.seek, file.tell())
    return None


def open_blob(digest: str) -> BinaryIO:
    """The bytes as an open binary file, all of them verified. Raises CorruptArtifact for bytes that
    are wrong, StoreUnavailable where the store can't be asked.

    Reads twice; the second time from the page cache. A reader never sees a single wrong byte,
    wherever it seeks to, which hashing along the way could not promise.
    """
    store = get_storage()
    try:
        if not isinstance(store, DurableFiles):
            return _open_copy(store, digest)
        file: BinaryIO = store.fetch(digest)
    except FileNotFoundError:
        raise CorruptArtifact(digest, "are missing") from None
    try:
        with store.naming_trouble():
            _verify(file, digest)
            file.seek(0)
    except BaseException:
        file.close()
        raise
    return file


type Facts = tuple[int, ...]

_verified: OrderedDict[str, tuple[Facts, float]] = OrderedDict()
"""Large files that were read whole and right of late: what they were then, and until when that is
believed. So the ranges of one download cost one look at the whole."""


def _open_copy(store: BlobStore, digest: str) -> BinaryIO:
    """The bytes of a store that is not this host's, from the host's own cache or by way of it."""
    with store.naming_trouble():
        file = blobcache.open_cached(digest)
        if file is None:
            with closing(store.fetch(digest)) as source:
                found, file = blobcache.copy_in(source)
            if found != digest:
                file.close()
                raise CorruptArtifact(digest, "have changed")
    return file


def _verify(file: BinaryIO, digest: str) -> None:
    seen = _describe(file)
    known, until = _verified.get(digest, (None, 0.0))
    if seen is not None and seen == known and time.monotonic() < until:
        return
    if hash_file(file) != digest:
        raise CorruptArtifact(digest, "have changed")
    if seen is not None:
        _verified[digest] = (seen, time.monotonic() + BELIEVED_SECONDS)
        _verified.move_to_end(digest)
        if len(_verified) > MOST_BELIEVED:
            _verified.popitem(last=False)


def _describe(file: BinaryIO) -> Facts | None:
    """What changes with any write to a file; None for one that is hashed as fast as its file system
    can tell two times apart."""
    facts = os.fstat(file.fileno())
    if facts.st_size < LARGE:
        return None
    return facts.st_dev, facts.st_ino, facts.st_size, facts.st_mtime_ns, facts.st_ctime_ns


def find_fault(digest: str) -> str:
    """What is wrong with the bytes in the store itself, whatever is kept of them elsewhere; "" if
    nothing is. Raises StoreUnavailable."""
    store, found = get_storage(), hashlib.sha256()
    try:
        with closing(store.fetch(digest)) as file, store.naming_trouble():
            while chunk := file.read(CHUNK):
                found.update(chunk)
    except FileNotFoundError:
        return "are missing"
    return "" if found.hexdigest() == digest else "have changed"


def hash_file(file: BinaryIO) -> str:
    """SHA-256 (hex) of what is left to read of an open binary file."""
    return hashlib.file_digest(file, "sha256").hexdigest()  # type: ignore[arg-type]


def open_regular(path: Path) -> BinaryIO:
    """Open a regular file for reading, nothing else: links, FIFOs, devices raise ValueError."""
    try:
        # Non-blocking: opening a FIFO would otherwise wait for somebody to write into it.
        handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as error:
        if path.is_symlink():
            raise ValueError(f"{path} is a symbolic link, no regular file") from error
        raise
    if not stat.S_ISREG(os.fstat(handle).st_mode):
        os.close(handle)
        raise ValueError(f"{path} is no regular file")
    return os.fdopen(handle, "rb")


def read_chunks(source: Source) -> Iterator[bytes]:
    """The bytes of a source in pieces."""
    if isinstance(source, str):
        source = source.encode()
    if isinstance(source, (bytes, bytearray, memoryview)):
        yield bytes(source)
    elif isinstance(source, Path):
        with open_regular(source) as file:
            yield from iter(lambda: file.read(CHUNK), b"")
    elif hasattr(source, "read"):
        while chunk := source.read(CHUNK):
            if isinstance(chunk, str):
                raise TypeError("the file is open in text mode; open it in binary mode ('rb')")
            yield chunk
    else:
        yield from source


__all__ = [
    "CHUNK", "INCOMING", "CorruptArtifact", "DurableFiles", "Source", "Stored", "find_fault",
    "get_storage", "hash_file", "name_blob", "note_start", "open_blob", "open_regular",
    "read_chunks", "store_blobs",
]  # fmt: skip
