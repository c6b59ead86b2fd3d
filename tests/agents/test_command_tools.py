"""The tools that run commands: what may be run, and what a command can't do."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import psutil
import pytest

from ledger import bubblewrap, commands
from ledger.agents import Tool, ask, command_tools, describe_fence, file_tools
from ledger.models import Approval, Effect, Event
from ledger.testing import LOST
from tests.agents.kit import list_parts, make_flow
from tests.agents.sessions import Calls, play, read_tree

pytestmark = [pytest.mark.both_databases, pytest.mark.django_db]

LIMITED = """
import os, sys, time
kind = sys.argv[1]
if kind == "flood":
    while True: os.write(1, b"tea " * 16384)
if kind == "forks":
    while True:
        try: os.fork() or time.sleep(60)
        except OSError: time.sleep(1)
if kind == "memory":
    bytearray(4 << 30)
if kind == "sleep":
    print("asleep", flush=True); time.sleep(600)
if kind == "daemon":
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            open("daemon", "w").write(str(os.getpid())); time.sleep(600)
        os._exit(0)
    while not os.path.exists("daemon"): time.sleep(0.01)
if kind == "look":
    print(sorted(name for name in os.environ if "LONGWATCH" in name or "SECRET" in name))
    print(os.environ.get("TEA"), os.environ.get("HOME") != os.path.expanduser("~root"))
if kind == "outside":
    for place in sys.argv[2:]:
        try: open(place + "/made-by-a-command", "w").close(); print("written")
        except OSError as error: print("refused")
    print([line.split()[1] for line in open("/proc/self/status") if line.startswith("CapEff")])
"""


def fill(root: Path) -> None:
    """A program of the workspace's own, and one that has the name of a system's."""
    (root / "sub").mkdir()
    (root / "limited.py").write_text(LIMITED)
    (root / "ls").write_text("#!/bin/sh\necho mine\n")
    (root / "ls").chmod(0o755)
    (root / "link").symlink_to("sub")


def run_all(*calls: tuple[str, Any], kit: Any = None, **options: Any) -> tuple[list[str], Any]:
    """What each call of `run_command` or `run_check` told."""
    kit = kit or command_tools(["python", "ls", "git diff"], timeout=20, env=["TEA=green"])
    return play(list(calls), kits=[kit, file_tools(write=["*"])], fill=fill, **options)


def command(*argv: str, folder: str = ".") -> tuple[str, dict[str, Any]]:
    return "run_command", {"argv": list(argv), "folder": folder}


def test_a_command_is_a_declared_program_without_a_shell_and_nothing_else() -> None:
    told, ended = run_all(
        command("python", "-c", "import sys; print(sys.argv[1:])", "$HOME", ";", "*"),
        command("python", "-c", "import os; print(os.path.basename(os.getcwd()))", folder="sub"),
        command("python", "-c", "import sys; sys.stderr.write('bad'); sys.exit(3)"),
        command("python", "limited.py", "look"),
        command("ls"),
        command("./ls"),
        command("sh", "-c", "true"),
        command("git", "-c", "core.pager=touch /tmp/x", "diff"),
        command("git", "diff", "--no-index", "limited.py", "limited.py"),
        command("ls", folder=".."),
        command("ls", folder="link"),
        command(),
    )  # fmt: skip
    assert told[0] == "[exit code 0]\n['$HOME', ';', '*']"
    assert told[1] == "[exit code 0]\nsub"
    assert told[2] == "[exit code 3]\nbad"
    assert told[3] == "[exit code 0]\n[]\ngreen True", "none of the worker's variables"
    assert "limited.py" in told[4], "the system's ls and not the workspace's"
    for refused in (told[5], told[6], told[7], told[11]):
        assert "what may be run is: `python`, `ls`, `git diff`" in refused
    assert told[8] == "[exit code 0]"
    assert "has a .. in it" in told[9]
    assert "is a link to 'sub'" in told[10]
    assert Event.objects.filter(task=ended.id, kind="tool_denied").count() == 4
    assert not Effect.objects.exclude(name="agent.model").exists(), "no act outside"


def read_command(pid: int) -> str:
    """What a process runs; "" for one that has ended, whoever has yet to take note of it."""
    try:
        return " ".join(psutil.Process(pid).cmdline())
    except psutil.Error:
        return ""


@pytest.mark.timeout(120)
def test_a_command_is_bounded_in_time_output_memory_and_processes_and_leaves_nothing() -> None:
    before = set(psutil.pids())
    kit = command_tools(["python"], timeout=6, processes=40, memory="1G")
    told, ended = run_all(
        *[command("python", "limited.py", kind)
          for kind in ("flood", "forks", "memory", "sleep", "daemon")],
        ("read_file", {"path": "daemon"}),
        kit=kit,
    )  # fmt: skip
    flood, forks, memory, sleep, daemon, pid = told
    assert "[ended here: more than" in flood or "which is all the time it has" in flood
    assert len(flood) < 20_000
    assert "exit code 137" in forks or "all the time it has" in forks, forks
    assert "MemoryError" in memory
    assert sleep == "[ended after 6 s, which is all the time it has]\nasleep"
    assert daemon == "[exit code 0]"
    assert pid.rpartition("\n")[2].isdigit()
    left = [read_command(one) for one in set(psutil.pids()) - before]
    assert not [one for one in left if "limited.py" in one], "all are gone"
    assert sorted(read_tree(ended)) == ["daemon", "limited.py", "ls"]


def test_with_bubblewrap_a_command_writes_into_the_workspace_alone_and_without_it_people_are_told(
    tmp_path: Path,
) -> None:
    """Both ways are judged: which one says whether this machine has bubblewrap."""
    outside = [str(tmp_path), str(Path.home())]
    kit = command_tools(["python"], timeout=20)
    answers = {"look": "approve"}
    nothing = ["0" * 16]
    told, ended = run_all(
        command("python", "limited.py", "outside", ".", *outside), kit=kit,
        tools={"run_command": ask(reason="it runs code")}, answers=answers,
    )  # fmt: skip
    fault = bubblewrap.find_fault(commands.find_path())
    print(f"bubblewrap: {fault or 'present'}")  # noqa: T201 - which of the two was seen
    question = Approval.objects.get()
    assert "it runs code" in question.body
    assert "made-by-a-command" in read_tree(ended)
    made = [Path(one, "made-by-a-command") for one in outside]
    try:
        if fault:
            assert told == [f"[exit code 0]\nwritten\nwritten\nwritten\n{nothing}"]
            assert describe_fence() in question.body
            assert "can write wherever the worker's user may" in describe_fence()
        else:
            # The first one lies in /tmp, and there it has one of its own.
            assert told == [f"[exit code 0]\nwritten\nwritten\nrefused\n{nothing}"]
            assert describe_fence() == ""
            assert not any(one.exists() for one in made)
    finally:
        for one in made:
            one.unlink(missing_ok=True)
    assert bool(fault) == (shutil.which("bwrap", path=commands.find_path()) is None), fault


def test_a_lost_commands_files_are_made_again_or_the_model_is_told_that_they_are_gone() -> None:
    script = "open('log', 'a').write('x'); print(len(open('log').read()))"
    calls: Calls = [command("python", "-c", script), command("python", "-c", script)]
    told, ended = run_all(*calls, faults={"look": [LOST, LOST]})
    assert told == ["[exit code 0]\n1", "[exit code 0]\n2"]
    assert "log" in read_tree(ended)
    kit = command_tools(["python"], timeout=20, network=True)
    told, ended = run_all(*calls, kit=kit, faults={"look": [LOST]})
    assert told == ["[exit code 0]\n1", "[exit code 0]\n2"]
    assert "log" not in read_tree(ended), "it may have acted outside, so it was not made again"
    gone = [one for one in list_parts(ended.id) if "is gone, as if" in str(one.get("content"))]
    assert len(gone) == 2


def test_a_check_is_one_of_the_settings_by_its_name(settings: Any, monkeypatch: Any) -> None:
    monkeypatch.setenv("LONGWATCH_SECRET_TEA", "sencha-1234")
    settings.LONGWATCH_CHECKS = {
        "tests": {"argv": ["python", "-c", "import os; print(os.environ['TEA'])"],
                  "secrets": ["TEA"]},
        "other": {"argv": ["true"]},
    }  # fmt: skip
    told, _ = run_all(
        ("run_check", {"name": "tests"}), ("run_check", {"name": "other"}),
        kit=command_tools(checks=["tests"]), tools={"run_check": Tool(idempotent=True)},
    )  # fmt: skip
    assert told[0].startswith("[exit code 0]\n")
    assert "sencha" not in told[0]
    assert "what may be run is: tests" in told[1]


def test_kits_of_commands_that_cant_be_are_refused_when_they_are_made() -> None:
    for wrong, why in (([], "takes a list"), (["./run"], "no absolute path"), ([""], "no name")):
        with pytest.raises(ValueError, match=why):
            command_tools(wrong)
    with pytest.raises(ValueError, match="timeout"):
        command_tools(["ls"], timeout=-1)
    with pytest.raises(ValueError, match="two kits have a tool 'run_command'"):
        make_flow(None, kits=[command_tools(["ls"]), command_tools(["cat"])])
