"""Set-up commands: run where they are due, once for the same inputs, and never half."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ledger import testing
from ledger.conf import locate_var
from ledger.deadlines import UnitStopped, UnitTimeout, unit_deadline
from ledger.filerules import Workspace
from ledger.sql import Claimed
from ledger.steplog import StepLog
from ledger.workflows import Workflow
from ledger.workspaces import SetupFailed, TaskFolder, scan_tree
from ledger.workspaces.commands import run_command
from tests.held import claim_new, make_workflow
from tests.workspaces.kit import describe, forget_home, move_on

pytestmark = pytest.mark.django_db

SCRIPT = """
echo ran >> {counter}
mkdir -p deps/bin && cat want > deps/got && chmod 640 deps/got && mkdir deps/empty
ln -s /bin/sh deps/bin/shell && ln -s ../got deps/bin/inner
echo stray > stray; echo changed > want
echo installed $(cat deps/got)
"""


class Site:
    """A task that wants dependencies, and a count of how often its command ran."""

    def __init__(self, tmp_path: Path) -> None:
        self.counter = tmp_path / "ran"
        self.rules = self.make_rules(SCRIPT.format(counter=self.counter))

    def make_rules(self, script: str) -> Workspace:
        return Workspace(setup=["sh", "-ec", script], inputs=["want"], outputs=["deps"])

    def start(self, want: str) -> Claimed:
        held = claim_new(make_workflow())
        folder = TaskFolder(held, self.rules)
        assert not (folder.path / "deps").exists(), "nothing is set up before its inputs are there"
        (folder.path / "want").write_text(want)
        move_on(held, folder)
        return held

    @property
    def ran(self) -> int:
        return len(self.counter.read_text().split()) if self.counter.exists() else 0


@pytest.fixture
def site(tmp_path: Path) -> Site:
    return Site(tmp_path)


def test_the_command_runs_once_for_the_same_inputs_whatever_folder_asks(site: Site) -> None:
    held = site.start("tea")
    log = StepLog()
    first = TaskFolder(held, site.rules, log)
    found = describe(first.path)
    assert found["deps/got"] == ("file", 0o640, b"tea")
    assert found["deps/bin/shell"] == ("link", "/bin/sh")
    assert found["want"][2] == b"tea", "what it changed beside its outputs is put back"
    assert "stray" not in found
    assert "installed tea" in log.read_tail()
    assert scan_tree(first.path, site.rules).keys() == {"want"}, "outputs are not stored"
    move_on(held, first)
    forget_home()
    assert describe(TaskFolder(held, site.rules).path) == found
    assert describe(TaskFolder(site.start("tea"), site.rules).path) == found
    assert site.ran == 1
    other = TaskFolder(site.start("milk"), site.rules)
    assert (other.path / "deps" / "got").read_text() == "milk"
    assert site.ran == 2


def test_a_unit_in_the_same_folder_finds_it_set_up_until_the_inputs_change(site: Site) -> None:
    held = site.start("tea")
    folder = TaskFolder(held, site.rules)
    (folder.path / "deps" / "own").write_text("installed by the step")
    move_on(held, folder)
    folder = TaskFolder(held, site.rules)
    assert (folder.path / "deps" / "own").exists(), "its folder is as the accepted unit left it"
    (folder.path / "deps" / "got").write_text("spoilt by a unit that is not accepted")
    folder = TaskFolder(held, site.rules)
    assert (folder.path / "deps" / "got").read_text() == "tea"
    assert not (folder.path / "deps" / "own").exists()
    assert site.ran == 1
    (folder.path / "want").write_text("milk")
    move_on(held, folder)
    assert (TaskFolder(held, site.rules).path / "deps" / "got").read_text() == "milk"


@pytest.mark.parametrize("spoil", ["gone", "changed", "manifest", "name"])
def test_what_is_kept_and_not_whole_is_made_anew(site: Site, spoil: str) -> None:
    held = site.start("tea")
    found = describe(TaskFolder(held, site.rules).path)
    cache = locate_var() / "blob-cache"
    blobs = sorted(cache.glob("??/*"), key=lambda path: path.stat().st_size)
    assert len(blobs) == 2, "one file, and the manifest"
    if spoil == "gone":
        blobs[0].unlink()
    elif spoil == "name":
        next((locate_var() / "setups").iterdir()).write_text("")  # as a power cut leaves it
    else:
        blobs[spoil == "manifest"].write_text("spoilt")
    forget_home()
    assert describe(TaskFolder(held, site.rules).path) == found
    assert site.ran == 2


def test_a_process_killed_in_its_set_up_leaves_nothing_that_counts(
    site: Site, tmp_path: Path
) -> None:
    held = site.start("tea")
    paced = site.make_rules(f"mkdir deps; echo half > deps/got; touch {tmp_path}/now; sleep 60")
    forget_home()
    child = os.fork()
    if child == 0:
        TaskFolder(held, paced)
        os._exit(1)
    wait_for(lambda: (tmp_path / "now").exists())
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    assert describe(TaskFolder(held, site.rules).path)["deps/got"][2] == b"tea"
    assert site.ran == 1
    assert len(list((locate_var() / "workspaces").glob("[0-9]*"))) == 1


@pytest.mark.parametrize(
    ("setup", "why"),
    [
        (
            ["sh", "-c", "echo one; echo two >&2; exit 3"],
            "exit status 3; the last it wrote:\none\ntwo$",
        ),
        (["sh", "-c", "kill -9 $$"], "`sh -c 'kill -9 $$'` failed: it was killed"),
        (["./no such program"], "`'./no such program'` can't be started: .*No such file"),
        (["true"], "makes 'no/deps' in a folder that the workspace does not have"),
    ],
)
def test_a_command_that_fails_is_a_failed_attempt_that_says_how(setup: list[str], why: str) -> None:
    outputs = ["no/deps"] if setup == ["true"] else []
    with pytest.raises(SetupFailed, match=why.replace("$$", r"\$\$")):
        TaskFolder(claim_new(make_workflow()), Workspace(setup=setup, outputs=outputs))


def test_what_leaves_its_group_and_writes_on_is_not_waited_for() -> None:
    give_up = time.monotonic() + 20
    lines: list[str] = []

    class Log:
        def info(self, text: str, *given: Any) -> None:
            lines.append(text % given)

    def check() -> None:
        assert time.monotonic() < give_up, "still reading"

    # It has left the group for certain when the command ends.
    leave = "setsid sh -c 'touch left; exec yes' & while [ ! -e left ]; do :; done"
    command = ["sh", "-c", f"seq 2000; echo told; {leave}"]
    run_command(command, locate_var().parent, Log(), check)  # type: ignore[arg-type]
    assert lines[1:2_002] == [*map(str, range(1, 2_001)), "told"]
    assert set(lines[2_002:]) <= {"y"}
    assert len(lines) < 2_000_000


def test_no_output_lies_below_a_link() -> None:
    """What is there in truth is no output by its own name: it would be gone, or half kept."""
    held = claim_new(make_workflow())
    rules = Workspace(setup=["mkdir", "a/b"], inputs=["a"], outputs=["a/b"])
    folder = TaskFolder(held, rules)
    (folder.path / "real").mkdir()
    (folder.path / "a").symlink_to("real")
    move_on(held, folder)
    forget_home()
    with pytest.raises(SetupFailed, match="makes 'a/b' in a folder that the workspace does not"):
        TaskFolder(held, rules)


def test_the_attempt_of_a_step_fails_with_it_and_its_log_has_what_it_wrote() -> None:
    flow = Workflow("set-up", workspace=Workspace(setup=["sh", "-c", "echo no network; exit 7"]))

    @flow.step(retries=0)
    def use(ctx: Any) -> None:
        ctx.workspace.touch()

    @flow.step
    def never(ctx: Any) -> None: ...

    told = testing.run(flow, {})
    assert told.status == "dead"
    assert told.task["error"]["type"].endswith("SetupFailed")
    assert "exit status 7; the last it wrote:\nno network" in told.task["error"]["message"]


def wait_for(holds: Callable[[], bool]) -> None:
    ends = time.monotonic() + 20
    while not holds():
        assert time.monotonic() < ends
        time.sleep(0.01)


@pytest.mark.parametrize("how", ["deadline", "cancel"])
def test_the_command_ends_with_all_that_it_started_when_its_unit_does(
    how: str, tmp_path: Path
) -> None:
    """And what it left running when it ended is not waited for."""
    pids = tmp_path / "pids"
    script = f"sleep 300 & echo $! > {pids}; echo $$ >> {pids}; mv {pids} {pids}.whole; wait"
    rules = Workspace(setup=["sh", "-c", script])

    def check() -> None:
        if how == "cancel" and Path(f"{pids}.whole").exists():
            raise UnitStopped("cancel")

    held = claim_new(make_workflow())
    begun = time.monotonic()
    with pytest.raises((UnitStopped, UnitTimeout)), unit_deadline(1 if how == "deadline" else 60):
        TaskFolder(held, rules, check=check)
    assert time.monotonic() - begun < 30
    for pid in Path(f"{pids}.whole").read_text().split():
        wait_for(lambda pid=pid: not is_running(int(pid)))
    left = Workspace(setup=["sh", "-c", "sleep 300 & echo done"])
    begun = time.monotonic()
    TaskFolder(held, left)
    assert time.monotonic() - begun < 30


def is_running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def test_a_flood_without_a_line_end_takes_no_memory_and_secrets_are_not_handed_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name in ("LONGWATCH_SECRET_MAIL", "AWS_SECRET_ACCESS_KEY", "PGPASSWORD", "DATABASE_URL"):
        monkeypatch.setenv(name, "hunter2")
    monkeypatch.setenv("INDEX_KEY", "declared")
    log = StepLog()
    script = "head -c 20000000 /dev/zero | tr '\\0' x; echo; env | grep -c hunter2; "
    script += "echo $INDEX_KEY $MODE ${HOME:+home} $(command -v env)"
    rules = Workspace(setup=["sh", "-c", script], env=["INDEX_KEY", "MODE=copy", "NOT_SET"])
    TaskFolder(claim_new(make_workflow()), rules, log)
    zero, told = log.read_tail().splitlines()[-2:]
    assert zero.endswith("INFO 0")
    assert "declared copy home /" in told
