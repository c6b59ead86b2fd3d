"""The tools of a task's files: what they do, what they refuse, and what a lost worker leaves."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from ledger.agents import Tool, Toolkit, ask, deny, file_tools
from ledger.agents.kits import finding
from ledger.agents.kits.toolkit import make_tool
from ledger.agents.recording import find_unit
from ledger.models import Approval, Effect, Event
from ledger.testing import LOST
from tests.agents.kit import make_flow, read_transcript
from tests.agents.sessions import Calls, play, read_tree

pytestmark = [pytest.mark.both_databases, pytest.mark.django_db]


def fill_some(root: Path) -> None:
    (root / "src").mkdir()
    (root / "src" / "main.py").write_text("import os\n\nprint('tea')\nprint('milk')\n")
    (root / "src" / "dos.txt").write_bytes(b"one\r\ntwo\r\nthree\r\n")
    (root / "run.sh").write_text("echo tea\n")
    (root / "run.sh").chmod(0o755)
    (root / ".env").write_text("KEY=tea\n")
    (root / "picture").write_bytes(b"\x89PNG\0tea")


def test_a_session_of_every_file_tool() -> None:
    told, ended = play(
        [
            ("list_files", {}),
            ("read_file", {"path": "./src//main.py", "start": 3, "lines": 1}),
            ("search", {"text": r"print\('(\w+)'\)", "regex": True}),
            ("edit_file", {"path": "src/main.py", "old": "tea')\n", "new": "coffee')\n"}),
            ("edit_file", {"path": "src/dos.txt", "old": "one\ntwo", "new": "1\n2"}),
            ("edit_file", {"path": "run.sh", "old": "tea", "new": "té"}),
            ("write_file", {"path": "new/deep/note.md", "text": "# Note\n"}),
            ("move_file", {"path": "new/deep/note.md", "to": "docs/note.md"}),
            ("delete_file", {"path": ".env"}),
            ("read_file", {"path": "src/dos.txt"}),
            ("list_files", {"pattern": "*.md"}),
        ],
        fill=fill_some,
    )  # fmt: skip
    assert told[0].split("\n") == [".env", "picture", "run.sh", "src/dos.txt", "src/main.py"]
    assert told[1] == "[src/main.py: lines 3 to 3 of 4]\nprint('tea')"
    assert told[2] == "src/main.py:3: print('tea')\nsrc/main.py:4: print('milk')"
    assert told[3:5] == ["src/main.py: edited at line 3.", "src/dos.txt: edited at line 1."]
    assert told[6:9] == [
        "new/deep/note.md: made, 7 bytes.", "new/deep/note.md: moved to docs/note.md.",
        ".env: deleted.",
    ]  # fmt: skip
    assert told[9] == "[src/dos.txt: lines 1 to 3 of 3]\n1\n2\nthree"
    assert told[10] == "docs/note.md"
    kept = read_tree(ended)
    assert {path: mode for path, (_, mode) in kept.items()} == {
        "docs/note.md": 0o644, "picture": 0o644, "run.sh": 0o755, "src/dos.txt": 0o644,
        "src/main.py": 0o644,
    }  # fmt: skip
    assert {call["decision"] for call in read_transcript(ended.id)[0]["calls"]} == {"allow"}
    assert not Effect.objects.exclude(name="agent.model").exists(), "files are nothing outside"


REFUSED: list[tuple[str, dict[str, Any], str]] = [
    ("read_file", {"path": "/etc/passwd"}, "is absolute"),
    ("read_file", {"path": "src/../../x"}, "has a .. in it"),
    ("read_file", {"path": "src"}, "is a folder; name a file"),
    ("read_file", {"path": "nothing"}, "is not there; list_files says"),
    ("read_file", {"path": "run.sh/x"}, "is no folder"),
    ("read_file", {"path": "out"}, "is a link to '/etc'"),
    ("read_file", {"path": "out/passwd"}, "is a link to '/etc'"),
    ("read_file", {"path": "inner"}, "is a link to 'run.sh', which is not followed; name that"),
    ("read_file", {"path": "fifo"}, "is a device, FIFO or socket"),
    ("read_file", {"path": ".env"}, "may not be read; what may be is: *, but for .env"),
    ("read_file", {"path": "picture"}, "is no text in UTF-8 (8 bytes)"),
    ("read_file", {"path": "run.sh", "start": 9}, "has 1 lines"),
    ("read_file", {"path": "a" * 300}, "is too long"),
    ("read_file", {"path": "x\0y"}, "hold NUL"),
    ("write_file", {"path": "src/a\nb", "text": ""}, "is no path"),
    ("write_file", {"path": "src/a\u202eb", "text": ""}, "is no path"),
    ("write_file", {"path": "out/x", "text": ""}, "is a link to '/etc'"),
    ("write_file", {"path": "inner", "text": ""}, "is a link; name a file"),
    ("write_file", {"path": "fifo", "text": ""}, "is a device"),
    ("write_file", {"path": "src", "text": ""}, "is a folder"),
    ("write_file", {"path": "sub/.git/hooks/x", "text": ""}, "belongs to git"),
    ("write_file", {"path": "locked/x", "text": ""}, "may not be written; what may be is: src/"),
    ("write_file", {"path": "run.sh", "text": "a\0b"}, "hold NUL"),
    ("edit_file", {"path": "src/main.py", "old": "print", "new": "x"}, "2 times; give more"),
    ("edit_file", {"path": "src/main.py", "old": "print('tea')\nx", "new": "x"}, "like line 3."),
    ("edit_file", {"path": "src/main.py", "old": "", "new": "x"}, "old is empty"),
    ("delete_file", {"path": "src"}, "is a folder"),
    ("move_file", {"path": "run.sh", "to": "src/main.py"}, "is a folder; name a file"),
    ("move_file", {"path": ".env", "to": "src/env"}, "may not be written"),
    ("search", {"text": "(", "regex": True}, "is no regular expression"),
    ("search", {"text": ""}, "nothing to look for"),
]  # fmt: skip


def test_what_is_refused_says_what_and_the_cure_and_nothing_is_changed() -> None:
    def fill(root: Path) -> None:
        fill_some(root)
        (root / "inner").symlink_to("run.sh")

    writes = ["src/", "run.sh", "out", "inner", "fifo", ".git", ".env", "src"]
    kit = file_tools(write=writes, deny=[".env"])
    calls = [(name, args) for name, args, _ in REFUSED]
    told, ended = play([("spoil", {}), *calls, ("tidy", {})], kits=[kit, SPOILER], fill=fill)
    outcomes = told[1:-1]
    for (name, args, why), said in zip(REFUSED, outcomes, strict=True):
        assert why in said, (name, args, said)
    denied = Event.objects.filter(task=ended.id, kind="tool_denied")
    assert "/etc/passwd' is absolute" in denied.order_by("seq")[0].data["reason"]
    assert denied.count() == 8
    kept = read_tree(ended)
    assert sorted(kept) == [".env", "picture", "run.sh", "src/dos.txt", "src/main.py"]


def spoil() -> str:
    """Put into the folder what no manifest holds."""
    root = find_unit().workspace
    (root / "out").symlink_to("/etc")
    os.mkfifo(root / "fifo")
    return "spoiled"


def tidy() -> str:
    """Take it away again."""
    root = find_unit().workspace
    (root / "out").unlink()
    (root / "fifo").unlink()
    return "tidied"


SPOILER = Toolkit(
    [make_tool(spoil), make_tool(tidy)], {"spoil": Tool(local=True), "tidy": Tool(local=True)}
)


def test_a_unit_that_is_lost_makes_its_calls_on_files_again_and_nothing_twice() -> None:
    calls: Calls = [
        ("edit_file", {"path": "run.sh", "old": "tea", "new": "tea tea"}),
        ("edit_file", {"path": "run.sh", "old": "echo", "new": "echo echo"}),
        ("move_file", {"path": "run.sh", "to": "go.sh"}),
        ("read_file", {"path": "go.sh"}),
        ("write_file", {"path": "new", "text": "new"}),
    ]
    told, ended = play(calls, fill=fill_some, faults={"look": [LOST, LOST]})
    assert ended.kinds.count("reclaimed") == 2
    undisturbed, other = play(calls, fill=fill_some)
    assert told == undisturbed
    assert told[3].endswith("\necho echo tea tea")
    assert read_tree(ended) == read_tree(other)


def test_what_the_author_says_comes_before_what_a_kit_says_and_files_stay_files() -> None:
    kit = file_tools(write=["*"])
    calls: Calls = [
        ("write_file", {"path": "a", "text": "1"}),
        ("delete_file", {"path": "a"}),
        ("read_file", {"path": "a"}),
    ]
    tools = {"*": ask(), "delete_file": deny(reason="never"), "read_file": Tool(idempotent=True)}
    answers = {"look": {"decision": "approve", "values": {"path": "b", "text": "2"}}}
    told, ended = play(calls, kits=[kit], tools=tools, answers=answers, fill=fill_some,
                       faults={"look": [LOST, None, LOST]})  # fmt: skip
    assert sorted(told) == sorted([
        "This call is not allowed: never.", "'a' is not there; list_files says what is.",
        "b: made, 1 bytes.",
    ])  # fmt: skip
    assert Approval.objects.count() == 1
    assert "b" in read_tree(ended), "the approved unit was lost once, and its file with it"
    with pytest.raises(ValueError, match="two kits have a tool 'read_file'"):
        make_flow(None, kits=[kit, file_tools()])
    with pytest.raises(ValueError, match="excludes; put it into deny="):
        file_tools(["*", "!secrets/"])
    with pytest.raises(ValueError, match="takes a list"):
        file_tools("*")


def test_an_edit_that_finds_its_own_work_done_does_nothing() -> None:
    edit = ("edit_file", {"path": "run.sh", "old": "echo tea", "new": "exec tea"})
    told, _ = play([edit, edit], fill=fill_some)
    assert told == [
        "run.sh: edited at line 1.",
        "run.sh: nothing to do, the new text is there already.",
    ]


def test_what_is_shown_is_bounded_and_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(finding, "MAX_SECONDS", 0.5)

    def fill(root: Path) -> None:
        (root / "long").write_text("x" * 100_000 + "\nend\n")
        (root / "many").write_text("line\n" * 10_000)
        (root / "slow").write_text("a" * 60 + "!\n")
        (root / "large").write_bytes(b"line\n" * 500_000)
        for n in range(510):
            (root / f"{n}.txt").touch()

    told, _ = play(
        [
            ("read_file", {"path": "long"}),
            ("read_file", {"path": "many", "lines": 1_000_000}),
            ("search", {"text": "line", "pattern": "many"}),
            ("search", {"text": "line", "pattern": "large"}),
            ("search", {"text": "(a+)+$", "pattern": "slow", "regex": True}),
            ("list_files", {"pattern": "*.txt", "limit": 10**9}),
            ("read_file", {"path": "many", "start": 9_999}),
        ],
        fill=fill,
    )  # fmt: skip
    assert len(told[0]) < 41_000
    assert told[0].endswith("[the line goes on, 100,000 characters in all]")
    assert told[1].startswith("[many: lines 1 to 2000 of 10,000]")
    assert told[2].endswith("[more than 100 lines fit; look for something narrower]")
    assert told[3] == "[no line fits]\n[1 files of more than 2 MiB were left out]"
    assert "took over 0.5 s; use a simpler expression" in told[4]
    assert told[5].endswith("\n[10 more; use a narrower pattern]")
    assert told[6] == "[many: lines 9999 to 10000 of 10,000]\nline\nline"
