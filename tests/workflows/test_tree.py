"""Patches: real git applies what we write, byte for byte, to odd files with odd names."""

from __future__ import annotations

import os
import stat
import subprocess
from pathlib import Path

import pytest

from harness_site.workflows.shared.archive import pack
from harness_site.workflows.shared.tree import (
    compare_trees,
    diff_file,
    list_changes,
    list_files,
    quote_path,
    show_path,
    write_patch,
)
from tests.workflows.test_archive import unpack

LINES = [b"line %d" % number for number in range(40)]


def join(ending: bytes, *, last: bytes | None = None, lines: list[bytes] = LINES) -> bytes:
    return ending.join(lines) + (ending if last is None else last)


def change(content: bytes) -> bytes:
    return (
        content.replace(b"line 3", b"line three", 1)
        .replace(b"line 20", b"line 20\tand\x0cmore\rhere", 1)
        .replace(b"line 35", b"", 1)
    )


CASES: dict[str, tuple[bytes, bytes, int]] = {
    "plain.py": (join(b"\n"), change(join(b"\n")), 0o644),
    "no newline before.py": (join(b"\n", last=b""), join(b"\n") + b"x\n", 0o644),
    "no newline after.py": (join(b"\n"), join(b"\n", last=b""), 0o644),
    "no newline both.py": (join(b"\n", last=b""), join(b"\n", last=b"!"), 0o644),
    "no newline far.py": (join(b"\n", last=b""), change(join(b"\n", last=b"")), 0o644),
    "one line.py": (b"x", b"y", 0o644),
    "emptied.py": (b"import os\n", b"", 0o644),
    "filled.py": (b"", b"import os\n", 0o644),
    "crlf.py": (join(b"\r\n"), change(join(b"\r\n")), 0o644),
    "crlf to lf.py": (join(b"\r\n"), join(b"\n"), 0o644),
    "mixed.py": (b"a\r\nb\nc\rd\n", b"a\nb\r\nc\rd\n", 0o644),
    "bom.py": (b"\xef\xbb\xbf" + join(b"\n"), b"\xef\xbb\xbf" + change(join(b"\n")), 0o644),
    "bom gone.py": (b"\xef\xbb\xbfx = 1\n", b"x = 1\n", 0o644),
    "latin.py": (b"# \xe9\n" + join(b"\n"), b"# \xe8\xff\n" + change(join(b"\n")), 0o644),
    "marks.py": (b"--- a\n+++ b\n@@ -1 +1 @@\n", b"-- a\n++ b\n@@ x\n\\ No newline\n", 0o644),
    "run": (b"#!/usr/bin/env python\n" + join(b"\n"), b"#!/usr/bin/env python3\n", 0o755),
    "deep er/and deeper/a b  c.py": (join(b"\n"), change(join(b"\n")), 0o755),
    "caf\u00e9.py": (join(b"\n"), change(join(b"\n")), 0o644),
    "\u65e5\u672c \u8a9e.py": (join(b"\n"), change(join(b"\n")), 0o644),
    'quo"te.py': (join(b"\n"), change(join(b"\n")), 0o644),
    "-dash.py": (join(b"\n"), change(join(b"\n")), 0o644),
    "a/b/x.py": (join(b"\n"), change(join(b"\n")), 0o644),
    "dev/null": (b"1\n", b"2\n", 0o644),
    " lead and trail ": (b"1\n", b"2\n", 0o644),
    "untouched": (b"\0binary\xff" * 100, b"\0binary\xff" * 100, 0o755),
}


def write_trees(root: Path) -> tuple[Path, Path]:
    for name, (old, new, mode) in CASES.items():
        for side, content in (("before", old), ("after", new)):
            file = root / side / name
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_bytes(content)
            file.chmod(mode)
    return root / "before", root / "after"


def run_git(folder: Path, *arguments: str) -> None:
    """Real git, with nobody's configuration."""
    environment = {"PATH": os.environ["PATH"], "HOME": str(folder), "GIT_CONFIG_NOSYSTEM": "1"}
    done = subprocess.run(
        ["git", *arguments], cwd=folder, env=environment, capture_output=True, check=False
    )
    assert done.returncode == 0, done.stderr.decode(errors="replace")


def read_all(root: Path) -> dict[str, tuple[bytes, int]]:
    return {
        name: ((root / name).read_bytes(), stat.S_IMODE((root / name).stat().st_mode) & 0o111)
        for name in list_files(root)
        if not name.startswith(".git/")
    }


@pytest.mark.parametrize("committed", [False, True])
def test_git_applies_the_patch_to_exactly_the_new_tree(tmp_path: Path, committed: bool) -> None:
    before, after = write_trees(tmp_path)
    patch = tmp_path / "x.patch"
    with patch.open("wb") as out:
        write_patch(before, after, list_changes(before, after), out)
    pack(before, tmp_path / "before.tar.gz")
    pack(after, tmp_path / "after.tar.gz")

    repository = tmp_path / "repository"
    repository.mkdir()
    run_git(repository, "init", "-q")
    unpack(tmp_path / "before.tar.gz", repository)
    if committed:
        run_git(repository, "add", "-A")
        who = ("-c", "user.name=a", "-c", "user.email=a@b")
        run_git(repository, *who, "commit", "-q", "-m", "all")
    run_git(
        repository, "apply", "-p1", "--whitespace=nowarn", *(["--index"] * committed), str(patch)
    )

    unpack(tmp_path / "after.tar.gz", tmp_path / "published")
    assert read_all(repository) == read_all(tmp_path / "published") == read_all(after)
    if committed:
        run_git(repository, "diff", "--exit-code")  # the index and the folder are the same


def test_the_patch_taken_back_gives_the_old_tree(tmp_path: Path) -> None:
    before, after = write_trees(tmp_path)
    with (tmp_path / "x.patch").open("wb") as out:
        write_patch(before, after, list_changes(before, after), out)
    expected = read_all(before)
    run_git(after, "init", "-q")
    run_git(after, "apply", "-R", str(tmp_path / "x.patch"))
    assert read_all(after) == expected


def test_only_what_differs_is_a_change(tmp_path: Path) -> None:
    before, after = write_trees(tmp_path)
    assert set(list_changes(before, after)) == CASES.keys() - {"untouched"}


@pytest.mark.parametrize("spoil", ["add", "remove", "mode"])
def test_trees_of_different_files_or_modes_are_no_change_of_content(
    tmp_path: Path, spoil: str
) -> None:
    before, after = write_trees(tmp_path)
    if spoil == "add":
        (after / "new").touch()
    elif spoil == "remove":
        (after / "plain.py").unlink()
    else:
        (after / "plain.py").chmod(0o755)
    with pytest.raises(ValueError, match=r"added or removed|mode of plain\.py"):
        list_changes(before, after)


def test_a_diff_counts_its_lines(tmp_path: Path) -> None:
    before, after = write_trees(tmp_path)
    diff = diff_file(before, after, "plain.py")
    assert (diff.added, diff.removed) == (3, 3)
    assert diff.lines[0].startswith(b"@@ -1,7 +1,7 @@")


@pytest.mark.parametrize(
    ("path", "quoted", "shown"),
    [
        ("a b.py", b"a b.py", "a b.py"),
        ("caf\u00e9", b'"caf\\303\\251"', "caf\u00e9"),
        ('q"\\', b'"q\\"\\\\"', 'q"\\'),
        ("t\tn\n", b'"t\\tn\\n"', "t\\tn\\n"),
        ("\x01\x7f", b'"\\001\\177"', "\\x01\\x7f"),
        ("rtl\u202e", b'"rtl\\342\\200\\256"', "rtl\\u202e"),
        ("bad\udcff", b'"bad\\377"', "bad\\xff"),
    ],
)
def test_paths_are_quoted_as_git_quotes_and_shown_without_tricks(
    path: str, quoted: bytes, shown: str
) -> None:
    assert quote_path(path) == quoted
    assert show_path(path) == shown


@pytest.mark.parametrize("committed", [False, True])
def test_git_applies_files_that_came_went_or_may_be_run_now(
    tmp_path: Path, committed: bool
) -> None:
    before, after = tmp_path / "before", tmp_path / "after"
    sides = {
        before: {"gone.py": b"x\ny", "gone empty": b"", "same": b"1", "runs": b"a\n", "both": b"1"},
        after: {"new/a b.py": b"x\n", "new empty": b"", "same": b"1", "runs": b"a\n", "both": b"2"},
    }  # fmt: skip
    for root, files in sides.items():
        for name, content in files.items():
            (root / name).parent.mkdir(parents=True, exist_ok=True)
            (root / name).write_bytes(content)
    for name in ("runs", "both", "new empty"):
        (after / name).chmod(0o755)
    paths = compare_trees(before, after)
    assert paths == ["both", "gone empty", "gone.py", "new empty", "new/a b.py", "runs"]
    with (tmp_path / "x.patch").open("wb") as out:
        write_patch(before, after, paths, out)
    expected = read_all(after)
    if committed:
        run_git(before, "init", "-q")
        run_git(before, "add", "-A")
    run_git(before, "apply", "-p1", *["--index"][: int(committed)], str(tmp_path / "x.patch"))
    assert read_all(before) == expected
