"""A host's disk: bounded, given way on, cleaned after kills; a folder that is half there is never
a step's."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ledger.outcomes import RetryLater
from ledger.sql import Claimed
from ledger.workspaces import NoRoom, TaskFolder, folders, release_folder
from tests.held import claim_new, make_workflow
from tests.workspaces.kit import describe, forget_home, move_on

pytestmark = pytest.mark.django_db

ENDED = os.WEXITED | os.WNOHANG | os.WNOWAIT


def make_task(size: int, files: int = 1) -> tuple[Claimed, Path]:
    """A task with a workspace of so many bytes, whose folder lies on this host."""
    held = claim_new(make_workflow())
    folder = TaskFolder(held)
    for n in range(files):
        (folder.path / f"f{n}").write_bytes(random.randbytes(size // files))
    move_on(held, folder)
    return held, folder.path


def test_idle_folders_give_way_to_a_new_one_the_longest_unused_first(settings: Any) -> None:
    settings.LONGWATCH_WORKSPACE_BYTES = 3_500
    tasks = [make_task(1_000) for _ in range(3)]
    TaskFolder(tasks[0][0])
    held, fourth = make_task(1_000)
    here = [path.exists() for _, path in tasks]
    assert here == [True, True, True], "an empty folder needs no room"
    TaskFolder(tasks[0][0])
    moved = claim_new(make_workflow())
    moved.workspace = held.workspace
    TaskFolder(moved)
    assert [path.exists() for _, path in tasks] == [True, False, False]
    assert fourth.exists()


def test_a_folder_in_use_gives_way_to_nobody_and_the_other_task_waits(settings: Any) -> None:
    settings.LONGWATCH_WORKSPACE_BYTES = 1_500
    held, path = make_task(1_000)
    TaskFolder(held)
    child = os.fork()
    if child == 0:  # another worker of the host, for a task with the same files
        code = 1
        try:
            TaskFolder(held)
        except RetryLater:
            code = 7
        os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
    assert path.exists()
    release_folder()
    child = os.fork()
    if child == 0:
        os._exit(0 if TaskFolder(held).path.exists() else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert not path.exists()


def test_what_can_never_fit_is_refused_with_the_setting(settings: Any) -> None:
    held, _ = make_task(1_000)
    forget_home()
    settings.LONGWATCH_WORKSPACE_BYTES = 999
    with pytest.raises(NoRoom, match="1,000 bytes, and LONGWATCH_WORKSPACE_BYTES is 999"):
        TaskFolder(held)


def test_a_child_of_the_holder_does_not_let_its_folder_go() -> None:
    held, path = make_task(10)
    TaskFolder(held)
    child = os.fork()
    if child == 0:
        release_folder()
        folders.open_home()
        os._exit(0)
    os.waitpid(child, 0)
    folders.drop_idle(0)
    assert path.exists()


def test_a_scratch_that_a_step_left_goes_with_the_next_unit() -> None:
    held, path = make_task(10)
    (path.parent / "scratch-1" / "x").mkdir(parents=True)
    TaskFolder(held)
    assert not (path.parent / "scratch-1").exists()
    assert path.exists()


def run_on_small_disk(var: Path, run: Callable[[], None]) -> None:
    """Call it in a process for which LONGWATCH_VAR is a file system of 3 MB."""
    var.mkdir(parents=True, exist_ok=True)
    child = os.fork()
    if child == 0:
        try:
            os.unshare(os.CLONE_NEWNS | (os.CLONE_NEWUSER if os.geteuid() else 0))
            subprocess.run(["mount", "--make-rprivate", "/"], check=True)
            subprocess.run(["mount", "-t", "tmpfs", "-o", "size=3m", "tmpfs", var], check=True)
            run()
            os._exit(0)
        except BaseException:
            traceback.print_exc()
        os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def test_a_full_disk_is_tried_once_more_without_the_idle_folders(var: Path) -> None:
    held, path = make_task(2_000_000)
    whole = describe(path)
    other = claim_new(make_workflow())
    other.workspace = held.workspace
    forget_home()

    def rebuild_both() -> None:
        first = TaskFolder(held).path
        assert describe(first) == whole
        assert describe(TaskFolder(other).path) == whole
        assert not first.exists()

    run_on_small_disk(var, rebuild_both)


def test_a_full_disk_is_tried_once_more_without_copies_of_a_store_elsewhere(
    var: Path, settings: Any
) -> None:
    far = {"BACKEND": "tests.test_blobcache.FarStorage"}
    settings.STORAGES = {**settings.STORAGES, "longwatch": far}
    held, path = make_task(2_000_000, files=100)
    whole = describe(path)
    forget_home()

    def rebuild() -> None:
        assert describe(TaskFolder(held).path) == whole

    run_on_small_disk(var, rebuild)


def test_a_disk_that_stays_full_is_an_error_that_names_it(var: Path) -> None:
    held, _ = make_task(2_000_000)
    forget_home()

    def rebuild() -> None:
        (var / "of somebody else").write_bytes(b"x" * 2_000_000)
        with pytest.raises(NoRoom, match="2,000,000 bytes, do not fit on the disk of "):
            TaskFolder(held)
        (var / "of somebody else").unlink()
        assert len(describe(TaskFolder(held).path)) == 1

    run_on_small_disk(var, rebuild)


def count_files(top: Path, process: int) -> int:
    return len(list(top.glob(f"{process}-*/*/f*")))


def test_workers_killed_while_they_rebuild_leave_no_half_folder_and_no_disk_used(
    settings: Any,
) -> None:
    held, path = make_task(400_000, files=100)
    before = describe(path)
    forget_home()
    top = folders._locate_top()
    seed = random.Random(7)
    seen = set()
    for _ in range(12):
        enough = seed.randrange(1, 100)
        child = os.fork()
        if child == 0:
            found = describe(TaskFolder(held).path)
            os._exit(0 if found == before else 1)
        deadline = time.monotonic() + 30
        while count_files(top, child) < enough and not os.waitid(os.P_PID, child, ENDED):
            assert time.monotonic() < deadline
        os.kill(child, signal.SIGKILL)
        status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        assert status in {0, -signal.SIGKILL}
        seen.add(count_files(top, child))
    assert describe(TaskFolder(held).path) == before
    assert len(list(top.glob("*/"))) == 1, "all that the killed ones left is gone"
    assert seen - {0, 100}, "some were killed in the middle"
