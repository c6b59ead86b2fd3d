"""submit, answer, token, doctor: what a script reads on stdout, and what a person is told."""

from __future__ import annotations

import io
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from django.core.management import CommandError, call_command

from ledger import artifacts, clock, registry, sql
from ledger.events import Actor
from ledger.models import ApiToken, Approval, Artifact, AuditEntry, Task
from ledger.sql import Unit
from ledger.tokens import find_token
from ledger.transitions.asking import ask_approval, describe_attached
from ledger.transitions.submit import submit_task
from ledger.workflows import AskApproval, Workflow
from tests.commands.conftest import Manage

pytestmark = pytest.mark.both_databases


@pytest.fixture
def free() -> Iterator[Workflow]:
    """A workflow that takes any object and asks in its second step."""
    workflow = Workflow("free")
    for name in ("first", "asks"):
        workflow.step(lambda ctx: None, name=name)
    with registry.registered(workflow):
        yield workflow


def run(name: str, *arguments: str) -> tuple[str, str]:
    """stdout and stderr of a command."""
    out, err = io.StringIO(), io.StringIO()
    call_command(name, *arguments, stdout=out, stderr=err)
    return out.getvalue(), err.getvalue()


def test_submit_prints_the_id_alone(db: None, free: Workflow, tmp_path: Path) -> None:
    file = tmp_path / "data.csv"
    file.write_text("a,b\n")
    given = tmp_path / "input.json"
    given.write_text('{"x": [1, "ü"]}')
    out, err = run(
        "submit", "free", "--input", f"@{given}", "--file", f"table={file}", "--title", "T",
        "--lane", "acme", "--priority", "-3", "--tag", "a", "--tag", "b", "--key", "k",
    )  # fmt: skip
    task = Task.objects.get()
    assert out == f"{task.pk}\n"
    assert "no worker is running" in err
    assert f"manage.py watch {task.pk}" in err
    artifact = Artifact.objects.get()
    assert task.input == {"x": [1, "ü"], "table": str(artifact.pk)}
    assert (artifact.name, artifact.task_id) == ("data.csv", None)
    assert (task.title, task.lane, task.priority, task.tags) == ("T", "acme", -3, ["a", "b"])
    assert task.submitted_by.startswith("cli:")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["nope"], "workflow: nobody knows nope"),
        (["free", "--input", "{"], "--input: is not JSON"),
        (["free", "--input", "[1]"], "--input: takes a JSON object"),
        (["free", "--input", '{"a": NaN}'], "--input a: nan is not a JSON number"),
        (["free", "--input", "@/no/such"], "--input: /no/such can't be read"),
        (["free", "--file", "x"], "--file: 'x' is not NAME=PATH"),
        (["free", "--file", "x=/no/such"], "--file: /no/such is no file"),
        (["free", "--priority", "500"], "priority: takes a whole number"),
        (["free", "--tag", ""], "tags[0]: takes a text"),
    ],
)
def test_a_bad_submit_is_one_line(
    db: None, free: Workflow, arguments: list[str], said: str
) -> None:
    with pytest.raises(CommandError) as refused:
        run("submit", *arguments)
    assert said in str(refused.value)
    assert not Task.objects.exists()


def make_question(workflow: Workflow, **options: Any) -> Approval:
    """A task of somebody else's that waits for an answer."""
    submit_task(workflow=workflow, input={}, actor=Actor("token", "x"))
    held = sql.claim_task("h:1:b", [("default", "free", "1")], 60.0)
    assert held is not None
    ask = AskApproval("Ship it?", body="Every detail.", send_back_to="first", **options)
    attached = describe_attached(held.task_id, ask)
    request = ask_approval(held, Unit("{}", None, 0, "first", 0), ask, workflow, attached)
    assert request is not None
    return request


def test_answer_decides_by_approval_or_by_task(db: None, free: Workflow) -> None:
    request = make_question(free)
    out, err = run("answer", str(request.pk), "approve", "--comment", "go")
    assert out == "approved\n"
    assert "Ship it?" in err
    assert "Every detail." in err
    decided = Approval.objects.get()
    assert (decided.status, decided.comment) == ("approved", "go")
    assert decided.decided_by.startswith("cli:")
    with pytest.raises(CommandError, match="already approved by cli:"):
        run("answer", str(request.pk), "reject")

    second = make_question(free)
    with pytest.raises(CommandError, match="has changed"):
        run("answer", str(second.task_id), "approve", "--digest", "0" * 64)
    out, _ = run("answer", str(second.task_id), "send_back", "--values", '{"why": "thin"}')
    assert out == "sent_back\n"
    assert Task.objects.get(pk=second.task_id).feedback["values"] == {"why": "thin"}
    with pytest.raises(CommandError, match="waits for one"):
        run("answer", str(second.task_id), "approve")


def test_answer_shows_what_it_answers(
    db: None, free: Workflow, settings: Any, tmp_path: Path
) -> None:
    settings.LONGWATCH_ARTIFACTS = str(tmp_path)
    file = artifacts.store_upload(io.BytesIO(b"old"), "old.txt")
    free.risk_floor = "medium"
    request = make_question(free, diff=(file, file), proposal={"to": "Naxos"})
    _, err = run("answer", str(request.pk), "approve")
    assert "Ship it? (risk medium, set by the workflow's floor; task" in err
    assert f"diff: old.txt, 3 bytes, artifact {file.pk}" in err
    assert 'proposal: {"to":"Naxos"}' in err
    request = make_question(free, risk="high", assignees=["user:3", "group:legal"])
    with pytest.raises(CommandError, match="group:legal"):
        run("answer", str(request.pk), "approve")


def test_a_token_is_the_last_word_on_stdout(db: None) -> None:
    out, err = run("token", "create", "ci", "--scope", "submit, read", "--days", "7")
    text = out.split()[-1]
    row = find_token(text)
    assert row is not None
    assert (row.name, row.scopes) == ("ci", ["read", "submit"])
    assert row.expires_at is not None
    assert text not in err
    listed, _ = run("token", "list")
    assert str(row.pk) in listed
    assert text not in listed
    run("token", "revoke", str(row.pk))
    assert find_token(text) is None
    with pytest.raises(CommandError, match="no valid token"):
        run("token", "revoke", str(row.pk))
    for bad in (["--scope", "all"], ["--scope", ""], ["--days", "0"]):
        with pytest.raises(CommandError):
            run("token", "create", "x", *bad)
    assert ApiToken.objects.count() == 1


def test_a_finished_task_s_status_is_the_exit_code(manage: Manage, free: Workflow) -> None:
    task, _ = submit_task(workflow=free, input={}, actor=Actor("cli", "x"))
    from ledger.transitions.operators import cancel_task

    cancel_task(task.pk, actor=Actor("cli", "x"), reason="enough")
    watched = manage("watch", str(task.pk))
    assert watched.returncode == 5, watched.stderr
    assert watched.stdout.splitlines()[-1].startswith("cancelled")
    assert "enough" in watched.stdout
    gone = manage("watch", "00000000-0000-7000-8000-000000000000")
    assert gone.returncode == 1
    assert gone.stderr.strip() == (
        "CommandError: There is no task 00000000-0000-7000-8000-000000000000."
    )


@pytest.mark.sqlite
def test_doctor_names_problems_and_cures(manage: Manage, tmp_path: Path) -> None:
    seen = manage("doctor")
    assert seen.returncode == 1
    lines = seen.stdout.splitlines()
    at = lines.index("FAIL workers: none beats")
    assert "manage.py up" in lines[at + 1]
    assert any(line.startswith("ok   clock: ") for line in lines)
    assert any(line.startswith("ok   artifacts: ") for line in lines)

    module = tmp_path / "broken_workflows.py"
    module.write_text("import sys\nsys.exit('no')\n")
    broken = manage("doctor", LONGWATCH_WORKFLOWS="broken_workflows", PYTHONPATH=str(tmp_path))
    assert "FAIL workflows: broken_workflows can't be imported: SystemExit: no" in broken.stdout

    away = manage("doctor", LONGWATCH_DATABASE_URL="postgresql://nobody@127.0.0.1:1/none")
    assert away.returncode == 1
    assert away.stdout.startswith("FAIL database: does not answer")

    empty = tmp_path / "empty.sqlite3"
    bare = manage("doctor", LONGWATCH_DATABASE_URL=f"sqlite:////{str(empty).lstrip('/')}")
    assert "Run `manage.py migrate`." in bare.stdout
    refused = manage("ledger_check", LONGWATCH_DATABASE_URL=f"sqlite:////{str(empty).lstrip('/')}")
    assert refused.stderr.strip() == (
        "CommandError: The database has no ledger yet. Run `manage.py migrate`."
    )


def test_input_comes_from_stdin_too(
    db: None, free: Workflow, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(json.dumps({"n": 1}).encode())))
    run("submit", "free", "--input", "@-")
    assert Task.objects.get().input == {"n": 1}


def test_live_drawing_shows_text_of_others_as_text(db: None, free: Workflow) -> None:
    from rich.console import Console

    from ledger import queries
    from ledger.management.commands.watch import _draw

    task, _ = submit_task(
        workflow=free, input={}, actor=Actor("cli", "x"), title="[bold red]x[/] [link=http://a]"
    )
    shown: dict[str, Any] = queries.show_task(task.pk)
    console = Console(file=io.StringIO(), width=120, record=True)
    console.print(_draw(shown, ["12:00:00  submitted  [red]y"]))
    text = console.export_text()
    assert "[bold red]x[/] [link=http://a]" in text
    assert "[red]y" in text
    assert "step 1 of 2: first" in text


def test_a_rotated_token_and_the_old_one_are_both_good_for_a_while(db: None) -> None:
    out, _ = run("token", "create", "ci", "--lane", "day,night", "--no-payload", "--days", "7")
    old, first = find_token(out.split()[-1]), out.split()[-1]
    assert old is not None
    assert (old.lanes, old.payload) == (["day", "night"], False)
    out, err = run("token", "rotate", "ci", "--overlap", "2h")
    second = out.split()[-1]
    new = find_token(second)
    assert new is not None
    assert (new.scopes, new.lanes, new.payload) == (old.scopes, old.lanes, False)
    assert first not in out + err
    assert find_token(first) is not None
    with pytest.raises(CommandError, match="several valid tokens"):
        run("token", "rotate", "ci")
    clock.offset += 2 * 3600 + 1
    try:
        assert find_token(first) is None
        assert find_token(second) is not None
    finally:
        clock.offset = 0.0
    entry = AuditEntry.objects.get(action="rotate_token")
    assert (entry.target, f"token:{new.pk}" in entry.reason) == (f"token:{old.pk}", True)
    listed, _ = run("token", "list")
    assert "read@day,night,no-payload" in listed
    assert "last used 20" in listed
    for wrong in ("24", "h", "-1h", "99999d"):
        with pytest.raises(CommandError):
            run("token", "rotate", str(new.pk), "--overlap", wrong)
    with pytest.raises(CommandError, match="no valid token"):
        run("token", "rotate", "nobody")
