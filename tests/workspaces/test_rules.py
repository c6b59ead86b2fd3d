"""What a tree may hold, what of it is kept, and what is refused with a path and a cure."""

from __future__ import annotations

import contextlib
import os
import stat
import time
from pathlib import Path
from typing import Any

import pytest

from ledger import blobs
from ledger.filerules import Workspace
from ledger.sql import Claimed
from ledger.workflows import Workflow
from ledger.workspaces import (
    Entry,
    TaskFolder,
    WorkspaceRefused,
    read_manifest,
    restore_tree,
    scan_tree,
    trees,
    write_manifest,
)
from ledger.workspaces.scanning import measure_tree
from tests.held import claim_new, make_workflow
from tests.workspaces.kit import describe, forget_home, move_on

pytestmark = pytest.mark.django_db

RULES = Workspace(ignore=["node_modules/", "*.pyc", "/build", "!keep.pyc"])


def fill(root: Path) -> None:
    for path in (
        "src/a.py", "src/a.pyc", "src/keep.pyc", "src/build", "build/x", "node_modules/m/index.js",
        "src/node_modules/n.js", "src/modules", "src/deep/node_modules",
    ):  # fmt: skip
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_text(path)


def test_ignored_files_are_not_stored_and_stay_where_the_folder_stays() -> None:
    held = claim_new(make_workflow())
    folder = TaskFolder(held, RULES)
    fill(folder.path)
    before = describe(folder.path)
    move_on(held, folder)
    kept = set(read_manifest(held.workspace))
    assert kept == {
        "src", "src/a.py", "src/keep.pyc", "src/build", "src/modules", "src/deep",
        "src/deep/node_modules",
    }  # fmt: skip
    (folder.path / "src" / "a.py").write_text("not accepted")
    again = TaskFolder(held, RULES)
    assert describe(again.path) == before
    assert again.snapshot() == held.workspace
    forget_home()
    assert set(describe(TaskFolder(held, RULES).path)) == kept


def test_what_has_come_to_be_ignored_is_promised_no_more() -> None:
    held = claim_new(make_workflow())
    folder = TaskFolder(held)
    fill(folder.path)
    move_on(held, folder)
    forget_home()
    folder = TaskFolder(held, RULES)
    assert not {"build", "build/x", "node_modules", "src/a.pyc"} & set(describe(folder.path))
    (folder.path / "build").write_text("a file where a folder was kept")
    before = held.workspace
    move_on(held, folder)
    assert held.workspace != before
    assert "build" not in read_manifest(held.workspace)


@pytest.mark.parametrize(
    ("ignore", "kept"),
    [
        (["*.log", "!docs"], {"docs/a.txt", "a.txt", "x.py/a.txt", "x.py/b/a.txt"}),
        (["b", "!x.py"], {"docs/a.txt", "docs/a.log", "a.txt", "a.log", "x.py/a.txt"}),
        (["docs/**", "!docs/a.log"], {"docs/a.log", "a.txt", "a.log", "x.py/a.txt",
                                      "x.py/b/a.txt"}),
        (["*", "!*/", "!*.txt"], {"docs/a.txt", "a.txt", "x.py/a.txt", "x.py/b/a.txt"}),
        (["/*", "!/docs"], {"docs/a.txt", "docs/a.log"}),
        (["docs", "!docs/a.txt", "x.py/*", "!x.py/b/"], {"a.txt", "a.log", "x.py/b/a.txt"}),
    ],
)  # fmt: skip
def test_patterns_hold_for_a_path_itself_as_git_has_them(
    tmp_path: Path, ignore: list[str], kept: set[str]
) -> None:
    for path in ("docs/a.txt", "docs/a.log", "a.txt", "a.log", "x.py/a.txt", "x.py/b/a.txt"):
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text("")
    found = scan_tree(tmp_path, Workspace(ignore=ignore))
    assert {path for path, entry in found.items() if entry.kind == "file"} == kept


def test_a_kept_path_wins_over_what_is_ignored_there() -> None:
    rules = Workspace(ignore=["out/"])
    held = claim_new(make_workflow())
    folder = TaskFolder(held, rules)
    (folder.path / "out").write_text("a file, which the pattern for folders lets be kept")
    move_on(held, folder)
    (folder.path / "out").unlink()
    (folder.path / "out" / "deep").mkdir(parents=True)
    assert (TaskFolder(held, rules).path / "out").is_file()


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"ignore": "*.pyc"}, "a list of texts"),
        ({"ignore": [""]}, "a list of texts"),
        ({"setup": "make"}, "a list of texts"),
        ({"outputs": [".venv"]}, "those of setup="),
        ({"setup": ["make"], "outputs": ["../x"]}, "no path inside"),
        ({"setup": ["make"], "inputs": ["/etc/passwd"]}, "no path inside"),
        ({"setup": ["make"], "inputs": ["a/x.pyc"], "ignore": ["*.pyc"]}, "never there"),
        ({"setup": ["make"], "inputs": ["out/x"], "outputs": ["out"]}, "never there"),
    ],
)
def test_rules_that_can_not_be_are_refused_where_they_are_written(
    options: dict[str, Any], why: str
) -> None:
    with pytest.raises(ValueError, match=why):
        Workspace(**options)
    with pytest.raises(ValueError, match="takes a Workspace"):
        Workflow("x", workspace={"ignore": []})  # type: ignore[arg-type]


def run_as_nobody(root: Path) -> str:
    """What a worker that is not root says of the tree."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        with contextlib.suppress(BaseException):
            if os.geteuid() == 0:
                os.setuid(65534)
            try:
                scan_tree(root)
            except WorkspaceRefused as error:
                os.write(writing, str(error).encode())
        os._exit(0)
    os.close(writing)
    os.waitpid(child, 0)
    with os.fdopen(reading) as file:
        return file.read()


def test_what_can_not_be_read_is_refused_with_its_path(tmp_path: Path) -> None:
    for folder in (tmp_path, *tmp_path.parents[:3]):
        folder.chmod(0o755)
    (tmp_path / "file").touch(0o000)
    assert "'file' can't be read by the worker" in run_as_nobody(tmp_path)
    (tmp_path / "file").unlink()
    (tmp_path / "folder").mkdir(0o000)
    assert "'folder' can't be read by the worker" in run_as_nobody(tmp_path)


def test_a_folder_too_deep_to_be_named_is_refused_and_can_be_removed(tmp_path: Path) -> None:
    root = tmp_path / "root"
    root.mkdir()
    with contextlib.chdir(root):
        for _ in range(40):
            os.mkdir("d" * 200)
            os.chdir("d" * 200)
        os.chdir(tmp_path)
    with pytest.raises(WorkspaceRefused, match="lies too deep"):
        scan_tree(root)
    restore_tree({}, root)
    assert list(root.iterdir()) == []


def test_the_link_that_is_kept_is_the_one_that_was_judged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "link").symlink_to("../../etc/passwd")
    read = os.readlink

    def read_and_swap(path: Any, **options: Any) -> str:
        monkeypatch.undo()
        target = read(path, **options)
        os.unlink(path)
        os.symlink("harmless", path)
        return target

    monkeypatch.setattr(os, "readlink", read_and_swap)
    with pytest.raises(WorkspaceRefused, match=r"links out of the workspace, to '\.\./\.\./etc"):
        scan_tree(tmp_path)
    assert scan_tree(tmp_path)["link"].target == "harmless"


def test_what_is_ignored_may_be_anything() -> None:
    """It is neither stored nor promised, so nothing in it fails a unit."""
    held = claim_new(make_workflow())
    rules = Workspace(ignore=["cache/"])
    folder = TaskFolder(held, rules)
    (folder.path / "kept").write_text("x")
    at = os.open(folder.path, os.O_RDONLY)
    for name in ("cache", *["n" * 200] * 30):  # deeper than a path can say
        os.mkdir(name, dir_fd=at)
        below = os.open(name, os.O_RDONLY, dir_fd=at)
        os.close(at)
        at = below
    os.mkfifo("pipe", dir_fd=at)
    os.close(at)
    (folder.path / "cache" / "large").write_bytes(b"x" * 1_000)
    os.symlink("/etc/passwd", folder.path / "cache" / "out")
    move_on(held, folder)
    assert list(read_manifest(held.workspace)) == ["kept"]
    assert measure_tree(folder.path) == 1_001
    assert sorted(os.listdir(TaskFolder(held, rules).path)) == ["cache", "kept"]
    forget_home()
    assert os.listdir(TaskFolder(held, rules).path) == ["kept"]


def test_two_thousand_folders_in_each_other_are_no_obstacle(tmp_path: Path) -> None:
    deep = tmp_path / "root"
    deep.mkdir()
    with contextlib.chdir(deep):
        for _ in range(1_500):
            os.mkdir("d")
            os.chdir("d")
    tree = scan_tree(deep)
    assert len(tree) == 1_500
    restore_tree(tree, tmp_path / "other")
    assert scan_tree(tmp_path / "other") == tree
    restore_tree({}, deep)


def test_a_sparse_terabyte_is_refused_before_it_is_read(tmp_path: Path) -> None:
    with (tmp_path / "large").open("wb") as file:
        file.truncate(1 << 40)
    begun = time.monotonic()
    with pytest.raises(WorkspaceRefused, match="'large' is beyond 4,294,967,296 bytes"):
        scan_tree(tmp_path)
    assert time.monotonic() - begun < 5


def test_special_bits_are_not_kept_and_names_that_differ_by_case_are(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    for name in ("set", "SET", "folder/x"):
        (tmp_path / name).write_text(name)
    os.chmod(tmp_path / "set", 0o6755)
    os.chmod(tmp_path / "folder", 0o3755)
    blobs.store_blobs([tmp_path / "set"])
    tree = scan_tree(tmp_path)
    assert (tree["set"].mode, tree["folder"].mode) == (0o755, 0o755)
    restore_tree(tree, tmp_path)
    assert stat.S_IMODE((tmp_path / "set").stat().st_mode) == 0o755
    assert stat.S_IMODE((tmp_path / "folder").stat().st_mode) == 0o755
    assert (tmp_path / "SET").read_text() == "SET"


@pytest.mark.parametrize("path", ["/etc/x", "..", "a/../b", "a//b", ".", "", "link/x", "none/x"])
def test_a_manifest_that_leads_out_is_no_manifest(path: str) -> None:
    tree = {"a": Entry("dir", 0o755), "link": Entry("link", target="a"), path: Entry("dir", 0o755)}
    stored = blobs.store_blobs([write_manifest(tree)])[0]
    with pytest.raises(blobs.CorruptArtifact, match="are no manifest"):
        read_manifest(stored.digest)


@pytest.mark.parametrize("become", ["gone", "link"])
def test_a_file_that_changes_while_it_is_stored_fails_the_unit_by_name(
    become: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = TaskFolder(claim_new(make_workflow()))
    (folder.path / "a").write_text("a")

    def scan_and_change(*given: Any) -> trees.Tree:
        tree = scan_tree(*given)
        (folder.path / "a").unlink()
        if become == "link":
            (folder.path / "a").symlink_to("/etc/passwd")
        return tree

    monkeypatch.setattr("ledger.workspaces.folder.scan_tree", scan_and_change)
    with pytest.raises(WorkspaceRefused, match="'a' changed while it was stored"):
        folder.snapshot()


def test_a_file_that_grows_while_it_is_stored_is_kept_as_it_was_stored(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    held: Claimed = claim_new(make_workflow())
    folder = TaskFolder(held)
    (folder.path / "a").write_text("a")

    def scan_and_change(*given: Any) -> trees.Tree:
        tree = scan_tree(*given)
        (folder.path / "a").write_text("longer")
        return tree

    monkeypatch.setattr("ledger.workspaces.folder.scan_tree", scan_and_change)
    move_on(held, folder)
    forget_home()
    assert (TaskFolder(held).path / "a").read_text() == "longer"
