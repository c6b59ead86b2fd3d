"""Archives: what was submitted is unpacked with suspicion; what is published is always packed the
same way, so that equal trees are equal bytes.
"""

from __future__ import annotations

import dataclasses
import gzip
import os
import re
import shutil
import stat
import struct
import tarfile
import tempfile
import zipfile
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, BinaryIO

from harness_site.workflows.shared.tree import list_files, show_path

SUFFIXES = re.compile(r"\.(tar\.gz|tgz|zip|whl|bundle)$", re.IGNORECASE)
BLOCK = 64 * 1024
MAX_HEADER = 1024 * 1024  # tarfile reads an extended header in one piece
CENTRAL_ENTRY = b"PK\x01\x02"

_DAMAGED = (
    tarfile.TarError,
    zipfile.BadZipFile,
    gzip.BadGzipFile,
    zlib.error,
    struct.error,
    EOFError,
    NotImplementedError,
    OverflowError,
    RecursionError,
    ValueError,
)


class Refused(Exception):
    """What was submitted is not taken; the text says why, and is fit to show."""


@dataclasses.dataclass(frozen=True, slots=True)
class Bounds:
    """How much an archive may hold. `ratio` is unpacked size by packed size, past one MiB."""

    files: int = 5_000
    file_bytes: int = 64 * 1024 * 1024
    total_bytes: int = 512 * 1024 * 1024
    ratio: int = 200
    depth: int = 40
    path_bytes: int = 1_000

    def check_total(self, unpacked: int, packed: int) -> None:
        """Raise Refused when so much came out of an archive of `packed` bytes."""
        if unpacked > self.total_bytes:
            raise Refused(f"it unpacks to more than {self.total_bytes:,} bytes")
        if unpacked > max(1024 * 1024, self.ratio * packed):
            raise Refused(f"it unpacks to more than {self.ratio} times its size")


OWN = Bounds(files=10**9, file_bytes=2**62, total_bytes=2**62, ratio=10**9)
"""No bounds: for what we packed ourselves."""


@dataclasses.dataclass(frozen=True, slots=True)
class _Member:
    path: str
    mode: int
    size: int
    open: Callable[[], IO[bytes] | None]


def unpack(archive: BinaryIO, target: Path, bounds: Bounds | None = None) -> int:
    """Unpack a .tar.gz or .zip into the folder `target` and return the number of files.

    Only regular files and folders are taken; the name of each stays below `target`. Content and
    names are kept byte for byte, of a mode the permissions (its owner can always read and write);
    empty folders are not made. Raises Refused, after which `target` may hold a part.
    """
    bounds = bounds or Bounds()
    packed = archive.seek(0, os.SEEK_END)
    archive.seek(0)
    magic = archive.read(4)
    archive.seek(0)
    if magic.startswith(b"\x1f\x8b"):
        read = _read_tar
    elif magic in {b"PK\x03\x04", b"PK\x05\x06"}:
        read = _read_zip
    else:
        raise Refused("it is neither a .tar.gz nor a .zip file")
    files, total = 0, 0
    taken: dict[str, bool] = {}
    try:
        for member in read(archive, bounds):
            path = _claim_path(member.path, taken, bounds)
            files += 1
            total += member.size
            if files > bounds.files:
                raise Refused(f"it holds more than {bounds.files:,} files")
            if member.size > bounds.file_bytes:
                raise Refused(f"{path} has more than {bounds.file_bytes:,} bytes")
            bounds.check_total(total, packed)
            _write_member(member, target / path)
    except _DAMAGED as error:
        raise Refused(f"it is damaged ({error})") from error
    if not files:
        raise Refused("it holds no files")
    return files


def pack(root: Path, target: Path) -> None:
    """Pack the files below `root` as a .tar.gz: sorted, no times, no owners, modes kept."""
    with (
        target.open("wb") as raw,
        gzip.GzipFile(filename="", mode="wb", fileobj=raw, mtime=0) as packed,
        tarfile.open(fileobj=packed, mode="w", format=tarfile.PAX_FORMAT, encoding="utf-8") as tar,
    ):
        for path in list_files(root):
            info = tarfile.TarInfo(path)
            file = root / path
            info.size = file.stat().st_size
            info.mode = stat.S_IMODE(file.stat().st_mode)
            with file.open("rb") as content:
                tar.addfile(info, content)


def _read_tar(archive: BinaryIO, bounds: Bounds) -> Iterator[_Member]:
    # Inflated to a file first: tarfile seeks, and what it skips must count against the bounds too.
    with tempfile.TemporaryFile() as plain:
        _inflate(archive, plain, bounds)
        plain.seek(0)
        reader = _ShortReads(plain)
        with tarfile.open(fileobj=reader, mode="r:", encoding="utf-8") as tar:  # type: ignore[call-overload]
            for count, info in enumerate(tar):
                if count > 2 * bounds.files:
                    raise Refused(f"it holds more than {bounds.files:,} files")
                if info.isdir():
                    _check_path(info.name, bounds)
                    continue
                _check_kind(info)
                yield _Member(info.name, info.mode, info.size, lambda i=info: tar.extractfile(i))  # type: ignore[misc]


def _inflate(archive: BinaryIO, target: IO[bytes], bounds: Bounds) -> None:
    total, packed = 0, archive.seek(0, os.SEEK_END)
    archive.seek(0)
    # Headers and padding come on top of the files' own bytes.
    room = dataclasses.replace(bounds, total_bytes=bounds.total_bytes + bounds.files * 4_096)
    with gzip.open(archive, "rb") as inflated:
        while block := inflated.read(BLOCK):
            total += len(block)
            room.check_total(total, packed)
            target.write(block)


def _check_kind(info: tarfile.TarInfo) -> None:
    name = show_path(info.name)
    if info.issym() or info.islnk():
        raise Refused(f"{name} is a link; only files and folders are taken")
    if not info.isreg() or info.issparse():
        raise Refused(f"{name} is a device, a pipe or another special file")
    if info.size < 0:
        raise Refused(f"{name} has a negative size")


class _ShortReads:
    """A file that hands out no huge piece: an extended header must not fill the memory."""

    def __init__(self, file: IO[bytes]) -> None:
        self.seek, self.tell, self._read = file.seek, file.tell, file.read

    def read(self, size: int = -1) -> bytes:
        """At most MAX_HEADER bytes. Raises Refused for more."""
        if not 0 <= size <= MAX_HEADER:
            raise Refused("it has a header of more than a megabyte")
        return self._read(size)


def _read_zip(archive: BinaryIO, bounds: Bounds) -> Iterator[_Member]:
    _count_entries(archive, 2 * bounds.files)
    with zipfile.ZipFile(archive) as packed:
        for info in packed.infolist():
            name = info.orig_filename
            if not info.flag_bits & 0x800:  # bytes of an unstated encoding, shown as cp437
                name = os.fsdecode(name.encode("cp437"))
            mode = info.external_attr >> 16
            kind = stat.S_IFMT(mode)
            if kind not in {0, stat.S_IFREG, stat.S_IFDIR}:
                raise Refused(f"{show_path(name)} is a link or a special file")
            if kind == stat.S_IFDIR or name.endswith("/"):
                _check_path(name, bounds)
                continue
            if info.flag_bits & 0x1:
                raise Refused(f"{show_path(name)} is encrypted")
            if info.compress_type not in {zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED}:
                raise Refused(f"{show_path(name)} is packed by a method that is not taken")
            yield _Member(name, mode, info.file_size, lambda i=info: packed.open(i))  # type: ignore[misc]


def _count_entries(archive: BinaryIO, most: int) -> None:
    """Refuse an archive of very many entries before zipfile reads its directory into memory."""
    count, tail = 0, b""
    while block := archive.read(BLOCK):
        count += (tail + block).count(CENTRAL_ENTRY)
        tail = block[-3:]
        if count > most:
            raise Refused(f"it holds more than {most:,} entries")


def _check_path(path: str, bounds: Bounds) -> str:
    """The path in its one form (no empty or `.` parts). Raises Refused when it could escape."""
    name = show_path(path)
    if any("\ud800" <= char <= "\udfff" for char in path):
        raise Refused(f"the name {name} is not UTF-8")
    if any(ord(char) < 0x20 or ord(char) == 0x7F for char in path):
        raise Refused(f"the name {name} holds a control character")
    if "\\" in path:
        raise Refused(f"the name {name} holds a backslash")
    if path.startswith("/"):
        raise Refused(f"{name} is an absolute path")
    parts = [part for part in path.split("/") if part not in {"", "."}]
    if ".." in parts:
        raise Refused(f"{name} would leave the folder that it is unpacked in")
    if any(part.lower() == ".git" for part in parts):
        raise Refused(f"{name} belongs to a git repository; leave .git out of the archive")
    if (
        len(parts) > bounds.depth
        or len(os.fsencode(path)) > bounds.path_bytes
        or any(len(os.fsencode(part)) > 255 for part in parts)
    ):
        raise Refused(f"the path {name[:100]}… is too long")
    return "/".join(parts)


def _claim_path(given: str, taken: dict[str, bool], bounds: Bounds) -> str:
    """The path in its one form, noted in `taken` (True: a file). Raises Refused for a clash."""
    path = _check_path(given, bounds)
    if not path:
        raise Refused("it holds a file without a name")
    if path in taken:
        raise Refused(f"{show_path(path)} is in it twice")
    folder = path
    while "/" in folder:
        folder = folder.rpartition("/")[0]
        if taken.setdefault(folder, False):
            raise Refused(f"{show_path(folder)} is both a file and a folder")
    taken[path] = True
    return path


def _write_member(member: _Member, file: Path) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    content = member.open()
    assert content is not None
    try:
        with content, file.open("xb") as out:
            shutil.copyfileobj(content, out, BLOCK)
    except FileExistsError:  # a file system that takes two names for one
        raise Refused(f"{show_path(member.path)} is in it twice") from None
    if file.stat().st_size != member.size:
        raise Refused(f"{show_path(member.path)} is cut short")
    file.chmod(((member.mode & 0o777) or 0o644) | 0o600)


def name_after(archive: str) -> str:
    """What to call the results of an archive of this name: no path, no surprises."""
    stem = re.sub(r"[^A-Za-z0-9._-]+", "-", SUFFIXES.sub("", archive)).strip(".-")
    return stem[:80] or "archive"
