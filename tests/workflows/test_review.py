"""What people read, and what their comments do."""

from __future__ import annotations

import dataclasses
import io

import pytest

from dashboard.rich_text import render_markdown
from harness_site.workflows.modernise import review
from harness_site.workflows.modernise.checks import TestRun
from harness_site.workflows.shared import showing
from harness_site.workflows.shared.tree import FileDiff

HELD = ["files", "network", "processes"]
RUN = TestRun("unittest", 283, 21, 45, [], "", "", HELD, 1.25)
DIFF = FileDiff(
    "pkg/a.py", [b"@@ -1,1 +1,2 @@\n", b"-import os\n", b"+x = '\xe9\0'\n", b"+y\n"], 2, 1
)
PROPOSAL = review.Proposal("pkg 1.0", ["UP", "F"], "py312", [DIFF], {}, RUN, RUN, 0)


def test_the_question_says_what_changes_and_what_was_checked() -> None:
    assert PROPOSAL.subject == "Take ruff's fixes in 1 file of pkg 1.0?"
    body, report = PROPOSAL.write_body(), PROPOSAL.write_report(None)
    for text in (body, report):
        assert "**1 file** (+2 -1), found good at once." in text
        assert "cut off from the network, the site's processes and its keys" in text
    assert "| tests that ran (unittest) | 283 | 283 |" in report
    assert "Left as they were" not in report
    assert PROPOSAL.risk == "low"


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"left_alone": {"a_b*.py": "1 of 9 | failed"}}, "- `a_b*.py`: 1 of 9 \\| failed"),
        ({"after": dataclasses.replace(RUN, held=["files"])}, "**Not cut off** from the network"),
        ({"after": dataclasses.replace(RUN, held=[])}, "**Not cut off** from the network, the"),
        ({"before": dataclasses.replace(RUN, kind="compile")}, "| Python files that compile (com"),
    ],
)
def test_what_speaks_against_is_said_and_raises_the_risk(
    changes: dict[str, object], text: str
) -> None:
    proposal = dataclasses.replace(PROPOSAL, **changes)  # type: ignore[arg-type]
    assert text in proposal.write_report(None)
    assert not text.startswith("**") or text in proposal.write_body()
    assert proposal.risk == "medium"


def test_the_report_tells_who_approved_and_what_they_said() -> None:
    answer = {"by": "user:3", "comment": "fine\n## <b>"}
    text = dataclasses.replace(PROPOSAL, rounds=2, note="no scope").write_report(answer)
    assert "found good after 2 restarts." in text
    assert "Approved by `user:3`.\n\n> fine\n> \\#\\# \\<b\\>\n" in text
    assert "**Only compiled:** no scope." in text
    assert "| `pkg/a.py` | 2 | 1 |" in text
    assert "<b>" not in render_markdown(text)


def test_the_payload_can_be_stored_and_shown() -> None:
    payload = PROPOSAL.describe_payload()
    (file,) = payload["files"]
    assert file["diff"] == "@@ -1,1 +1,2 @@\n-import os\n+x = '\\xe9\\x00'\n+y\n"
    assert payload["tests"] == {
        "kind": "unittest",
        "before": 283,
        "after": 283,
        "skipped_before": 21,
        "skipped_after": 21,
        "network": "cut off",
    }


def test_long_diffs_are_cut_at_a_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(showing, "MAX_DIFF", 100)
    monkeypatch.setattr(showing, "MAX_DIFFS", 150)
    long = FileDiff("b", [b"+12345678\n"] * 15, 15, 0)
    proposal = dataclasses.replace(PROPOSAL, diffs=[long, long, long])
    files = proposal.describe_payload()["files"]
    assert [len(file["diff"]) for file in files] == [100, 50, 0]
    assert all(file["cut"] and file["added"] == 15 for file in files)
    out = io.BytesIO()
    showing.write_changes(proposal.diffs, out)
    assert out.getvalue() == (b"=== b +15 -0\n" + b"+12345678\n" * 15) * 3


PATHS = ["pkg/a.py", "pkg/b.py", "pkg/sub/b.py", "pkg/my file.py", "top.py"]


@pytest.mark.parametrize(
    ("comment", "found"),
    [
        ("", []),
        ("looks good", []),
        ("leave pkg/a.py alone", ["pkg/a.py"]),
        ("Not a.py, please.", ["pkg/a.py"]),
        ("`pkg/sub/b.py`; (top.py).", ["pkg/sub/b.py", "top.py"]),
        ("b.py is two files", []),
        ("and 'pkg/my file.py'", ["pkg/my file.py"]),
        ("xpkg/a.py, pkg/a.pyc, other/top.py2", []),
    ],
)
def test_a_comment_names_files_in_full_or_by_their_own_name(comment: str, found: list[str]) -> None:
    assert review.find_named_files(comment, PATHS) == found
