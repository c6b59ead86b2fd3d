"""A path that a model named, opened so that it leads nowhere but into the task's folder.

Each part is opened in the folder that was opened before it, and no link is followed. So what a
path is cannot change between the look at it and its use, whoever renames things meanwhile.
"""

from __future__ import annotations

import contextlib
import dataclasses
import errno
import os
import secrets
import stat
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

from pathspec import GitIgnoreSpec
from pydantic_ai.exceptions import ToolFailed

GIT: Final = ".git"
"""Not written: what lies there are commands that git runs."""

MAX_PATH: Final = 1_000
MAX_FILE: Final = 8 * 1024**2
"""Bytes of a file that is read or changed."""

_FOLDER: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
# Not to wait for the other end of a FIFO before it is seen to be one.
_FILE: Final = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


class Patterns:
    """Paths by patterns as in a .gitignore. Raises ValueError for what can't be."""

    def __init__(self, name: str, given: Sequence[str]) -> None:
        if isinstance(given, str) or not all(isinstance(one, str) and one for one in given):
            raise ValueError(f"{name}: takes a list of patterns, not {given!r}")
        if turned := [one for one in given if one.startswith("!")]:
            raise ValueError(f"{name}: {turned[0]!r} excludes; put it into deny= without the !")
        self.given = tuple(given)
        try:
            self._spec = GitIgnoreSpec.from_lines(self.given)
        except ValueError as error:
            raise ValueError(f"{name}: {error}") from None

    def match(self, path: str) -> bool:
        """Whether a pattern is about the path, or about a folder that it lies in."""
        return bool(self._spec.match_file(path))


@dataclasses.dataclass(frozen=True)
class Reach:
    """Which paths may be read and which written."""

    read: Patterns
    write: Patterns
    deny: Patterns

    def can_read(self, path: str) -> bool:
        """Whether its contents may be shown."""
        return self.read.match(path) and not self.deny.match(path)

    def require(self, path: str, writes: bool) -> None:
        """Raise ToolFailed, with the patterns, for a path out of reach."""
        if GIT in path.split("/") and writes:
            raise ToolFailed(f"{path!r}: what lies in {GIT} belongs to git and is not written.")
        allowed = self.write if writes else self.read
        if self.deny.match(path) or not allowed.match(path):
            but = f", but for {', '.join(self.deny.given)}" if self.deny.given else ""
            verb = "written" if writes else "read"
            what = ", ".join(allowed.given) or "nothing"
            raise ToolFailed(f"{path!r} may not be {verb}; what may be is: {what}{but}.")


def clean_path(path: str) -> str:
    """The path in its one form. Raises ToolFailed for one that can't be in the folder."""
    cure = "name it from the workspace's root, as list_files does"
    shown = path[:200]
    if path.startswith("/"):
        raise ToolFailed(f"{shown!r} is absolute; {cure}.")
    parts = [part for part in path.split("/") if part not in {"", "."}]
    if ".." in parts:
        raise ToolFailed(f"{shown!r} has a .. in it; {cure}.")
    # A name with a line end, or letters that turn the line around, looks like another one.
    if not parts or len(path) > MAX_PATH or not path.isprintable():
        raise ToolFailed(f"{shown!r} is no path; {cure}.")
    return "/".join(parts)


@contextlib.contextmanager
def open_root(root: Path) -> Iterator[int]:
    """The task's folder, by handle."""
    handle = os.open(root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield handle
    finally:
        os.close(handle)


@contextlib.contextmanager
def open_parent(root: Path, path: str, *, create: bool = False) -> Iterator[tuple[int, str]]:
    """The folder that a clean path lies in, by handle, and its last part; with `create` it is made.

    Raises ToolFailed for a part that is a link, or no folder, or not there.
    """
    *parents, name = path.split("/")
    with open_root(root) as top:
        handle = os.dup(top)
        try:
            for n, part in enumerate(parents):
                handle = _go_into(handle, part, "/".join(parents[: n + 1]), create)
            yield handle, name
        finally:
            os.close(handle)


def _go_into(handle: int, part: str, path: str, create: bool) -> int:
    """The folder `part` of the one that is open, which is closed."""
    try:
        if create:
            with contextlib.suppress(FileExistsError):
                os.mkdir(part, 0o755, dir_fd=handle)
        inner = os.open(part, _FOLDER, dir_fd=handle)
    except OSError as error:
        raise explain_failure(handle, part, path, error) from error
    os.close(handle)
    return inner


def read_content(handle: int, name: str, path: str, most: int = MAX_FILE) -> tuple[bytes, int]:
    """The bytes and the mode of a regular file. Raises ToolFailed for anything else."""
    try:
        file = os.open(name, _FILE, dir_fd=handle)
    except OSError as error:
        raise explain_failure(handle, name, path, error) from error
    facts = os.fstat(file)
    if not stat.S_ISREG(facts.st_mode):
        os.close(file)
        raise ToolFailed(f"{path!r} {_name_kind(facts.st_mode)}; name a file.")
    with os.fdopen(file, "rb") as source:
        content = source.read(most + 1)
    if len(content) > most:
        raise ToolFailed(f"{path!r} has {facts.st_size:,} bytes; more than {most:,} are not read.")
    return content, stat.S_IMODE(facts.st_mode)


def find_mode(handle: int, name: str, path: str) -> int | None:
    """The mode of a regular file; None where nothing is. Raises ToolFailed for anything else."""
    try:
        mode = os.stat(name, dir_fd=handle, follow_symlinks=False).st_mode
    except FileNotFoundError:
        return None
    except OSError as error:
        raise explain_failure(handle, name, path, error) from error
    if not stat.S_ISREG(mode):
        raise ToolFailed(f"{path!r} {_name_kind(mode)}; name a file.")
    return stat.S_IMODE(mode)


def replace_content(handle: int, name: str, content: bytes, mode: int) -> None:
    """Put a whole new file in the place of the name: a link there is replaced, not followed, and
    another name of the old file keeps the old content."""
    draft = f".draft-{secrets.token_hex(8)}"
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    try:
        with os.fdopen(os.open(draft, flags, 0o600, dir_fd=handle), "wb") as file:
            file.write(content)
            os.fchmod(file.fileno(), mode)
        os.replace(draft, name, src_dir_fd=handle, dst_dir_fd=handle)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(draft, dir_fd=handle)
        raise


def explain_failure(handle: int, name: str, path: str, error: OSError) -> Exception:
    """What the model is told of an error that lies in the path; the error itself where it does
    not, as of a full disk."""
    with contextlib.suppress(OSError):
        target = os.readlink(name, dir_fd=handle)
        return ToolFailed(f"{path!r} is a link to {target!r}, which is not followed; name that.")
    if isinstance(error, FileNotFoundError):
        return ToolFailed(f"{path!r} is not there; list_files says what is.")
    if isinstance(error, NotADirectoryError):
        return ToolFailed(f"{path!r} is no folder.")
    if isinstance(error, (IsADirectoryError, FileExistsError)):
        return ToolFailed(f"{path!r} is a folder; name a file.")
    if isinstance(error, PermissionError) or error.errno in {errno.ENXIO, errno.ELOOP}:
        return ToolFailed(f"{path!r} can't be opened: {os.strerror(error.errno or 0)}.")
    if error.errno == errno.ENAMETOOLONG:
        return ToolFailed(f"{path!r} is too long for a name.")
    return error


def _name_kind(mode: int) -> str:
    if stat.S_ISDIR(mode):
        return "is a folder"
    return "is a link" if stat.S_ISLNK(mode) else "is a device, FIFO or socket"
