"""What a question asks otherwise than the same question asked before, as its reader last saw it."""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from typing import Any

from dashboard import changes
from dashboard.answers import say_value
from dashboard.diffs import MAX_CHARACTERS, mark_diff
from ledger.models import Approval
from ledger.queries.approvals import list_edits
from ledger.queries.questions import find_earlier

MAX_LINES = 1_000
"""Of each text; what is longer is said to have changed and not compared."""


def compare_asked(row: Approval, asked: Iterable[dict[str, Any]]) -> dict[str, Any] | None:
    """What changed since the earlier question that this person saw last, else since the last one;
    None for a question that is asked for the first time. `asked` are the others of the task."""
    found = find_earlier(row, asked)
    if found is None:
        return None
    old, seen_at = found
    return {
        "old": old,
        "seen_at": seen_at,
        "texts": [
            text
            for text in (
                compare_text("Title", old.subject, row.subject),
                compare_text("Text", old.body, row.body),
                compare_text("Full request", *(dump_rest(one) for one in (old, row))),
            )
            if text
        ],
        "files": compare_files(old, row),
        "edits": [
            {
                "name": one["name"],
                "old": say_value(one["proposed"]),
                "new": say_value(one["answered"]),
            }
            for one in list_edits(old.proposal, row.proposal)
        ],
    }


def dump_rest(row: Approval) -> str:
    """Of the payload what is no changed file, as text."""
    return str(changes.list_rest(row.payload).get("other", ""))


def compare_text(name: str, old: str, new: str) -> dict[str, Any] | None:
    """A text's diff as lines; None where it stayed the same."""
    if old == new:
        return None
    before, after = old.splitlines(), new.splitlines()
    if max(len(before), len(after)) > MAX_LINES or max(len(old), len(new)) > MAX_CHARACTERS:
        return {"path": name, "lines": ()}
    diff = "\n".join(difflib.unified_diff(before, after, lineterm=""))
    return {"path": name, "lines": mark_diff(diff)}


def compare_files(old: Approval, new: Approval) -> list[tuple[str, str]]:
    """(path, what became of its change) of each file whose change is another one now."""
    before, after = (
        {file.path: file.diff for file in changes.read_changes(one.payload, one.attached).files}
        for one in (old, new)
    )
    said = [
        (path, "is changed otherwise" if path in before else "is changed now")
        for path, diff in after.items()
        if before.get(path) != diff
    ]
    return said + [(path, "is left as it was now") for path in before if path not in after]
