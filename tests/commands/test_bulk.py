"""`manage.py bulk` from a terminal."""

from __future__ import annotations

import json
from collections.abc import Iterator
from io import StringIO

import pytest
from django.core.management import CommandError, call_command

from ledger import states
from ledger.bulk.doing import do_pending
from ledger.models import Approval, AuditEntry, BulkOperation, Task
from ledger.workflows import Workflow, registered
from tests.factories import make_in, make_workflow, submit


@pytest.fixture
def flow(db: None) -> Iterator[Workflow]:
    """A workflow that is known."""
    workflow = make_workflow()
    with registered(workflow):
        yield workflow


def run(*arguments: str) -> tuple[str, str]:
    """What it writes for scripts, and for people."""
    out, hints = StringIO(), StringIO()
    call_command("bulk", *arguments, stdout=out, stderr=hints)
    return out.getvalue().strip(), hints.getvalue()


def test_what_a_filter_matches_is_shown_then_done_then_told(flow: Workflow) -> None:
    for _ in range(2):
        submit(flow, lane="night")
    make_in(states.PAUSED, flow)
    kept = submit(flow)
    filtered = ("start", "pause", "--filter", "lane=night", "--filter", "status=queued")
    out, hints = run(*filtered, "--dry-run")
    assert (out, BulkOperation.objects.count()) == ("", 0)
    assert "pause: 2 of 2 tasks" in hints
    _, hints = run("start", "pause", "--filter", "lane=default", "--dry-run")
    assert "pause: 1 of 2 tasks" in hints
    assert "left out: 1. It is paused already" in hints
    out, hints = run(*filtered, "--reason", "too loud")
    assert "No worker beats" in hints
    assert "  running  pause  0 of 2 done  cli:" in run("list")[0]
    while do_pending():
        pass
    assert Task.objects.filter(status=states.PAUSED, lane="night").count() == 2
    kept.refresh_from_db()
    assert kept.status == states.QUEUED
    shown = json.loads(run("show", out)[0])
    assert (shown["counts"]["done"], shown["reason"]) == (2, "too loud")
    assert run("show", out, "--outcome", "done")[0].count("  done") == 2
    assert AuditEntry.objects.filter(target=f"bulk:{out}", reason="too loud").exists()


def test_arguments_are_those_of_the_action_and_ids_are_taken(flow: Workflow) -> None:
    task = submit(flow)
    out, _ = run("start", "tag", "--task", str(task.pk), "--tag", "a", "--tag", "b")
    assert BulkOperation.objects.get(pk=out).arguments == {"tags": ["a", "b"]}
    assert run("stop", out)[0] == "stopped"
    for wrong in (["pause"], ["tag", "--task", str(task.pk)], ["pause", "--filter", "lane"],
                  ["pause", "--task", str(task.pk), "--priority", "3"],
                  ["pause", "--filter", "nonsense=1"], ["approve"], ["pause", "--task", "x"],
                  ["approve", "--task", str(task.pk)]):  # fmt: skip
        with pytest.raises(CommandError):
            run("start", *wrong)
    assert BulkOperation.objects.count() == 1


def test_questions_are_answered_as_they_are_shown(flow: Workflow) -> None:
    rows = [Approval.objects.get(task=make_in(states.WAITING, flow)) for _ in range(2)]
    named = [part for row in rows for part in ("--approval", str(row.pk))]
    Approval.objects.filter(pk=rows[1].pk).update(risk="high")
    out, hints = run("start", "approve", *named, "--dry-run")
    assert "Go on?  approve" in hints
    assert "left out: Its risk is high" in hints
    assert not BulkOperation.objects.exists()
    with pytest.raises(CommandError, match="say why"):
        run("start", "reject", *named)
    out, _ = run("start", "reject", *named, "--comment", "not now")
    while do_pending():
        pass
    assert set(Approval.objects.values_list("status", "comment")) == {("rejected", "not now")}
    assert run("show", out, "--outcome", "done")[0].startswith(str(rows[0].pk))
