"""Which files there are, and which lines of them fit: both bounded in time and in what is told."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import stat
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from types import FrameType
from typing import Final

from pydantic_ai.exceptions import ToolFailed

from ledger.agents.kits.paths import GIT, Patterns, Reach, open_root, read_content

MAX_SECONDS: Final = 20.0
MAX_WALKED: Final = 100_000
MAX_DEPTH: Final = 100
MAX_SEARCHED: Final = 2 * 1024**2
"""Bytes of a file that is searched; larger ones are named as left out."""

MAX_LINE: Final = 400
"""Characters of a line that are shown."""

_FOLDER: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


def list_paths(root: Path, reach: Reach, pattern: str, most: int) -> str:
    """The files that fit, one a line, in order."""
    wanted = _read_pattern(pattern)
    found = []
    walk = Walk()
    with open_root(root) as top:
        for path, _, _ in walk.walk(top):
            if wanted.match(path) and reach.can_read(path):
                found.append(path)
    told = found[:most]
    if len(found) > most:
        told.append(f"[{len(found) - most:,} more; use a narrower pattern]")
    return "\n".join([*(told or ["[no file fits]"]), *walk.notes])


def search_lines(
    root: Path, reach: Reach, text: str, pattern: str, *, regex: bool, ignore_case: bool, most: int
) -> str:
    """The lines that fit, as `path:line: text`."""
    wanted = _read_pattern(pattern)
    try:
        flags = re.IGNORECASE if ignore_case else 0
        fits = re.compile(text if regex else re.escape(text), flags).search
    except (re.error, RecursionError, OverflowError) as error:
        raise ToolFailed(f"{text!r} is no regular expression: {error}.") from None
    told: list[str] = []
    larger = 0
    walk = Walk()
    with open_root(root) as top, _bounding_time(text):
        for path, handle, name in walk.walk(top):
            if not wanted.match(path) or not reach.can_read(path):
                continue
            try:
                content, _ = read_content(handle, name, path, MAX_SEARCHED)
            except ToolFailed:
                larger += 1
                continue
            if b"\0" in content[:8192]:
                continue
            lines = content.decode("utf-8", "replace").split("\n")
            told += [
                f"{path}:{n}: {line.rstrip('\r')[:MAX_LINE]}"
                for n, line in enumerate(lines, 1) if fits(line)
            ]  # fmt: skip
            if len(told) > most:
                told[most:] = [f"[more than {most} lines fit; look for something narrower]"]
                break
    if larger:
        walk.notes.append(f"[{larger} files of more than {MAX_SEARCHED >> 20} MiB were left out]")
    return "\n".join([*(told or ["[no line fits]"]), *walk.notes])


class Walk:
    """All regular files below an open folder, sorted, links not followed; `notes` say what was left
    out for a bound's sake."""

    def __init__(self) -> None:
        self.notes: list[str] = []
        self.ends = time.monotonic() + MAX_SECONDS
        self.left = MAX_WALKED

    def walk(self, folder: int, prefix: str = "") -> Iterator[tuple[str, int, str]]:
        """(path, open folder, name) of each."""
        for name, is_folder in self._list_names(folder):
            if not self.left or time.monotonic() > self.ends:
                if not self.notes:
                    self.notes.append(f"[ended early, at {prefix}{name}; use a narrower pattern]")
                return
            self.left -= 1
            if not is_folder:
                yield prefix + name, folder, name
            elif name != GIT and prefix.count("/") < MAX_DEPTH:
                with contextlib.suppress(OSError):  # gone, or closed to us
                    inner = os.open(name, _FOLDER, dir_fd=folder)
                    try:
                        yield from self.walk(inner, f"{prefix}{name}/")
                    finally:
                        os.close(inner)

    def _list_names(self, folder: int) -> list[tuple[str, bool]]:
        found = []
        with os.scandir(folder) as items:
            for item in items:
                try:
                    mode = item.stat(follow_symlinks=False).st_mode
                    item.name.encode()
                except (OSError, UnicodeEncodeError):
                    continue
                if stat.S_ISDIR(mode) or stat.S_ISREG(mode):
                    found.append((item.name, stat.S_ISDIR(mode)))
        return sorted(found)


def _read_pattern(pattern: str) -> Patterns:
    try:
        return Patterns("pattern", [pattern])
    except ValueError as error:
        raise ToolFailed(
            f"{error}. Patterns are those of a .gitignore, such as src/**/*.py."
        ) from None


class _TooLong(Exception):
    """A regular expression took all of its time."""


@contextlib.contextmanager
def _bounding_time(text: str) -> Iterator[None]:
    """End a regular expression that never ends: `re` looks for signals, and hears of nothing else.

    The timer is that of processor time, as the other one belongs to the unit's deadline.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGVTALRM, _raise_too_long)
    signal.setitimer(signal.ITIMER_VIRTUAL, MAX_SECONDS)
    try:
        yield
    except _TooLong:
        raise ToolFailed(
            f"Searching for {text[:200]!r} took over {MAX_SECONDS:g} s; use a simpler expression."
        ) from None
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        signal.signal(signal.SIGVTALRM, before)


def _raise_too_long(signum: int, frame: FrameType | None) -> None:
    raise _TooLong
