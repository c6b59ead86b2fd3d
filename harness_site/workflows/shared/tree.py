"""A tree of files on disk, what differs between two, and the difference as git writes it."""

from __future__ import annotations

import dataclasses
import difflib
import hashlib
import os
import shutil
import stat
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import IO

NO_NEWLINE = b"\\ No newline at end of file\n"
NOWHERE, NOTHING = b"/dev/null", b"0" * 40
"""git's words for the side that has no such file."""

CONTEXT = 3
UNHURRIED = 4_000_000
"""Lines of one side times those of the other, up to which a short diff is worth its time."""

_ESCAPES = {0x07: b"a", 0x08: b"b", 0x09: b"t", 0x0A: b"n", 0x0B: b"v", 0x0C: b"f", 0x0D: b"r"}
_ESCAPES |= {0x22: b'"', 0x5C: b"\\"}


@dataclasses.dataclass(frozen=True, slots=True)
class FileDiff:
    """One changed file: its path, its lines as bytes of a unified diff, and their counts."""

    path: str
    lines: list[bytes]
    added: int
    removed: int


def list_files(root: Path) -> list[str]:
    """The paths of the regular files below `root`, with slashes, sorted by their bytes."""
    found = []
    for folder, _, names in os.walk(root):
        base = Path(folder)
        for name in names:
            if stat.S_ISREG((base / name).lstat().st_mode):
                found.append((base / name).relative_to(root).as_posix())
    return sorted(found, key=os.fsencode)


def copy_tree(source: Path, target: Path, paths: Iterable[str]) -> None:
    """Copy the files `paths` with their modes, over what is there."""
    target.mkdir(exist_ok=True)
    for path in paths:
        file = target / path
        file.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(source / path, file)
        shutil.copymode(source / path, file)


def list_changes(before: Path, after: Path) -> list[str]:
    """The paths whose bytes differ. Raises ValueError unless both hold the same files and modes."""
    paths = list_files(before)
    if paths != list_files(after):
        raise ValueError("a file was added or removed")
    changed = []
    for path in paths:
        old, new = before / path, after / path
        if old.stat().st_mode != new.stat().st_mode:
            raise ValueError(f"the mode of {show_path(path)} has changed")
        if old.stat().st_size != new.stat().st_size or old.read_bytes() != new.read_bytes():
            changed.append(path)
    return changed


def compare_trees(before: Path, after: Path) -> list[str]:
    """The paths that one side lacks, or whose bytes or right to be run differ, sorted by bytes."""
    paths = sorted({*list_files(before), *list_files(after)}, key=os.fsencode)
    return [path for path in paths if _read_side(before / path) != _read_side(after / path)]


def write_patch(before: Path, after: Path, paths: Iterable[str], out: IO[bytes]) -> None:
    """Write the changes of `paths` in git's format, for `git apply` (-p1) at the tree's root; a
    file that one side lacks is new, or deleted."""
    for path in paths:
        (old, old_mode), (new, new_mode) = _read_side(before / path), _read_side(after / path)
        tab = b"\t" if " " in path else b""  # as git does: where a name with spaces ends
        a, b = quote_path("a/" + path), quote_path("b/" + path)
        out.write(b"diff --git %s %s\n" % (a, b))
        if not old_mode:
            out.write(b"new file mode %s\n" % new_mode)
        elif not new_mode:
            out.write(b"deleted file mode %s\n" % old_mode)
        elif old_mode != new_mode:
            out.write(b"old mode %s\nnew mode %s\n" % (old_mode, new_mode))
        same = b" " + new_mode if old_mode == new_mode else b""
        names = (hash_blob(old) if old_mode else NOTHING, hash_blob(new) if new_mode else NOTHING)
        if old != new or not (old_mode and new_mode):
            out.write(b"index %s..%s%s\n" % (*names, same))
        if old != new:
            sides = (a + tab if old_mode else NOWHERE, b + tab if new_mode else NOWHERE)
            out.write(b"--- %s\n+++ %s\n" % sides)
            out.writelines(diff_bytes(old, new))


def _read_side(file: Path) -> tuple[bytes, bytes]:
    """The content and git's mode of one side's file; both empty where it lacks the file."""
    if not file.is_file():
        return b"", b""
    return file.read_bytes(), b"100755" if file.stat().st_mode & 0o100 else b"100644"


def diff_file(before: Path, after: Path, path: str) -> FileDiff:
    """What changed in one file, for people."""
    lines = list(diff_bytes(_read_side(before / path)[0], _read_side(after / path)[0]))
    added = sum(line.startswith(b"+") for line in lines)
    removed = sum(line.startswith(b"-") for line in lines)
    return FileDiff(path, lines, added, removed)


def diff_bytes(old: bytes, new: bytes) -> Iterator[bytes]:
    """The hunks of a unified diff. A line ends at LF and nowhere else, so CR stays content."""
    a, b = _split_lines(old), _split_lines(new)
    # difflib leaves out frequent lines to be fast, which makes longer diffs than git's.
    hurry = len(a) * len(b) > UNHURRIED
    matcher = difflib.SequenceMatcher(None, a, b, autojunk=hurry)
    for group in matcher.get_grouped_opcodes(CONTEXT):
        old_range = _format_range(group[0][1], group[-1][2])
        new_range = _format_range(group[0][3], group[-1][4])
        yield b"@@ -%s +%s @@\n" % (old_range, new_range)
        for tag, old_start, old_end, new_start, new_end in group:
            if tag == "equal":
                yield from _mark_lines(b" ", a[old_start:old_end])
            else:
                yield from _mark_lines(b"-", a[old_start:old_end])
                yield from _mark_lines(b"+", b[new_start:new_end])


def _format_range(start: int, end: int) -> bytes:
    if end == start:
        return b"%d,0" % start  # nothing, after this line
    return b"%d,%d" % (start + 1, end - start)


def _mark_lines(mark: bytes, lines: list[bytes]) -> Iterator[bytes]:
    for line in lines:
        if line.endswith(b"\n"):
            yield mark + line
        else:
            yield mark + line + b"\n"
            yield NO_NEWLINE


def _split_lines(content: bytes) -> list[bytes]:
    lines = content.split(b"\n")
    last = lines.pop()
    return [line + b"\n" for line in lines] + ([last] if last else [])


def hash_blob(content: bytes) -> bytes:
    """git's name for the content, in hex."""
    header = b"blob %d\0" % len(content)
    return hashlib.sha1(header + content, usedforsecurity=False).hexdigest().encode()


def quote_path(path: str) -> bytes:
    """The path as git writes it: in C quotes when a byte of it is not plain printable ASCII."""
    raw = os.fsencode(path)
    if all(0x20 <= byte < 0x7F and byte not in _ESCAPES for byte in raw):
        return raw
    return b'"' + b"".join(_quote_byte(byte) for byte in raw) + b'"'


def _quote_byte(byte: int) -> bytes:
    if byte in _ESCAPES:
        return b"\\" + _ESCAPES[byte]
    return bytes([byte]) if 0x20 <= byte < 0x7F else b"\\%03o" % byte


def show_path(path: str) -> str:
    """The path fit for people, JSON and both databases: what can't be printed is escaped."""
    text = os.fsencode(path).decode("utf-8", "backslashreplace")
    return "".join(
        char if char.isprintable() else char.encode("unicode_escape").decode() for char in text
    )
