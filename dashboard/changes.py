"""What a question would change: the files of its payload as diffs, the rest as it is."""

from __future__ import annotations

import dataclasses
import json
from typing import Any

from dashboard.rich_text import Line, read_diff

MAX_LINES_SHOWN = 1_500
"""Diff lines on the page itself; files past them are loaded when they are opened."""

KNOWN = frozenset({"files", "left_alone", "tests"})


@dataclasses.dataclass(slots=True)
class FileChange:
    """One file: its counts, and its lines unless they are to be loaded later."""

    path: str
    added: int
    removed: int
    lines: list[Line]
    later: bool = False


def list_files(payload: Any, *, everything: bool = False) -> list[FileChange]:
    """The changed files of `payload`, which is a workflow's and so may have any form."""
    entries = payload.get("files") if isinstance(payload, dict) else None
    files, budget = [], MAX_LINES_SHOWN
    for entry in entries if isinstance(entries, list) else ():
        if not isinstance(entry, dict) or not isinstance(entry.get("diff"), str):
            continue
        lines = list(read_diff(entry["diff"]))
        if entry.get("cut") is True:
            lines.append(Line("note", None, None, "Cut here: this is not the whole change."))
        change = FileChange(
            str(entry.get("path", "")),
            _read_count(entry, "added", "add", lines),
            _read_count(entry, "removed", "del", lines),
            lines,
        )
        if not everything and len(lines) > budget:
            change.lines, change.later = [], True
        else:
            budget -= len(lines)
        files.append(change)
    return files


def _read_count(entry: dict[str, Any], name: str, kind: str, lines: list[Line]) -> int:
    """What the workflow says, as a cut diff holds fewer; else what is seen."""
    said = entry.get(name)
    return said if type(said) is int else sum(line.kind == kind for line in lines)


def list_rest(payload: Any) -> dict[str, Any]:
    """`left_alone` and `tests` of the payload where they have the known form, `other` as JSON."""
    if not isinstance(payload, dict):
        return {"other": dump(payload)} if payload is not None else {}
    rest: dict[str, Any] = {}
    left = payload.get("left_alone")
    if isinstance(left, list) and all(isinstance(one, dict) for one in left):
        rest["left_alone"] = left
    if isinstance(payload.get("tests"), dict):
        rest["tests"] = payload["tests"]
    other = {key: value for key, value in payload.items() if key not in KNOWN}
    if other:
        rest["other"] = dump(other)
    return rest


def dump(value: Any) -> str:
    """Indented JSON."""
    return json.dumps(value, indent=2, ensure_ascii=False)
