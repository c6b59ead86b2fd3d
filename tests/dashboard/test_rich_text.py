"""Text from models and tools can neither run, nor load, nor hide anything."""

from __future__ import annotations

import re
import time

import pytest

from dashboard.rich_text import render_markdown, reveal_page

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
    for part in ("<h2>A</h2>", "<strong>b</strong>", "<code>c</code>", "<td>1</td>"):
        assert part in html
    assert 'rel="noopener noreferrer nofollow"' in html


def test_headings_follow_those_of_the_page_and_leave_no_level_out() -> None:
    html = render_markdown("### a\n\n# b\n\n#### c\n\nd\n---\n")
    assert re.findall(r"<h(\d)>(\w)</h(\d)>", html) == [
        ("2", "a", "2"), ("2", "b", "2"), ("3", "c", "3"), ("3", "d", "3")
    ]  # fmt: skip


def test_direction_marks_are_written_out() -> None:
    assert "[U+202E]" in render_markdown("pay \u202e001")


@pytest.mark.case(64)
def test_a_page_has_no_sign_that_nobody_sees_but_in_fields() -> None:
    plain = "<p>é “x” …\n\t</p>".encode()
    assert reveal_page(plain) is plain
    odd = '\u202e<p title="a\x1b[2J">\x9b\ufeff\U000e0041</p>'.encode()
    assert reveal_page(odd) == (b'[U+202E]<p title="a[U+001B][2J">[U+009B][U+FEFF][U+E0041]</p>')
    kept = '<textarea name="a">\u202e</textarea><input value="\u202e">'.encode()
    assert reveal_page(kept + b"\x07") == kept + b"[U+0007]"


def test_a_text_beyond_its_bound_is_shown_as_it_is_written() -> None:
    """A model's megabyte of brackets would keep the page of its question for a minute."""
    began = time.monotonic()
    html = render_markdown("<b>" + "![" * 1_000_000)
    assert time.monotonic() - began < 20
    assert html.startswith("<pre>&lt;b&gt;![![")
    assert html.endswith("![</pre>")
