"""Bytes by digest: stored durably through Django's storage API, verified when read.

Under LONGWATCH_ARTIFACTS the bytes of SHA-256 `d` lie at `d[:2]/d`. A blob appears whole or not at
all: temporary name, fsync of the file, rename, fsync of the folders, and only then may a row name
it. A site that keeps its artifacts elsewhere configures the storage alias `longwatch`; bytes are
then spooled to a temporary file and handed to that storage.
"""

from __future__ import annotations

import hashlib
import os
import stat
import tempfile
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

from django.conf import settings
from django.core.exceptions import ImproperlyConfigured
from django.core.files import File
from django.core.files.storage import FileSystemStorage, Storage, storages

from ledger import blobcache
from ledger.conf import locate_var
from ledger.errors import LedgerError, PayloadTooLarge

type Source = bytes | str | Path | BinaryIO | Iterable[bytes]
"""What can be stored: bytes, text (as UTF-8), a regular file, an open binary file, chunks."""

CHUNK = 1 << 20
INCOMING = ".incoming"


class CorruptArtifact(LedgerError):
    """The stored bytes are not those that were saved, or are gone."""

    code = "artifact_corrupt"
    status = 500

    def __init__(self, digest: str, why: str, name: str = "") -> None:
        of = f"artifact {name!r} ({digest})" if name else digest
        super().__init__(f"The stored bytes of {of} {why}. Restore them from a backup.")
        self.digest, self.why = digest, why


class Stored(NamedTuple):
    """Where bytes are and how many: the key of a Blob row."""

    digest: str
    size: int


class DurableFiles(FileSystemStorage):
    """Files under opaque names; a saved file is there for good once `sync_folders` has run."""

    def __init__(self, location: str | Path) -> None:
        super().__init__(location=location)
        self._changed: set[Path] = set()

    def get_available_name(self, name: str, max_length: int | None = None) -> str:
        """The name itself: what is named by its digest is overwritten by its equal only."""
        return name

    def make_folder(self, folder: Path) -> None:
        """Make `folder` with its parents, noting each for `sync_folders`."""
        if not folder.is_dir():
            self.make_folder(folder.parent)
            folder.mkdir(mode=0o700, exist_ok=True)
            self._changed.add(folder.parent)

    def _save(self, name: str, content: Any) -> str:
        target = Path(self.path(name))
        self.make_folder(target.parent)
        os.replace(content.temporary_file_path(), target)
        self._changed.add(target.parent)
        return name

    def sync_folders(self) -> None:
        """Flush every folder that changed: the names of files outlast a power cut from here on."""
        for folder in self._changed:
            handle = os.open(folder, os.O_RDONLY)
            try:
                os.fsync(handle)
            finally:
                os.close(handle)
        self._changed.clear()


class _Spooled(File):  # type: ignore[type-arg]  # generic in the stubs only
    """A temporary file with all its bytes on disk, and what they hash to."""

    def __init__(self, path: str, stored: Stored) -> None:
        super().__init__(open(path, "rb"), path)  # noqa: SIM115  closed by the one who spooled it
        self.stored = stored

    def temporary_file_path(self) -> str:
        """Where it lies; Django's own word for a file that a storage may move."""
        return str(self.name)


def get_storage() -> Storage:
    """The storage of artifacts. Raises ImproperlyConfigured, naming the cure."""
    if "longwatch" in settings.STORAGES:
        return storages["longwatch"]
    location = str(getattr(settings, "LONGWATCH_ARTIFACTS", "") or locate_var() / "artifacts")
    if "://" in location:
        raise ImproperlyConfigured(
            f"LONGWATCH_ARTIFACTS is {location!r}; it takes a folder. For another store, configure "
            'the alias "longwatch" in STORAGES.'
        )
    return DurableFiles(location)


def name_blob(digest: str) -> str:
    """The name of a blob in the storage."""
    return f"{digest[:2]}/{digest}"


def store_blobs(
    sources: Iterable[Source],
    limit: int | None = None,
    is_marked: Callable[[str], bool] = lambda digest: False,
) -> list[Stored]:
    """Store each source, durably when this returns; equal bytes are stored once.

    `is_marked` tells a digest whose stored bytes are known to be wrong: they are stored anew.
    Streams, so memory stays at a chunk. Raises PayloadTooLarge above `limit` bytes, ValueError
    for a path that is no regular file and OSError when the store refuses.
    """
    storage = get_storage()
    stored = []
    for source in sources:
        spooled = _spool_source(storage, source, limit)
        try:
            with closing(spooled):
                digest, size = spooled.stored
                name = name_blob(digest)
                if not _keep_stored(storage, name, size) or is_marked(digest):
                    storage.save(name, spooled)
        finally:
            Path(spooled.temporary_file_path()).unlink(missing_ok=True)
        stored.append(spooled.stored)
    if isinstance(storage, DurableFiles):
        storage.sync_folders()
    return stored


def _keep_stored(storage: Storage, name: str, size: int) -> bool:
    """Whether the bytes are there already, as far as the store can tell without reading them.

    Not in a folder: a rename over equal bytes costs no more than the look, makes them young (see
    `collecting`), and heals a file whose bytes have changed before anybody read it.
    """
    if isinstance(storage, DurableFiles):
        return False
    return storage.exists(name) and storage.size(name) == size


def open_blob(digest: str) -> BinaryIO:
    """The bytes as an open binary file, all of them verified. Raises CorruptArtifact.

    Reads twice; the second time from the page cache. A reader never sees a single wrong byte,
    wherever it seeks to, which hashing along the way could not promise.
    """
    storage = get_storage()
    try:
        if not isinstance(storage, DurableFiles):
            return _open_copy(storage, digest)
        file: BinaryIO = storage.open(name_blob(digest), "rb").file  # type: ignore[assignment]
    except FileNotFoundError:
        raise CorruptArtifact(digest, "are missing") from None
    try:
        if hash_file(file) != digest:
            raise CorruptArtifact(digest, "have changed")
        file.seek(0)
    except BaseException:
        file.close()
        raise
    return file


def _open_copy(storage: Storage, digest: str) -> BinaryIO:
    """The bytes of a store that is not this host's, from the host's own cache or by way of it."""
    file = blobcache.open_cached(digest)
    if file is None:
        with storage.open(name_blob(digest), "rb") as source:
            found, file = blobcache.copy_in(source)
        if found != digest:
            file.close()
            raise CorruptArtifact(digest, "have changed")
    return file


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


def _spool_source(storage: Storage, source: Source, limit: int | None) -> _Spooled:
    folder = None
    if isinstance(storage, DurableFiles):
        # In the store's own file system, so that the rename is one.
        folder = Path(storage.location) / INCOMING
        storage.make_folder(folder)
    handle, path = tempfile.mkstemp(dir=folder)
    digest, size = hashlib.sha256(), 0
    try:
        with os.fdopen(handle, "wb") as file:
            for chunk in read_chunks(source):
                size += len(chunk)
                if limit is not None and size > limit:
                    raise PayloadTooLarge("content", f"is larger than {limit} bytes.")
                digest.update(chunk)
                file.write(chunk)
            file.flush()
            os.fsync(file.fileno())
        return _Spooled(path, Stored(digest.hexdigest(), size))
    except BaseException:
        os.unlink(path)
        raise


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
