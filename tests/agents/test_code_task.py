"""`code-task` mends a bug that was planted in simplejson, with that package's own tests as the
check, while its workers are killed in every unit; nobody can tell from what it publishes."""

from __future__ import annotations

import io
import itertools
import json
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from harness_site.workflows import code_task
from harness_site.workflows.code_task.recorded import Recording
from harness_site.workflows.modernise.source import copy_distribution
from harness_site.workflows.shared.archive import pack
from ledger import artifacts, client, clock, conf
from ledger.events import Actor
from ledger.models import Approval, Artifact, Event, Spend, StepOutput, Task
from ledger.states import FINISHED
from ledger.transitions.submit import submit_task
from ledger.transitions.sweeps import reclaim_task
from tests.agents.kit import list_parts, play_recording
from tests.agents.model_server import ModelServer
from tests.conftest import ROOT

pytestmark = [pytest.mark.both_databases, pytest.mark.django_db(transaction=True)]
PROOF = bool(os.environ.get("LONGWATCH_TEST_PROOF"))

ERRORS = "simplejson/errors.py"
RIGHT = "        colno = pos - doc.rindex('\\n', 0, pos)\n"
PLANTED = "        colno = pos - doc.index('\\n', 0, pos)\n"
"""The column of an error is counted from the first line's end, not from the last one's."""

WRONG = "        colno = pos - doc.rindex('\\n', 0, pos) + 1\n"
"""What the agent tries first: right line, one column too far."""


def call(tool: str, **args: Any) -> dict[str, Any]:
    return {"tool": tool, "args": args}


def edit(old: str, new: str) -> dict[str, Any]:
    return call("edit_file", path=ERRORS, old=old, new=new)


RECORDING = Recording.model_validate({"sessions": [
    {"when": ["Plan this work."], "turns": [
        {"calls": [call("list_files", pattern="*.py"), call("run_check")]},
        {"after": "test_decode_error", "calls": [call("search", text="colno", pattern="*.py")]},
        {"after": ERRORS, "calls": [call("final_result", items=[
            "Count columns from the last line's end", "See the tests pass"])]},
    ]},
    {"when": ["Do this work."], "turns": [
        {"say": "I look at it.", "calls": [
            call("list_files", pattern="simplejson/*.py"), call("read_file", path=ERRORS)]},
        {"after": "doc.index", "calls": [
            call("search", text="linecol"), edit(PLANTED, WRONG), call("read_file", path=ERRORS)]},
        {"after": "rindex", "say": "The column is right now."},
    ]},
    {"when": ["Do this work.", "its output ends"], "turns": [
        {"calls": [call("read_file", path=ERRORS, start=7, lines=7), call("run_check")]},
        {"after": "test_decode_error", "calls": [
            edit(WRONG, RIGHT), call("tick_item", number=1), call("run_check"),
            call("tick_item", number=2)]},
        {"after": "2 of 2", "say": "Columns are counted from the last line's end; I was one off."},
    ]},
]})  # fmt: skip
UNITS = ["unpack", *["plan"] * 3, *["work"] * 3, "verify", *["work"] * 3, "verify", "review",
         "publish"]  # fmt: skip


END = 99
"""Right before the checkpoint: no unit has as many instants."""

DEATHS = (2, 3, 8, END, 4, END, 5, 1, 7, END, 6, END, 1, 3)
"""The instant at which the worker of each unit dies. Those that edit have done it all by then, so
an edit that was told and is not made again shows."""


class Host(NamedTuple):
    """A machine with a disk of its own, whose workers run one unit each."""

    process: subprocess.Popen[str]
    var: Path

    def run_unit(self, dies_at: int) -> bool:
        """Whether the worker lived."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        print(dies_at, file=self.process.stdin, flush=True)
        code = int(self.process.stdout.readline())
        assert code in {0, -9}, code
        return code == 0


@contextmanager
def start_hosts(environment: dict[str, str], folder: Path, *names: str) -> Iterator[list[Host]]:
    with ExitStack() as stack:
        hosts = []
        for name in names:
            var = folder / f"var-{name}"
            with (folder / f"{name}.log").open("wb") as log:
                process = subprocess.Popen(
                    [sys.executable, "-m", "tests.agents.deadly_host", name], cwd=ROOT, text=True,
                    env=environment | {"LONGWATCH_VAR": str(var)},
                    stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log,
                )  # fmt: skip
            stack.enter_context(process)
            stack.callback(process.kill)
            hosts.append(Host(process, var))
        yield hosts


def pack_planted(folder: Path) -> bytes:
    """simplejson with the bug in it, and without its compiled half, as an archive."""
    tree = folder / "tree"
    copy_distribution("simplejson", tree)
    for compiled in tree.rglob("*.so"):
        compiled.unlink()
    text = (tree / ERRORS).read_text()
    assert text.count(RIGHT) == 1
    (tree / ERRORS).write_text(text.replace(RIGHT, PLANTED))
    pack(tree, folder / "planted.tar.gz")
    return (folder / "planted.tar.gz").read_bytes()


def bury_worker(task: Task) -> None:
    """Let the lease of a killed worker be over, and a sweeper notice."""
    lease = conf.load().lease_seconds
    clock.offset += lease + 1
    try:
        assert reclaim_task(task.id, lease) == "queued"
    finally:
        clock.offset -= lease + 1


def plan_deaths(kills: bool) -> Iterator[Iterator[int]]:
    """For each unit the instants at which its workers die, one after the other: in the long form at
    every one, until none is left; in the short form at one, or right before the checkpoint."""
    for unit in itertools.count():
        if not kills:
            yield itertools.repeat(0)
        elif PROOF:
            yield itertools.count(1)
        else:
            yield iter([-DEATHS[unit % len(DEATHS)], 0])


def run_task(hosts: list[Host], archive: bytes, *, kills: bool) -> tuple[dict[str, Any], Task]:
    """Run it, each attempt on the next host; what it made, by name, and the task."""
    upload = artifacts.store_upload(io.BytesIO(archive), "simplejson.tar.gz")
    given = {"goal": "Mend the tests.", "archive": str(upload.pk), "check": "own"}
    by = Actor("user", "1")
    task, _ = submit_task(workflow=code_task, input=given, actor=by)
    for unit, deaths in enumerate(plan_deaths(kills)):
        for attempt, dies_at in enumerate(deaths):
            if hosts[(unit + attempt) % len(hosts)].run_unit(dies_at):
                break
            bury_worker(task)
        asked = Approval.objects.filter(task=task.id, status="open").first()
        if asked is not None:
            client.answer(asked.id, "approve", actor=by, digest=asked.digest)
        task = Task.objects.get(pk=task.id)
        if task.status in FINISHED:
            break
    assert (task.status, task.error) == ("completed", None)
    assert not Event.objects.filter(task=task.id, kind="attempt_failed").exists()
    return collect(task), task


def collect(task: Task) -> dict[str, Any]:
    """What a task published, and the manifest of its files."""
    made: dict[str, Any] = {"manifest": task.workspace, "result": task.result}
    published = ("simplejson.patch", "simplejson.tar.gz", "report.md")
    for artifact in Artifact.objects.filter(task=task.id, name__in=published):
        with artifacts.open_content(artifact) as file:
            made[artifact.name] = file.read()
    assert made.keys() >= set(published)
    return made


@pytest.mark.timeout(2_400 if PROOF else 400)
def test_a_bug_in_a_real_package_is_mended_the_same_though_workers_die_in_every_unit(
    settings: Any, site_env: dict[str, str], tmp_path: Path
) -> None:
    settings.LONGWATCH_ARTIFACTS = str(tmp_path / "shared")
    settings.LONGWATCH_MAX_RECLAIMS = 1_000
    checks = {"own": {"argv": ["python", "-m", "unittest", "discover"]}}
    (tmp_path / "checks.json").write_text(json.dumps(checks))
    (tmp_path / "recording.json").write_text(RECORDING.model_dump_json())
    settings.LONGWATCH_CHECKS = checks
    settings.LONGWATCH_CODE_MODEL = f"recorded:{tmp_path / 'recording.json'}"
    environment = {
        **site_env, "LONGWATCH_ARTIFACTS": settings.LONGWATCH_ARTIFACTS,
        "DJANGO_SETTINGS_MODULE": "harness_site.settings",
        "LONGWATCH_CODE_MODEL": settings.LONGWATCH_CODE_MODEL,
        "LONGWATCH_CHECKS": str(tmp_path / "checks.json"),
    }  # fmt: skip
    archive = pack_planted(tmp_path)
    with start_hosts(environment, tmp_path, "alone") as hosts:
        undisturbed, _ = run_task(hosts, archive, kills=False)
    with start_hosts(environment, tmp_path, "one", "two") as hosts:
        killed, task = run_task(hosts, archive, kills=True)
    for name, content in undisturbed.items():
        assert killed[name] == content, name
    assert killed.keys() == undisturbed.keys()
    judge(task)
    if PROOF:
        check_over_the_wire(settings, environment, tmp_path, archive, undisturbed)
    patch = undisturbed["simplejson.patch"].decode()
    assert f"-{PLANTED}+{RIGHT}" in patch
    assert "2 of 2 items done" in undisturbed["report.md"].decode()


def check_over_the_wire(
    settings: Any, environment: dict[str, str], folder: Path, archive: bytes,
    undisturbed: dict[str, Any],
) -> None:  # fmt: skip
    """The same session with a model that is asked over the network, and has to be paid."""
    settings.LONGWATCH_CODE_MODEL = "openai-chat:gpt-4o-mini"
    with ModelServer(play_recording(RECORDING)) as server:
        environment = environment | {
            "LONGWATCH_CODE_MODEL": settings.LONGWATCH_CODE_MODEL,
            "OPENAI_BASE_URL": server.url, "LONGWATCH_SECRET_OPENAI_API_KEY": "sk-none",
        }  # fmt: skip
        with start_hosts(environment, folder, "one", "two") as hosts:
            killed, task = run_task(hosts, archive, kills=True)
    judge(task)
    for name in ("manifest", "result", "simplejson.patch", "simplejson.tar.gz"):
        assert killed[name] == undisturbed[name], name
    assert len(server.paid) == 2 * 9, "each again only where it was paid and not yet on record"


def judge(task: Task) -> None:
    """Workers died in every unit, on both hosts, and nothing was paid or told twice."""
    outputs = list(StepOutput.objects.filter(task=task.id).order_by("seq"))
    assert [one.step_name for one in outputs] == UNITS
    lost = Event.objects.filter(task=task.id, kind="reclaimed")
    where = Counter((one.step, one.turn, one.data["worker"].partition(":")[0]) for one in lost)
    assert sum(where.values()) >= len(UNITS)
    assert {host for _, _, host in where} == {"one", "two"}
    print(f"{sum(where.values())} workers died in {len(UNITS)} units")  # noqa: T201
    assert Spend.objects.filter(task=task.id).count() == 9
    parts = list_parts(task.id, "work")
    ids = [(one["part_kind"], one.get("tool_call_id")) for one in parts if "tool_call_id" in one]
    assert len(ids) == len(set(ids)) == 2 * 6
