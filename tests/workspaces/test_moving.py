"""`modernise` goes from one host to another with each of its units, and nobody can tell."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from itertools import cycle, pairwise
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from harness_site.workflows import modernise
from ledger import artifacts, client
from ledger.events import Actor
from ledger.models import Approval, Artifact, Event, StepOutput, Task
from ledger.states import FINISHED
from ledger.transitions.submit import submit_task
from tests.conftest import ROOT
from tests.factories import CLIENT
from tests.s3 import KEYS, Service

PROOF = bool(os.environ.get("LONGWATCH_TEST_PROOF"))
GIVEN = {"distribution": "Django" if PROOF else "simplejson", "tests": "compile",
         "batch_size": 40 if PROOF else 12}  # fmt: skip


class Worker(NamedTuple):
    """A process that runs one unit when it is asked, with a disk of its own."""

    process: subprocess.Popen[str]
    var: Path

    def run_unit(self) -> int:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        print("go", file=self.process.stdin, flush=True)
        return int(self.process.stdout.readline())


@contextmanager
def start_workers(environment: dict[str, str], folder: Path, *names: str) -> Iterator[list[Worker]]:
    with ExitStack() as stack:
        workers = []
        for name in names:
            var = folder / f"var-{name}"
            with (folder / f"{name}.log").open("wb") as log:
                process = subprocess.Popen(
                    [sys.executable, "-m", "tests.workspaces.one_unit", name], cwd=ROOT, text=True,
                    env=environment | {"LONGWATCH_VAR": str(var)},
                    stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log,
                )  # fmt: skip
            stack.enter_context(process)
            stack.callback(process.kill)
            workers.append(Worker(process, var))
        yield workers


def run_task(workers: list[Worker]) -> dict[str, Any]:
    """Run `modernise`, each unit on the next worker; what it made, by name."""
    task, _ = submit_task(workflow=modernise, input=GIVEN, actor=CLIENT)
    for worker in cycle(workers):
        assert worker.run_unit() == 1
        asked = Approval.objects.filter(task=task.id, status="open").first()
        if asked is not None:
            by = Actor("user", "1")
            client.answer(asked.id, "approve", actor=by, digest=asked.digest)
        task = Task.objects.get(pk=task.id)
        if task.status in FINISHED:
            break
    assert (task.status, task.error) == ("completed", None)
    assert not Event.objects.filter(task=task.id, kind__in=["attempt_failed", "reclaimed"]).exists()
    made: dict[str, Any] = {"manifest": task.workspace, "result": task.result}
    name = GIVEN["distribution"]
    for artifact in Artifact.objects.filter(task=task.id).select_related("blob"):
        if artifact.name in {f"{name}.patch", f"{name}.tar.gz", "report.md", "changes.txt"}:
            with artifacts.open_content(artifact) as file:
                made[artifact.name] = file.read()
    ran = StepOutput.objects.filter(task=task.id).order_by("seq").values_list("worker", flat=True)
    made["hosts"] = [owner.partition(":")[0] for owner in ran]
    return made


@pytest.fixture(params=[pytest.param("folder", marks=pytest.mark.both_databases), "s3"])
def store(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: Any) -> Iterator[str]:
    """What LONGWATCH_ARTIFACTS says, for this process too."""
    if request.param == "folder":
        yield str(tmp_path / "shared")
        return
    for name, value in KEYS.items():
        monkeypatch.setenv(name, value)
    service = Service(tmp_path).start()
    yield service.locate("moving")
    service.stop()


@pytest.mark.timeout(3_000 if PROOF else 180)
def test_a_task_that_changes_hosts_with_each_unit_ends_byte_for_byte_the_same(
    store: str, settings: Any, site_env: dict[str, str], tmp_path: Path
) -> None:
    settings.LONGWATCH_ARTIFACTS = store
    settings.LONGWATCH_VAR = str(tmp_path / "var-here")
    environment = {**site_env, "LONGWATCH_ARTIFACTS": store, "DJANGO_SETTINGS_MODULE":
                   "harness_site.settings", **(KEYS if "://" in store else {})}  # fmt: skip
    with start_workers(environment, tmp_path, "alone") as workers:
        undisturbed = run_task(workers)
    with start_workers(environment, tmp_path, "one", "two") as workers:
        moved = run_task(workers)
        trees = {path.name for path in tmp_path.glob("var-*/workspaces/*/*/")}
        assert len(list(tmp_path.glob("var-*/workspaces/*/*/"))) == 2 + 1
        assert len(trees) == 2
    hosts = moved.pop("hosts")
    assert len(hosts) == len(undisturbed.pop("hosts")) >= 8
    assert all(before != after for before, after in pairwise(hosts))
    assert moved.keys() == undisturbed.keys()
    for name, content in undisturbed.items():
        assert moved[name] == content, name
