"""Diffs as lines, the words that changed, and payloads of any form."""

from __future__ import annotations

import time

import pytest

from dashboard.changes import list_rest, read_changes, read_tests
from dashboard.diffs import MAX_CHARACTERS, MAX_LINES, MAX_PAIR, is_cut, mark_diff, read_diff

DIFF = """diff --git a/x.py b/x.py
--- a/x.py
+++ b/x.py
@@ -1,3 +1,4 @@ def f():
 a
-b
+c\u202e
+--- not a header
 d
\\ No newline at end of file
"""


def test_a_diff_is_read_with_both_numbers() -> None:
    lines = [(line.kind, line.old, line.new, line.text) for line in read_diff(DIFF)]
    assert lines == [
        ("hunk", None, None, "@@ -1,3 +1,4 @@ def f():"),
        ("", 1, 1, "a"),
        ("del", 2, None, "b"),
        ("add", None, 2, "c[U+202E]"),
        ("add", None, 3, "--- not a header"),
        ("", 3, 4, "d"),
        ("note", None, None, "No newline at end of file"),
    ]


def test_a_change_of_line_ends_alone_is_seen() -> None:
    assert not list(read_diff(f"@@ -{'9' * 5_000} +1 @@\n-a\n")), "no file has so many lines"
    lines = list(read_diff("@@ -1 +1 @@\n-a\r\n+a\n"))
    assert lines[1].text != lines[2].text


def mark(old: str, new: str) -> list[str]:
    """A pair of lines with the changed words in brackets."""
    lines = mark_diff(f"@@ -1 +1 @@\n-{old}\n+{new}\n")[1:]
    assert [line.text for line in lines] == [old, new]
    for line in lines:
        assert not line.parts or "".join(text for _, text in line.parts) == line.text
    return ["".join(f"[{t}]" if changed else t for changed, t in line.parts) for line in lines]


def test_the_words_that_changed_are_marked() -> None:
    assert mark("class RawJSON(object):", "class RawJSON:") == [
        "class RawJSON[(object)]:",
        "class RawJSON:",
    ]


def test_lines_that_have_little_in_common_are_not_marked() -> None:
    assert mark("import os", "return [x for x in y]") == ["", ""]


@pytest.mark.parametrize("more", [0, 1])
def test_a_pair_of_four_hundred_characters_is_not_compared(more: int) -> None:
    long = "word" * (MAX_PAIR // 4 - 2)
    line = long + "x" * (MAX_PAIR - len(long) - 4 + 3 * more)
    assert bool(mark(f"{line} a", f"{line} b")[0]) is not bool(more)


def test_lines_pair_up_in_order_where_there_is_one_for_each() -> None:
    changed = "-a = 1\n-b = 1\n+a = 2\n+b = 2\n"
    lines = mark_diff(f"@@ -1,2 +1,3 @@\n{changed}")
    assert [bool(line.parts) for line in lines] == [False, True, True, True, True]
    lines = mark_diff(f"@@ -1,2 +1,3 @@\n{changed}+c = 2\n")
    assert not any(line.parts for line in lines)


def test_lines_of_brackets_alone_cost_little() -> None:
    pair = "-" + "(" * 110 + "a\n+" + ")(" * 55 + "b\n"
    begun = time.process_time()
    mark_diff("@@ -1 +1 @@\n" + pair * 2_400)
    assert time.process_time() - begun < 10


@pytest.mark.parametrize(
    ("diff", "cut"),
    [
        ("+x\n" * 100, False),
        ("+x\n" * (MAX_LINES + 10), True),
        ("+" + "x" * MAX_CHARACTERS, True),
    ],
    ids=["short", "many lines", "long"],
)
def test_a_huge_diff_is_cut_and_says_so(diff: str, cut: bool) -> None:
    given = {"path": "x", "diff": f"@@ -1 +1,9 @@\n{diff}"}
    file = read_changes({"files": [given]}, only=0).files[0]
    assert is_cut(file.diff) is cut
    assert file.cut == ("here" if cut else "")
    assert len(file.lines) <= MAX_LINES


@pytest.mark.parametrize(
    "payload",
    [None, [], "text", 7, {}, {"files": None}, {"files": {"a": 1}}, {"files": [1, {"path": 3}]},
     {"files": [{"diff": 5}]}, {"left_alone": [1], "tests": 3}, {"tests": {"before": [1]}},
     {"whole": 7}, {"whole": "../../etc/passwd"}],
)  # fmt: skip
def test_a_payload_of_any_form_is_shown(payload: object) -> None:
    found = read_changes(payload)
    assert (found.files, found.whole) == ([], "")
    assert isinstance(list_rest(payload), dict)


def test_files_past_the_budget_come_later_but_come() -> None:
    long = {"path": "a.py", "diff": "@@ -1 +1,9 @@\n" + "+x\n" * 1_000}
    payload = {"files": [long, long | {"path": "b.py"}]}
    files = read_changes(payload).files
    assert [(one.path, one.added, one.later) for one in files] == [
        ("a.py", 1_000, False),
        ("b.py", 1_000, True),
    ]
    assert len(read_changes(payload, only=1).files[1].lines) == 1_001


def test_what_nobody_can_open_is_named() -> None:
    files = [{"path": "a", "diff": "", "cut": True}, {"path": "b", "diff": ""}]
    assert read_changes({"files": files}).hidden == ["a"]
    whole = "01a226da-0000-7000-8000-00000000db66"
    assert read_changes({"files": files, "whole": whole}).hidden == []


def test_tests_are_read_in_both_forms() -> None:
    assert read_tests({"before": {"ran": 2}, "after": {"ran": 3, "failed": 1}}) == {
        "rows": [("ran", 2, 3), ("failed", None, 1)],
        "facts": [],
    }
    given = {"kind": "unittest", "before": 2, "after": 3, "skipped_before": 0, "skipped_after": 1}
    assert read_tests(given) == {
        "rows": [("ran", 2, 3), ("skipped", 0, 1)],
        "facts": [("kind", "unittest")],
    }
