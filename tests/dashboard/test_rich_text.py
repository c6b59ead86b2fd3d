"""Text from models and tools can neither run, nor load, nor hide anything."""

from __future__ import annotations

import pytest

from dashboard.changes import list_files, list_rest
from dashboard.rich_text import MAX_DIFF_LINES, read_diff, render_markdown

HOSTILE = [
    "<script>alert(1)</script>",
    "<img src=x onerror=alert(1)>",
    "[click](javascript:alert(1))",
    "[click](data:text/html,<script>alert(1)</script>)",
    "![pixel](https://evil.example/p.png)",
    '<a href="https://a.example" onclick="x()">a</a>',
    "<iframe src=//evil.example></iframe>",
    '<p style="position:fixed">x</p>',
    "<svg><script>alert(1)</script></svg>",
    '<div hx-get="/logout/" hx-trigger="load">x</div>',
    "<hx-partial hx-target='#decision'>x</hx-partial>",
    "[a]: javascript:alert(1)\n\n[a]",
]


@pytest.mark.parametrize("text", HOSTILE)
def test_markdown_can_do_no_harm(text: str) -> None:
    html = render_markdown(text)
    for tag in ("<script", "<img", "<iframe", "<svg", "<div", "<hx-", "<p style"):
        assert tag not in html
    assert 'href="javascript' not in html
    assert 'href="data' not in html


def test_markdown_keeps_what_is_safe() -> None:
    html = render_markdown(
        "# A\n\n**b** `c`\n\n| x | y |\n|---|---|\n| 1 | 2 |\n\n<https://a.example>"
    )
    for part in ("<h1>A</h1>", "<strong>b</strong>", "<code>c</code>", "<td>1</td>"):
        assert part in html
    assert 'rel="noopener noreferrer nofollow"' in html


def test_direction_marks_are_written_out() -> None:
    assert "[U+202E]" in render_markdown("pay \u202e001")


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
    lines = list(read_diff("@@ -1 +1 @@\n-a\r\n+a\n"))
    assert lines[1].text != lines[2].text


def test_a_huge_diff_is_cut_and_says_so() -> None:
    lines = list(read_diff("@@ -1 +1,9 @@\n" + "+x\n" * (MAX_DIFF_LINES + 10)))
    assert len(lines) == MAX_DIFF_LINES + 1
    assert lines[-1].kind == "note"


@pytest.mark.parametrize(
    "payload",
    [None, [], "text", 7, {}, {"files": None}, {"files": {"a": 1}}, {"files": [1, {"path": 3}]},
     {"files": [{"diff": 5}]}, {"left_alone": [1], "tests": 3}],
)  # fmt: skip
def test_a_payload_of_any_form_is_shown(payload: object) -> None:
    assert list_files(payload) == []
    assert isinstance(list_rest(payload), dict)


def test_files_past_the_budget_come_later_but_come() -> None:
    long = {"path": "a.py", "diff": "@@ -1 +1,9 @@\n" + "+x\n" * 1_000}
    files = list_files({"files": [long, long | {"path": "b.py"}]})
    assert [(one.path, one.added, one.later) for one in files] == [
        ("a.py", 1_000, False),
        ("b.py", 1_000, True),
    ]
    assert [one.later for one in list_files({"files": [long, long]}, everything=True)] == [
        False,
        False,
    ]
