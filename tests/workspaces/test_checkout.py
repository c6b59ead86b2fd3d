"""`manage.py workspace`: the files of any unit, whole in a folder of one's own, or none."""

from __future__ import annotations

import io
import os
import signal
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from django.core.management import call_command
from django.core.management.base import CommandError

from ledger import testing
from ledger.models import StepOutput, Task
from ledger.workflows import Again, Repair, Workflow
from ledger.workspaces import checkout
from tests.workspaces.kit import describe

pytestmark = [pytest.mark.both_databases, pytest.mark.django_db]

flow = Workflow("drafts")


@flow.step
def write(ctx: Any) -> Any:
    (ctx.workspace / "draft").write_text(f"{ctx.round}.{ctx.turn}")
    (ctx.workspace / f"only {ctx.turn}").touch()
    (ctx.workspace / "sub").mkdir(exist_ok=True)
    (ctx.workspace / "run.sh").touch(0o750)
    if not (ctx.workspace / "link").is_symlink():
        (ctx.workspace / "link").symlink_to("sub/../draft")
    return Again() if ctx.turn == 0 else {}


@flow.step
def look(ctx: Any) -> Any:
    return {"seen": True}


@flow.step
def judge(ctx: Any) -> Any:
    (ctx.workspace / "draft").write_text("judged")
    return Repair(to="write") if ctx.round == 0 else {}


def run_command(*words: Any) -> list[str]:
    out = io.StringIO()
    call_command("workspace", *map(str, words), stdout=out, stderr=io.StringIO())
    return out.getvalue().splitlines()


@pytest.fixture
def task() -> UUID:
    return testing.run(flow, {}).id


def test_a_task_is_checked_out_as_any_of_its_units_left_it(task: UUID, tmp_path: Path) -> None:
    first, second = StepOutput.objects.order_by("seq").values_list("seq", flat=True)[:2]
    wanted = {
        None: "judged", "judge": "judged", "write:0": "1.0", "write:1": "1.1", "write": "1.1",
        str(first): "0.0", str(second): "0.1",
    }  # fmt: skip
    for n, (unit, draft) in enumerate(wanted.items()):
        at = ["--at", unit] if unit else []
        told = run_command("checkout", task, tmp_path / f"new{n}", *at)
        found = describe(tmp_path / f"new{n}")
        assert found["draft"][2] == draft.encode()
        assert found["run.sh"] == ("file", 0o750, b"")
        assert found["link"] == ("link", "sub/../draft")
        assert told[0].startswith(f"{len(found) - 1} files, ")
    assert "only 1" not in describe(tmp_path / "new5")
    assert run_command("list", task, "--at", first) == [
        "-644            3 draft", "l---            0 link -> sub/../draft",
        "-644            0 only 0", "-750            0 run.sh", "d755            0 sub/",
    ]  # fmt: skip
    assert run_command("diff", task, "--from", first, "--to", second) == ["M draft", "A only 1"]
    assert run_command("diff", task, "--from", "write:1") == ["M draft"]


@pytest.mark.parametrize(
    ("unit", "why"),
    [
        ("99", "has no unit '99'; a unit is"),
        ("write:7", "has no unit 'write:7'"),
        ("write:x", "has no unit 'write:x'"),
        ("nowhere", "has no unit 'nowhere'"),
        ("look", r"unit look did not use the workspace; the last before it that did is \d+\."),
    ],
)
def test_a_unit_that_has_no_files_is_refused_by_name(
    task: UUID, tmp_path: Path, unit: str, why: str
) -> None:
    with pytest.raises(CommandError, match=why):
        run_command("checkout", task, tmp_path / "new", "--at", unit)
    assert not (tmp_path / "new").exists()


def test_what_lies_in_the_folder_is_never_touched(task: UUID, tmp_path: Path) -> None:
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "mine").write_text("mine")
    (tmp_path / "file").write_text("mine")
    (tmp_path / "empty").mkdir(mode=0o750)
    (tmp_path / "link").symlink_to("empty")
    for name, why in (("full", "is not empty"), ("file", "is no folder"), ("link", "is no folder")):
        with pytest.raises(CommandError, match=f"{name} {why}.* Name a new or"):
            run_command("checkout", task, tmp_path / name)
    assert describe(tmp_path / "full")["mine"][2] == b"mine"
    run_command("checkout", task, tmp_path / "empty")
    assert (tmp_path / "empty" / "draft").read_text() == "judged"
    assert (tmp_path / "empty").stat().st_mode & 0o777 == 0o750
    run_command("checkout", task, tmp_path / "deep" / "er" / "new")
    with pytest.raises(CommandError, match="no task"):
        run_command("checkout", UUID(int=0), tmp_path / "x")


def test_a_killed_checkout_leaves_no_folder_and_the_next_one_cleans_up(
    task: UUID, tmp_path: Path
) -> None:
    digest = Task.objects.get(pk=task).workspace
    child = os.fork()
    if child == 0:
        checkout.check_out(digest, tmp_path / "new", lambda: os.kill(os.getpid(), signal.SIGKILL))
    assert os.WTERMSIG(os.waitpid(child, 0)[1]) == signal.SIGKILL
    assert not (tmp_path / "new").exists()
    assert len(list(tmp_path.glob(".new.checkout-*"))) == 1
    checkout.check_out(digest, tmp_path / "new")
    assert not list(tmp_path.glob(".new.checkout-*"))

    def fail() -> None:
        raise OSError(28, "No space left on device")

    with pytest.raises(OSError, match="No space left"):
        checkout.check_out(digest, tmp_path / "other", fail)
    assert not list(tmp_path.glob("*other*"))
