"""What a question would change: the files of its payload as diffs, the tests, the rest as it is."""

from __future__ import annotations

import dataclasses
import json
import re
from typing import Any

from dashboard.comparing import LOST, compare
from dashboard.diffs import Line, is_cut, mark_diff, read_diff
from dashboard.evaluations import read_evaluation
from ledger.ids import read_id

MAX_LINES_SHOWN = 1_500
"""Diff lines on the page itself; files past them are loaded when they are opened."""

KNOWN = frozenset({"files", "left_alone", "tests", "whole"})


@dataclasses.dataclass(slots=True)
class FileChange:
    """One file of a request.

    `lines` are empty when they are `later` to be loaded. `cut` says why they are not the whole
    change: "here" (the page stops, all of it is a download) or "there" (the workflow sent a part).
    `fresh` says what became of its change since it was asked before.
    `pair` are the two artifacts that are compared, and `why` says why their diff is not shown.
    """

    index: int
    path: str
    added: int
    removed: int
    diff: str
    lines: tuple[Line, ...] = ()
    later: bool = False
    cut: str = ""
    pair: tuple[dict[str, Any], ...] = ()
    why: str = ""
    fresh: str = ""

    @property
    def is_test(self) -> bool:
        """True for what only tests read."""
        return bool(re.search(r"(^|/)(tests?/|test_[^/]*$|[^/]*_test\.\w+$)", self.path))


@dataclasses.dataclass(frozen=True, slots=True)
class Changes:
    """The changed files with their sums; `whole` is the artifact that has all of every diff."""

    files: list[FileChange]
    whole: str

    @property
    def added(self) -> int:
        """Lines added, in all files."""
        return sum(file.added for file in self.files)

    @property
    def removed(self) -> int:
        """Lines removed, in all files."""
        return sum(file.removed for file in self.files)

    @property
    def hidden(self) -> list[str]:
        """The files that nobody can read to their end: what can't be opened can't be approved."""
        lost = [file.path for file in self.files if file.why == LOST]
        cut = [file.path for file in self.files if file.cut == "there" and not self.whole]
        return [*lost, *cut]


def read_changes(payload: Any, attached: Any = None, *, only: int | None = None) -> Changes:
    """The changed files of `payload`, which is a workflow's and so may have any form; first the
    two artifacts that the question compares.

    `only` asks for the lines of that one file, however long; else the first files have theirs.
    """
    given = payload if isinstance(payload, dict) else {}
    entries = given.get("files")
    found = [read_comparison(*attached["diff"])] if attached and attached["diff"] else []
    for entry in entries if isinstance(entries, list) else ():
        if isinstance(entry, dict) and isinstance(entry.get("diff"), str):
            found.append(read_file(len(found), entry))
    files: list[FileChange] = []
    budget = MAX_LINES_SHOWN
    for file in found:
        count = file.diff.count("\n")
        file.later = only is None and count > budget
        if file.index == only or (only is None and not file.later):
            file.lines = mark_diff(file.diff)
            budget -= count
        files.append(file)
    return Changes(files, str(read_id(given.get("whole")) or ""))


def read_file(index: int, entry: dict[str, Any]) -> FileChange:
    """One entry without its lines. What the workflow counted counts: a cut diff holds fewer."""
    diff = entry["diff"]
    cut = "there" if entry.get("cut") is True else "here" if is_cut(diff) else ""
    counts = [entry.get("added"), entry.get("removed")]
    if not all(isinstance(one, int) and not isinstance(one, bool) for one in counts):
        kinds = [line.kind for line in read_diff(diff)]
        counts = [kinds.count("add"), kinds.count("del")]
    added, removed = (int(one or 0) for one in counts)
    return FileChange(index, str(entry.get("path", "")), added, removed, diff, cut=cut)


def read_comparison(old: dict[str, Any], new: dict[str, Any]) -> FileChange:
    """Two artifacts as a changed file, without its lines."""
    name = new["name"] if old["name"] == new["name"] else f"{old['name']} → {new['name']}"
    diff, why = compare(old, new)
    file = read_file(0, {"path": name, "diff": diff})
    file.pair, file.why = (old, new), why
    return file


def list_rest(payload: Any) -> dict[str, Any]:
    """`left_alone` (path, why), `tests`, `evaluation` and, as JSON text, what else there is."""
    if not isinstance(payload, dict):
        return {"other": dump(payload)} if payload is not None else {}
    rest: dict[str, Any] = {}
    left = payload.get("left_alone")
    if isinstance(left, list) and all(isinstance(one, dict) for one in left):
        rest["left_alone"] = left
    if isinstance(payload.get("tests"), dict):
        rest["tests"] = read_tests(payload["tests"])
    if evaluation := read_evaluation(payload):
        rest["evaluation"] = evaluation
    shown = KNOWN | {"evaluation"} if evaluation else KNOWN
    other = {key: value for key, value in payload.items() if key not in shown}
    if other:
        rest["other"] = dump(other)
    return rest


def read_tests(tests: dict[str, Any]) -> dict[str, Any]:
    """`rows` (what, before, after) and `facts` (what, value).

    Two forms are read: `before` and `after` as objects of figures, or figures each under a name
    that ends in `before` or `after` ("skipped_before"); a bare one is what ran.
    """
    rows: dict[str, list[Any]] = {}
    facts = []
    for name, value in tests.items():
        what, _, when = name.rpartition("_")
        if when not in {"before", "after"}:
            facts.append((name, value))
            continue
        place = int(when == "after")
        figures = value if isinstance(value, dict) else {what or "ran": value}
        for key, figure in figures.items():
            rows.setdefault(key, [None, None])[place] = figure
    return {"rows": [(key, *pair) for key, pair in rows.items()], "facts": facts}


def dump(value: Any) -> str:
    """Indented JSON."""
    return json.dumps(value, indent=2, ensure_ascii=False)
