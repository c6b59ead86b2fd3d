"""An isolated step has what any step has, and can end nothing but itself."""

from __future__ import annotations

import contextlib
from typing import Any

import psutil
import pytest

from ledger.models import Effect, StepOutput, Task
from ledger.testing import LOST, run
from ledger.workflows import Workflow, registered
from tests.crash.cluster_kit import SIGTERM, wait_for
from tests.crash.site_kit import wait_for_status
from tests.poison.alone import ENDS, alone, called, calls, goes_alone, holds
from tests.poison.conftest import StartSite

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture(autouse=True)
def own_folders(settings: Any, tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    settings.LONGWATCH_VAR = str(tmp_path / "var")
    settings.LONGWATCH_ARTIFACTS = str(tmp_path / "artifacts")
    monkeypatch.setenv("LONGWATCH_SECRET_ALONE", "s3cr3t-alone")
    monkeypatch.setenv("LONGWATCH_DATABASE_URL", "sqlite:////nowhere")


@pytest.mark.both_databases
def test_an_isolated_step_is_given_what_any_step_is_but_the_database() -> None:
    ended = run(alone, {}, answers={"ask": "approve"}, faults={"end": [LOST, OSError("gone")]})
    assert ended.status == "completed", ended.task["error"]
    assert ended.result == {"by": "user:testing", "said": "done", "told before": True}
    assert ended.units == [
        ("plan", 0), ("read", 0), ("read", 1), ("write", 0), ("ask", 0), ("end", 0),
    ]  # fmt: skip
    progress = ended.progress
    assert progress["read"][:3] == [True, True, True]
    assert progress["left out"] == []
    assert progress["missing"] == "There is no artifact nothing."
    assert "an isolated step has no database" in progress["refused"]
    assert progress["said"] == "[secret]"
    assert ended.read_artifact("file") == b"from the step"
    assert ended.task["used"] == {"units": 6, "tokens_in": 3, "tokens_out": 4, "cost": "0.50"}
    assert "s3cr3t" not in str(ended)
    assert Effect.objects.get().compensation == "untell"
    log = StepOutput.objects.get(task_id=ended.id, step_name="write").log_tail
    assert "the secret is [secret]" in log
    assert ended.kinds.count("reclaimed") == ended.kinds.count("attempt_failed") == 1


def test_an_isolated_step_waits_for_signals_and_children() -> None:
    with registered(called):
        ended = run(calls, {}, signals={"word": "hello"})
    assert ended.result == {"all": ["hello", 2]}, ended.task["error"]


@pytest.mark.case(16)
@pytest.mark.case(17)
@pytest.mark.case(19)
@pytest.mark.case(20)
@pytest.mark.case(41)
@pytest.mark.parametrize("kind", ENDS)
def test_whatever_it_does_is_a_counted_attempt_with_a_cause(kind: str) -> None:
    status, reason, error, text = ENDS[kind][1]
    ended = run(goes_alone, {"kind": kind}, limits_given={"tokens": 100})
    found = ended.task["error"] or {"type": "", "message": ""}
    assert (ended.status, ended.reason, found["type"]) == (status, reason, error), found
    assert text in found["message"]
    if kind == "crash":
        (log,) = [
            event["data"]["log_tail"] for event in ended.events if "log_tail" in event["data"]
        ]
        assert log.splitlines()[-1].endswith("ERROR the last word")
        assert "line 999" in log


@pytest.mark.both_databases
@pytest.mark.case(10)
@pytest.mark.case(11)
@pytest.mark.case(23)
def test_a_worker_beats_and_lives_on_whatever_its_isolated_step_does(start_site: StartSite) -> None:
    modules = "tests.crash.flows,tests.poison.alone"
    with start_site(LONGWATCH_WORKFLOWS=modules, LONGWATCH_UNIT_MARGIN_SECONDS=1) as cluster:
        workers = cluster.list_pids("worker")
        task = cluster.submit(holds)
        wait_for("it reports", lambda: read_note(task) == "holding")
        wait_for("it hangs", lambda: cluster.read_sink("hang"))
        wait_for_status(task, "dead")
        assert (task.error["type"], task.reclaims) == ("UnitTimeout", 0)
        assert len(cluster.read_sink("hold_the_lock")) == 1, "its lease was renewed throughout"
        wait_for("nothing of it runs", lambda: not find_by_task(task), 5)
        assert cluster.list_pids("worker") == workers
        cluster.signal(SIGTERM)
        assert cluster.wait_for_exit() == 0


def read_note(task: Task) -> str:
    task.refresh_from_db()
    return task.progress_note


def find_by_task(task: Task) -> list[int]:
    """What the step has started and what has left its group."""
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            if process.environ().get("TREE") == str(task.id):
                found.append(process.pid)
    return found


def test_a_workflow_that_no_module_holds_cannot_be_isolated() -> None:
    nowhere = Workflow("nowhere")
    nowhere.step(lambda ctx: None, name="only", isolate=True, retries=0)
    ended = run(nowhere)
    assert (ended.status, ended.task["error"]["type"]) == ("dead", "LookupError")
    assert "stands in no module's variable" in ended.task["error"]["message"]


@pytest.mark.parametrize(
    ("bounds", "said"),
    [
        ({"isolate": True, "memory": "lots"}, "is no amount of memory"),
        ({"isolate": True, "memory": 1}, "is no amount of memory"),
        ({"isolate": True, "memory": True}, "is no amount of memory"),
        ({"isolate": True, "cpu": 0}, "out of range"),
        ({"memory": "1G"}, "bounds of isolate=True"),
        ({"cpu": 3}, "bounds of isolate=True"),
    ],
)
def test_bounds_that_cannot_be_are_refused_at_once(bounds: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        Workflow("bounded").step(lambda ctx: None, name="only", **bounds)
