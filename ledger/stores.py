"""Where blobs lie: a folder, a bucket (`s3`), or a storage that the site configures.

Each is a Django storage that knows four things more: to spool, to keep what was spooled under its
digest, whole or not at all, to fetch it, and to say in words what is wrong with it.
"""

from __future__ import annotations

import errno
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple, Protocol

from django.conf import settings
from django.core.files import File
from django.core.files.base import ContentFile
from django.core.files.storage import FileSystemStorage, Storage, storages
from django.db import connection

from ledger.conf import locate_var
from ledger.errors import LedgerError, StoreUnavailable

INCOMING = ".incoming"
"""The folder of what is being written; its presence says that the store is there."""

GOING = ".going"
"""Suffix of a file that a collector looks at for the last time; it may well put it back."""

PROBE = b"Longwatch looks whether bytes can be kept here."
FREE = "Free some disk, or remove what nothing names: `manage.py collect`."
MOUNT = "Mount it, or mend LONGWATCH_ARTIFACTS."

_TROUBLES = {
    errno.ENOSPC: ("is full", FREE),
    errno.EDQUOT: ("is full", FREE),
    errno.EROFS: ("is read-only", "Mount it for writing."),
    errno.EACCES: ("refuses us", "Give its folder to the user of web and workers."),
    errno.EPERM: ("refuses us", "Give its folder to the user of web and workers."),
    errno.EFBIG: ("takes no file of this size", "Raise the limit of file sizes (`ulimit -f`)."),
    errno.ENOENT: ("is gone", MOUNT),
    errno.ENOTDIR: ("is gone", MOUNT),
    errno.ENOTCONN: ("is gone", MOUNT),
    errno.ESTALE: ("is gone", MOUNT),
}


class Stored(NamedTuple):
    """Where bytes are and how many: the key of a Blob row."""

    digest: str
    size: int


class BlobStore(Protocol):
    """What `blobs` asks of a store."""

    place: str
    """What people know it by, without credentials."""

    def naming_trouble(self) -> Any:
        """A context in which the store's own errors become StoreUnavailable."""

    def spool(self) -> Any:
        """An empty file to write to and to read back, gone with the end of the context."""

    def keep_spooled(self, spooled: Any, stored: Stored, *, anew: bool = False) -> None:
        """Keep the bytes as those of a digest, and make them young; `anew`: what lies there under
        it is wrong."""

    def settle_kept(self) -> None:
        """What was kept outlasts a power cut when this returns."""

    def fetch(self, digest: str) -> Any:
        """A file to read the bytes from, once and not verified. Raises FileNotFoundError where the
        store does not have them, and StoreUnavailable."""

    def probe(self) -> None:
        """Write and read a few bytes, and leave nothing. Raises StoreUnavailable."""


def locate_store() -> str:
    """What LONGWATCH_ARTIFACTS says: a folder, or an address."""
    return str(getattr(settings, "LONGWATCH_ARTIFACTS", "") or locate_var() / "artifacts")


def name_blob(digest: str) -> str:
    """The name of a blob in a folder."""
    return f"{digest[:2]}/{digest}"


@contextmanager
def spool_unnamed() -> Iterator[Any]:
    """A file that no kill can leave behind, below LONGWATCH_VAR: /tmp may be memory."""
    folder = locate_var() / "spool"
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        file = tempfile.TemporaryFile(dir=folder)  # noqa: SIM115
    except OSError as error:
        raise explain_spool_error(error) from error
    try:
        yield file
    finally:
        with suppress(OSError):  # a full disk says so once more
            file.close()


def explain_spool_error(error: OSError) -> StoreUnavailable:
    """What is wrong with the disk that bytes pass on their way to another store."""
    return explain_os_error(f"({locate_var()}, on the way to it)", error)


def explain_os_error(place: str, error: OSError) -> StoreUnavailable:
    """What an error of the file system says of the store, and the cure."""
    what, cure = _TROUBLES.get(error.errno or 0, (f"fails: {error.strerror or error}", MOUNT))
    return StoreUnavailable(place, what, cure)


class DurableFiles(FileSystemStorage):
    """Files under opaque names; what was kept is there for good once `settle_kept` has run."""

    def __init__(self, location: str | Path) -> None:
        super().__init__(location=location)
        self.place = str(location)
        self._changed: set[Path] = set()

    def get_available_name(self, name: str, max_length: int | None = None) -> str:
        """The name itself: what is named by its digest is overwritten by its equal only."""
        return name

    def _save(self, name: str, content: Any) -> str:
        target = Path(self.path(name))
        self.make_folder(target.parent)
        os.replace(content.temporary_file_path(), target)
        self._changed.add(target.parent)
        return name

    def make_folder(self, folder: Path) -> None:
        """Make `folder` with its parents, noting each for `settle_kept`."""
        if not folder.is_dir():
            self.make_folder(folder.parent)
            folder.mkdir(mode=0o700, exist_ok=True)
            self._changed.add(folder.parent)

    @contextmanager
    def naming_trouble(self) -> Iterator[None]:
        """OSError becomes StoreUnavailable."""
        try:
            yield
        except OSError as error:
            raise explain_os_error(self.place, error) from error

    @contextmanager
    def spool(self) -> Iterator[Any]:
        """In the store's own file system, so that the rename is one."""
        with self.naming_trouble():
            file = tempfile.NamedTemporaryFile(dir=self.open_incoming(), delete=False)  # noqa: SIM115
        try:
            yield file
        finally:
            with suppress(OSError):  # a full disk says so once more
                file.close()
            with suppress(OSError):  # kept, or else the collector's to remove
                os.unlink(file.name)

    def open_incoming(self) -> Path:
        """The folder of what is being written. Raises StoreUnavailable where it is missing, though
        the ledger names bytes: an empty folder is where a disk was, and no place to write to."""
        folder = Path(self.location) / INCOMING
        if not folder.is_dir():
            with connection.cursor() as cursor:
                cursor.execute("SELECT 1 FROM longwatch_blob LIMIT 1")
                if cursor.fetchone():
                    raise self._describe_empty()
            self.make_folder(folder)
        return folder

    def _describe_empty(self) -> StoreUnavailable:
        cure = f"{MOUNT} If it is the right folder after all, make the folder {INCOMING} in it."
        return StoreUnavailable(self.place, "is gone, or empty", cure)

    def keep_spooled(self, spooled: Any, stored: Stored, *, anew: bool = False) -> None:
        """Always renamed over what is there: that costs no more than a look, makes the bytes young
        (see `collecting`), and heals those that have changed before anybody read them."""
        with self.naming_trouble():
            spooled.flush()
            os.fsync(spooled.fileno())
            self.save(name_blob(stored.digest), _Movable(spooled))

    def settle_kept(self) -> None:
        """Flush every folder that changed: the names of files outlast a power cut from here on."""
        with self.naming_trouble():
            while self._changed:
                handle = os.open(folder := next(iter(self._changed)), os.O_RDONLY)
                try:
                    os.fsync(handle)
                finally:
                    os.close(handle)
                self._changed.discard(folder)

    def fetch(self, digest: str) -> BinaryIO:
        """The open file."""
        path = self.path(name_blob(digest))
        try:
            for name in 2 * (path, path + GOING):
                with suppress(FileNotFoundError):
                    return open(name, "rb")
            return open(path, "rb")  # put back meanwhile
        except FileNotFoundError:
            if (Path(self.location) / INCOMING).is_dir():
                raise
            raise self._describe_empty() from None
        except OSError as error:
            raise explain_os_error(self.place, error) from error

    def probe(self) -> None:
        """A file on its way, which goes no further."""
        with self.spool() as file, self.naming_trouble():
            file.write(PROBE)
            file.flush()
            os.fsync(file.fileno())


class _Movable(File):  # type: ignore[type-arg]  # generic in the stubs only
    """A file that a storage may move; `temporary_file_path` is Django's own word for that."""

    def temporary_file_path(self) -> str:
        """Where it lies."""
        return str(self.name)


class ForeignStore:
    """A storage that the site has configured under the alias `longwatch`."""

    def __init__(self, storage: Storage) -> None:
        self.storage = storage
        self.place = f"{type(storage).__name__} (STORAGES)"

    @contextmanager
    def naming_trouble(self) -> Iterator[None]:
        """Whatever it raises: its errors are its own."""
        try:
            yield
        except (FileNotFoundError, LedgerError):
            raise
        except OSError as error:
            raise explain_spool_error(error) from error
        except Exception as error:
            what = f"fails: {type(error).__name__}"
            raise StoreUnavailable(self.place, what, "See to that storage.") from error

    def spool(self) -> Any:
        """Beside the workspaces, until the storage has it."""
        return spool_unnamed()

    def keep_spooled(self, spooled: Any, stored: Stored, *, anew: bool = False) -> None:
        """Under its digest, unless it is there with the same size."""
        name = name_blob(stored.digest)
        with self.naming_trouble():
            there = self.storage.exists(name) and self.storage.size(name) == stored.size
            if anew or not there:
                spooled.seek(0)
                self.storage.save(name, File(spooled, stored.digest))

    def settle_kept(self) -> None:
        """Its own matter."""

    def fetch(self, digest: str) -> Any:
        """The open file."""
        with self.naming_trouble():
            return self.storage.open(name_blob(digest), "rb")

    def probe(self) -> None:
        """Through its own interface."""
        with self.naming_trouble():
            name = self.storage.save("probe", ContentFile(PROBE))
            try:
                with self.storage.open(name, "rb") as file:
                    file.read()
            finally:
                self.storage.delete(name)


def get_storage() -> DurableFiles | ForeignStore | Any:
    """The store of artifacts. Raises ImproperlyConfigured, naming the cure."""
    if "longwatch" in settings.STORAGES:
        return ForeignStore(storages["longwatch"])
    location = locate_store()
    if "://" in location:
        from ledger import s3  # so that the extra and its memory are asked for only here

        return s3.open_bucket(location)
    return DurableFiles(location)
