"""The tools of a task's files: read, list, search, edit, write, delete and move.

They act on nothing but the workspace, so they are `local`: what a lost worker did is gone with its
folder, and the next one makes the unit's calls again on the files of the last checkpoint.
"""

from __future__ import annotations

import dataclasses
import functools
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from pydantic_ai.exceptions import ToolFailed

from ledger.agents.kits.finding import list_paths, search_lines
from ledger.agents.kits.paths import (
    MAX_FILE,
    Patterns,
    Reach,
    clean_path,
    explain_failure,
    find_mode,
    open_parent,
    read_content,
    replace_content,
)
from ledger.agents.kits.toolkit import Toolkit, make_tool
from ledger.agents.recording import find_unit
from ledger.agents.rules import Args, Tool

MAX_SHOWN: Final = 40_000
"""Characters that one reading shows."""

MAX_LINES: Final = 2_000
MAX_LISTED: Final = 500
MAX_FOUND: Final = 200
NEW_MODE: Final = 0o644

READING = ("read_file", "list_files", "search")
WRITING = ("edit_file", "write_file", "delete_file", "move_file")


def file_tools(
    read: Sequence[str] = ("*",), write: Sequence[str] = (), deny: Sequence[str] = ()
) -> Toolkit:
    """Tools on the task's workspace. All take patterns as in a .gitignore: what may be read, what
    may be written (nothing, and the writing tools are left out), and what neither, whatever the
    other two say. Links are not followed and `.git` is not written. Raises ValueError.
    """
    reach = Reach(
        Patterns("file_tools(read=)", read),
        Patterns("file_tools(write=)", write),
        Patterns("file_tools(deny=)", deny),
    )
    files = _Files(reach)
    names = READING + WRITING if write else READING
    return Toolkit(
        tools=[make_tool(getattr(files, name)) for name in names],
        rules={
            name: Tool(local=True, scope=functools.partial(_refuse, reach, name in WRITING))
            for name in names
        },
    )


def _refuse(reach: Reach, writes: bool, args: Args) -> str:
    """Why a call is out of scope, for the rules: so nobody is asked about it, and it is denied."""
    try:
        for name in ("path", "to"):
            if isinstance(args.get(name), str):
                reach.require(clean_path(args[name]), writes)
    except ToolFailed as error:
        return error.message.rstrip(".")
    return ""


@dataclasses.dataclass(frozen=True)
class _Files:
    """The tools; their docstrings are what the model is told."""

    reach: Reach

    def read_file(self, path: str, start: int = 1, lines: int = 400) -> str:
        """Read lines of a text file in the workspace.

        Args:
            path: The file, named from the workspace's root.
            start: The first line to show, counted from 1.
            lines: How many lines to show at most.
        """
        text = _read_text(self._open_root(), path := self._judge(path))
        return _show_lines(path, text, max(1, start), max(1, min(lines, MAX_LINES)))

    def list_files(self, pattern: str = "*", limit: int = MAX_LISTED) -> str:
        """List the files of the workspace by a pattern as in a .gitignore.

        Args:
            pattern: For example `*.py` (in any folder), `src/**/*.py`, `docs/`.
            limit: How many to name at most.
        """
        return list_paths(self._open_root(), self.reach, pattern, max(1, min(limit, MAX_LISTED)))

    def search(
        self, text: str, pattern: str = "*", regex: bool = False, ignore_case: bool = False,
        limit: int = 100,
    ) -> str:  # fmt: skip
        """Search the lines of the workspace's text files.

        Args:
            text: What to look for: as it stands, or a regular expression (Python's) with `regex`.
            pattern: Only in files of this pattern, as in a .gitignore.
            regex: Whether `text` is a regular expression.
            ignore_case: Whether capitals do not matter.
            limit: How many lines to show at most.
        """
        if not text:
            raise ToolFailed("There is nothing to look for: give text.")
        return search_lines(
            self._open_root(), self.reach, text, pattern, regex=regex, ignore_case=ignore_case,
            most=max(1, min(limit, MAX_FOUND)),
        )  # fmt: skip

    def edit_file(self, path: str, old: str, new: str) -> str:
        """Replace a piece of a text file that is there exactly once.

        Args:
            path: The file, named from the workspace's root.
            old: The text to replace, exactly as it stands there, with as many lines as make it the
                only such place.
            new: What comes in its place; empty to remove it.
        """
        if not old:
            raise ToolFailed("old is empty; write_file makes a new file.")
        if old == new:
            raise ToolFailed("old and new are the same.")
        path = self._judge(path, writes=True)
        root = self._open_root()
        with open_parent(root, path) as (folder, name):
            content, mode = read_content(folder, name, path)
            text = _decode(path, content)
            if "\r\n" in text and "\r" not in old:  # as its lines were shown
                old, new = old.replace("\n", "\r\n"), new.replace("\n", "\r\n")
            count = text.count(old)
            if count == 0 and new and text.count(new) == 1:
                return f"{path}: nothing to do, the new text is there already."
            if count != 1:
                raise ToolFailed(_explain_miss(path, text, old, count))
            at = text.index(old)
            replace_content(folder, name, _encode(path, text.replace(old, new)), mode)
        first = text.count("\n", 0, at) + 1
        return f"{path}: edited at line {first}."

    def write_file(self, path: str, text: str) -> str:
        """Make a text file, or replace all of one.

        Args:
            path: The file, named from the workspace's root; its folders are made.
            text: All of its content.
        """
        path = self._judge(path, writes=True)
        content = _encode(path, text)
        with open_parent(self._open_root(), path, create=True) as (folder, name):
            mode = find_mode(folder, name, path)
            replace_content(folder, name, content, NEW_MODE if mode is None else mode)
        done = "made" if mode is None else "replaced"
        return f"{path}: {done}, {len(content):,} bytes."

    def delete_file(self, path: str) -> str:
        """Delete a file.

        Args:
            path: The file, named from the workspace's root.
        """
        path = self._judge(path, writes=True)
        with open_parent(self._open_root(), path) as (folder, name):
            if find_mode(folder, name, path) is None:
                raise ToolFailed(f"{path!r} is not there; list_files says what is.")
            os.unlink(name, dir_fd=folder)
        return f"{path}: deleted."

    def move_file(self, path: str, to: str) -> str:
        """Move or rename a file; what is at the new place must not be there yet.

        Args:
            path: The file, named from the workspace's root.
            to: Where it goes; its folders are made.
        """
        path, to = self._judge(path, writes=True), self._judge(to, writes=True)
        self.reach.require(path, writes=False)  # or it could be read where it is then
        root = self._open_root()
        with open_parent(root, path) as (old, name):
            if find_mode(old, name, path) is None:
                raise ToolFailed(f"{path!r} is not there; list_files says what is.")
            with open_parent(root, to, create=True) as (new, target):
                try:
                    # A link and not a rename, which would replace what is there.
                    os.link(name, target, src_dir_fd=old, dst_dir_fd=new, follow_symlinks=False)
                except OSError as error:
                    raise explain_failure(new, target, to, error) from error
                os.unlink(name, dir_fd=old)
        return f"{path}: moved to {to}."

    def _judge(self, path: str, writes: bool = False) -> str:
        path = clean_path(path)
        self.reach.require(path, writes)
        return path

    def _open_root(self) -> Path:
        return find_unit().workspace


def _read_text(root: Path, path: str) -> str:
    with open_parent(root, path) as (folder, name):
        return _decode(path, read_content(folder, name, path)[0])


def _decode(path: str, content: bytes) -> str:
    if b"\0" not in content:
        try:
            return content.decode()
        except UnicodeDecodeError:
            pass
    raise ToolFailed(f"{path!r} is no text in UTF-8 ({len(content):,} bytes).")


def _encode(path: str, text: str) -> bytes:
    try:
        content = text.encode()
    except UnicodeEncodeError:
        raise ToolFailed(f"{path!r}: the text has half a surrogate pair in it.") from None
    if len(content) > MAX_FILE or "\0" in text:
        raise ToolFailed(f"{path!r}: a text of at most {MAX_FILE:,} bytes and without NUL.")
    return content


def _show_lines(path: str, text: str, start: int, count: int) -> str:
    lines = text.replace("\r\n", "\n").split("\n")
    if not lines[-1]:
        lines.pop()
    if not lines:
        return f"[{path} is empty]"
    if start > len(lines):
        raise ToolFailed(f"{path!r} has {len(lines):,} lines; start at one of them.")
    shown: list[str] = []
    room = MAX_SHOWN
    for line in lines[start - 1 : start - 1 + count]:
        if len(line) > room:
            if shown:
                break
            line = f"{line[:room]}[the line goes on, {len(line):,} characters in all]"
        shown.append(line)
        room -= len(line) + 1
        if room <= 0:
            break
    last = start + len(shown) - 1
    head = f"[{path}: lines {start} to {last} of {len(lines):,}]"
    return "\n".join([head, *shown])


def _explain_miss(path: str, text: str, old: str, count: int) -> str:
    if count:
        return f"{path!r} has that text {count} times; give more of the lines around it."
    first = next((line.strip() for line in old.split("\n") if line.strip()), "")
    near = [n for n, line in enumerate(text.split("\n"), 1) if first and first in line][:5]
    where = f"; its first line is like line {', '.join(map(str, near))}" if near else ""
    return f"{path!r} does not have that text{where}. Read it again and copy it exactly."
