"""Workspaces: what one unit left is what the next one gets, byte for byte, on any worker."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import socket
import stat
from pathlib import Path

import pytest

from ledger import blobs, workspaces
from ledger.errors import LeaseLost
from ledger.events import Actor
from ledger.models import Blob
from ledger.transitions.operators import retry_task
from ledger.workspaces import Entry, TaskFolder, WorkspaceRefused, folders, trees
from tests.held import claim, claim_new, make_workflow
from tests.workspaces.kit import describe, forget_home, move_on

pytestmark = [pytest.mark.both_databases, pytest.mark.django_db]


def fill(root: Path) -> None:
    (root / "src" / "deep").mkdir(parents=True)
    (root / "empty").mkdir(mode=0o750)
    (root / "src" / "run me.sh").write_bytes(b"#!/bin/sh\r\n\xef\xbb\xbf\xe9")
    (root / "src" / "run me.sh").chmod(0o755)
    (root / "src" / "deep" / "ünï").write_bytes(b"no final newline")
    (root / "nothing").touch(0o600)
    (root / "read-only").write_text("r")
    (root / "read-only").chmod(0o444)
    (root / "src" / "up").symlink_to("../nothing")
    (root / "deep").symlink_to("src/deep")
    (root / "dangling").symlink_to("src/not-yet")


def test_a_tree_is_rebuilt_exactly_by_another_process() -> None:
    held = claim_new(make_workflow())
    workspace = TaskFolder(held)
    assert describe(workspace.path) == {}
    fill(workspace.path)
    before = describe(workspace.path)
    move_on(held, workspace)
    first = workspace.path
    forget_home()
    again = TaskFolder(held)
    assert again.path != first
    assert describe(again.path) == before
    assert again.snapshot() == held.workspace, "unchanged files are the same manifest"


def test_what_a_unit_that_was_not_accepted_did_is_gone_at_its_next_run() -> None:
    held = claim_new(make_workflow())
    workspace = TaskFolder(held)
    fill(workspace.path)
    before = describe(workspace.path)
    move_on(held, workspace)
    root = workspace.path
    (root / "nothing").write_text("now something")
    (root / "added").write_text("x")
    (root / "src" / "run me.sh").chmod(0o600)
    (root / "src" / "deep" / "ünï").unlink()
    (root / "src" / "deep" / "ünï").mkdir()
    (root / "src" / "deep" / "ünï" / "inside").touch()
    (root / "deep").unlink()
    (root / "deep").symlink_to("/etc")
    (root / "empty").rmdir()
    (root / "empty").symlink_to("/etc")
    os.mkfifo(root / "fifo")
    (root / "src").chmod(0o500)
    os.link(root / "read-only", root / "twin")
    assert describe(TaskFolder(held).path) == before


def test_a_removed_file_is_gone_and_a_locked_folder_is_no_obstacle() -> None:
    held = claim_new(make_workflow())
    workspace = TaskFolder(held)
    fill(workspace.path)
    (workspace.path / "src").chmod(0o500)
    move_on(held, workspace)
    workspace = TaskFolder(held)
    assert stat.S_IMODE((workspace.path / "src").stat().st_mode) == 0o500
    (workspace.path / "src").chmod(0o700)
    shutil.rmtree(workspace.path / "src")
    move_on(held, workspace)
    forget_home()
    assert "src" not in describe(TaskFolder(held).path)


def test_a_hard_link_does_not_tie_two_files_of_the_next_unit_together() -> None:
    held = claim_new(make_workflow())
    workspace = TaskFolder(held)
    (workspace.path / "a").write_text("same")
    os.link(workspace.path / "a", workspace.path / "b")
    move_on(held, workspace)
    root = TaskFolder(held).path
    (root / "a").write_text("changed")
    assert (root / "b").read_text() == "same"


def test_only_changed_content_is_stored() -> None:
    held = claim_new(make_workflow())
    workspace = TaskFolder(held)
    for n in range(20):
        (workspace.path / f"f{n}").write_text(f"content {n}")
    move_on(held, workspace)
    before = set(Blob.objects.values_list("pk", flat=True))
    assert len(before) == 21
    workspace = TaskFolder(held)
    (workspace.path / "f3").write_text("new")
    (workspace.path / "copy").write_text("content 4")
    (workspace.path / "f5").rename(workspace.path / "moved")
    move_on(held, workspace)
    added = set(Blob.objects.values_list("pk", flat=True)) - before
    assert len(added) == 2, "the one file and the manifest"


def test_a_worker_that_lost_its_task_stores_no_workspace() -> None:
    workflow = make_workflow()
    held = claim_new(workflow)
    workspace = TaskFolder(held)
    (workspace.path / "late").write_text("x")
    retry_task(held.task_id, actor=Actor("user", "1"))
    with pytest.raises(LeaseLost):
        workspace.snapshot()
    assert not Blob.objects.exists()
    assert describe(TaskFolder(claim(workflow)).path) == {}


@pytest.mark.parametrize(
    ("link", "target"),
    [
        ("a", "/etc/passwd"),
        ("a", ".."),
        ("a", "../../x"),
        ("sub/a", "../../x"),
        ("a", "sub/up/../outside"),
        ("a", "{root}/sub"),
    ],
)
def test_a_link_that_leads_out_is_refused(link: str, target: str) -> None:
    root = TaskFolder(claim_new(make_workflow())).path
    (root / "sub" / "deep").mkdir(parents=True)
    (root / "sub" / "up").symlink_to("..")
    (root / link).symlink_to(target.format(root=root))
    with pytest.raises(WorkspaceRefused, match=f"'{link}' links out of the workspace"):
        workspaces.scan_tree(root)


@pytest.mark.parametrize("target", ["b", "sub/../sub", "a", "sub/up/b"])
def test_a_link_that_stays_inside_is_kept_as_it_is(target: str) -> None:
    root = TaskFolder(claim_new(make_workflow())).path
    (root / "sub").mkdir()
    (root / "sub" / "up").symlink_to("..")
    (root / "a").symlink_to(target)
    assert workspaces.scan_tree(root)["a"] == Entry("link", target=target)


def test_what_is_no_file_is_refused_with_its_path() -> None:
    root = TaskFolder(claim_new(make_workflow())).path
    os.mkfifo(root / "pipe")
    with pytest.raises(WorkspaceRefused, match="'pipe' is a device, FIFO or socket; remove it"):
        workspaces.scan_tree(root)
    (root / "pipe").unlink()
    with socket.socket(socket.AF_UNIX) as server, contextlib.chdir(root):
        server.bind("s")
        with pytest.raises(WorkspaceRefused, match="'s' is a device"):
            workspaces.scan_tree(root)
    (root / "s").unlink()
    (root / os.fsdecode(b"latin-\xe9")).touch()
    with pytest.raises(WorkspaceRefused, match="no UTF-8"):
        workspaces.scan_tree(root)


def test_a_workspace_has_bounds(monkeypatch: pytest.MonkeyPatch) -> None:
    root = TaskFolder(claim_new(make_workflow())).path
    (root / "a").write_bytes(b"x" * 100)
    (root / "b").write_bytes(b"x" * 100)
    monkeypatch.setattr(trees, "MAX_BYTES", 150)
    with pytest.raises(WorkspaceRefused, match="'b' is beyond"):
        workspaces.scan_tree(root)
    monkeypatch.setattr(trees, "MAX_BYTES", 1_000)
    monkeypatch.setattr(trees, "MAX_ENTRIES", 1)
    with pytest.raises(WorkspaceRefused, match="'b' is beyond"):
        workspaces.scan_tree(root)


def test_a_corrupt_blob_fails_the_rebuild() -> None:
    held = claim_new(make_workflow())
    workspace = TaskFolder(held)
    (workspace.path / "a").write_text("hello")
    move_on(held, workspace)
    digest = workspaces.read_manifest(held.workspace)["a"].digest
    (Path(str(blobs.get_storage().path(blobs.name_blob(digest))))).write_text("jello")
    forget_home()
    with pytest.raises(blobs.CorruptArtifact):
        TaskFolder(held)


def test_folders_of_dead_processes_are_removed_and_of_living_ones_kept(var: Path) -> None:
    workflow = make_workflow()
    first = TaskFolder(claim_new(workflow)).path
    child = os.fork()
    if child == 0:
        # A child has its own folder beside its parent's, and dies without a word.
        code = 1
        with contextlib.suppress(BaseException):
            home = folders.open_home()
            code = 0 if home != first.parent and first.is_dir() else 1
        os._exit(code)
    assert os.waitpid(child, 0)[1] == 0
    homes = var / "workspaces"
    (homes / "1-half-made").mkdir()  # killed before it had its lock
    (homes / ".gone-2-x" / "half" / "removed").mkdir(parents=True)
    assert len(list(homes.glob("*/"))) == 4
    folders.remove_abandoned(homes)
    assert list(homes.glob("*/")) == [first.parent]
    forget_home()
    TaskFolder(claim_new(workflow))
    assert not first.parent.exists()


def test_what_a_killed_worker_had_begun_is_no_part_of_the_next_run(var: Path) -> None:
    held = claim_new(make_workflow())
    workspace = TaskFolder(held)
    fill(workspace.path)
    before = describe(workspace.path)
    move_on(held, workspace)
    forget_home()
    shutil.rmtree(var)
    child = os.fork()
    if child == 0:
        root = TaskFolder(held).path
        (root / "half").write_text("done")
        (root / "nothing").write_text("begun")
        os.kill(os.getpid(), signal.SIGKILL)
    assert os.WTERMSIG(os.waitpid(child, 0)[1]) == signal.SIGKILL
    assert len(list((var / "workspaces").glob("*/*/half"))) == 1
    assert describe(TaskFolder(held).path) == before
    assert not list((var / "workspaces").glob("*/*/half"))


def test_a_process_keeps_the_folders_of_its_last_tasks_only() -> None:
    workflow = make_workflow()
    paths = []
    for n in range(folders.KEPT_TREES + 2):
        workspace = TaskFolder(claim_new(workflow))
        os.utime(workspace.path, (n, n))
        paths.append(workspace.path)
    assert [path.exists() for path in paths] == [False, False, True, True, True, True]
