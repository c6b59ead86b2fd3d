"""Retention: contents go, proof stays; then the task goes, and the audit log keeps what it was."""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from django.core.management import call_command
from django.db import connection
from django.test import Client
from django.urls import reverse

from ledger import clock, forgetting, queries, states
from ledger.calls import answer_call, narrow_call, read_call
from ledger.canonical import dump_json
from ledger.errors import ContentsRemoved, LedgerError, TaskNotFound, TaskRemoved
from ledger.events import Actor
from ledger.keeping import REMOVED, read_rules
from ledger.models import (
    Approval,
    ApprovalVote,
    Artifact,
    AuditEntry,
    Effect,
    Event,
    Spend,
    StepOutput,
    Task,
)
from ledger.testing import run
from ledger.tokens import make_token
from ledger.transitions import operators, thinning
from ledger.transitions.forks import fork_task
from ledger.transitions.outputs import edit_output
from ledger.transitions.submit import submit_task
from ledger.workflows import AskApproval, Child, Spawn, WaitFor, Workflow, registered
from tests.dashboard.conftest import make_user
from tests.factories import make_in, make_workflow, submit

pytestmark = [
    pytest.mark.both_databases,
    pytest.mark.django_db(transaction=True),
    pytest.mark.case(38),
]

ACTOR = Actor("cli", "test")
DAY = 86_400.0
SECRET = "the-secret-of-this-task"


@pytest.fixture(autouse=True)
def places(settings: Any, tmp_path: Path) -> Iterator[None]:
    settings.LONGWATCH_VAR = str(tmp_path / "var")
    settings.LONGWATCH_ARTIFACTS = str(tmp_path / "artifacts")
    settings.LONGWATCH_RETENTION = {"rules": [{"payload_days": 30, "task_days": 365}]}
    yield
    clock.offset = 0.0


CHILD = Workflow("child")
CHILD.step(lambda ctx: {"said": SECRET}, name="say")


def make_rich() -> Workflow:
    """A workflow that leaves something of every kind."""
    rich = Workflow("rich")

    @rich.step(retries=1)
    def make(ctx: Any) -> Any:
        ctx.log.warning(SECRET)
        ctx.save_artifact("report.md", SECRET.encode())
        (ctx.workspace / "file.txt").write_text(SECRET)
        ctx.spend(tokens_in=3, tokens_out=4, cost="0.50", key="call")
        ctx.once("pay", lambda key: {"receipt": SECRET}, args={"to": SECRET})
        return {"made": SECRET, "told": ctx.handoff().markdown}

    rich.step(lambda ctx: WaitFor("go"), name="listen")
    rich.step(lambda ctx: Spawn([Child(CHILD)]), name="spawn")

    @rich.step
    def ask(ctx: Any) -> Any:
        return AskApproval("Publish?", body=SECRET, payload={"text": SECRET})

    @rich.step
    def publish(ctx: Any) -> Any:
        return {"published": SECRET}

    return rich


def run_rich() -> UUID:
    """One task of it, completed, with a failed attempt on the way."""
    rich = make_rich()
    with registered(rich, CHILD):
        ended = run(
            rich, {"word": SECRET}, faults={"make": [ValueError(SECRET), None]},
            answers={"ask": {"decision": "approve", "comment": "fine"}},
            signals={"go": {"text": SECRET}},
        )  # fmt: skip
    assert ended.status == states.COMPLETED, ended.task
    clock.offset = 0.0
    return ended.id


def forget(**options: Any) -> dict[str, int]:
    return {name: n for name, n in forgetting.forget(ACTOR, **options).numbers.items() if n}


def dump_everything() -> str:
    """All that any table of the ledger holds."""
    found = []
    with connection.cursor() as cursor:
        for table in connection.introspection.table_names(cursor):
            if table.startswith("longwatch_"):
                cursor.execute(f"SELECT * FROM {table}")
                found.append(repr(cursor.fetchall()))
    return "\n".join(found)


def test_contents_go_and_proof_stays(client: Client, tmp_path: Path) -> None:
    """Nothing of what the task worked with is left in any table or file; the record is."""
    key = run_rich()
    result = queries.show_task(key)["result"]
    digests = dict(Approval.objects.values_list("pk", "digest"))
    kept = {
        table: list(table._default_manager.order_by("pk").values(*columns))
        for table, columns in {
            StepOutput: ("seq", "step_name", "turn", "worker", "fence", "tokens", "cost"),
            ApprovalVote: ("by", "decision", "at"), Spend: ("key", "cost", "tokens_in"),
            Effect: ("name", "fingerprint", "status", "fences"),
            Event: ("seq", "kind", "actor", "at"),
        }.items()
    }  # fmt: skip
    assert SECRET in dump_everything()
    clock.offset = 29 * DAY
    assert forget() == {}
    clock.offset = 31 * DAY
    before = dump_everything()
    assert forget(dry=True) == {forgetting.CONTENTS: 2}, "the child too"
    assert dump_everything() == before, "a dry run changes nothing"
    assert forget() == {forgetting.CONTENTS: 2}
    call_command("collect", hours=0, verbosity=0)
    assert SECRET not in dump_everything()
    files = [one for one in (tmp_path / "artifacts").rglob("*") if one.is_file()]
    assert SECRET.encode() not in b"".join(one.read_bytes() for one in files)
    for table, rows in kept.items():
        now = table._default_manager.order_by("pk").values(*rows[0])
        assert list(now) == rows, table
    assert dict(Approval.objects.values_list("pk", "digest")) == digests
    approval = Approval.objects.get()
    assert (approval.decision, approval.comment, approval.subject) == (
        "approve",
        "fine",
        "Publish?",
    )
    proof = queries.show_task(key)["result"][REMOVED]
    assert proof["sha256"] == hashlib.sha256(dump_json(result).encode()).hexdigest()
    assert proof["why"] == "removed by retention, 30 days after the task's end"
    assert forget() == {}, "once is enough"
    assert_shown(client, key)


def assert_shown(client: Client, key: UUID) -> None:
    """Pages and REST say what became of it; no panel is just empty."""
    row = queries.show_task(key)
    assert row["contents_removed"]["days"] == 30
    client.force_login(make_user("operator"))
    approval, artifact = Approval.objects.get(), Artifact.objects.get(name="report.md")
    for page in ("task", "outputs", "events", "log", "handoff", "transcript"):
        answer = client.get(reverse(f"dashboard:{page}", args=[key]))
        text = answer.content.decode()
        assert (answer.status_code, "removed by retention" in text) == (200, True), page
    assert client.get(reverse("dashboard:approval", args=[approval.pk])).status_code == 200
    made = StepOutput.objects.filter(task=key, step_name__in=["make", "publish"])
    for seq in made.values_list("seq", flat=True):
        text = client.get(reverse("dashboard:output", args=[key, seq])).content.decode()
        assert "30 days after the" in text
    page = client.get(reverse("dashboard:artifact", args=[artifact.pk]))
    assert "expired" in page.content.decode()
    assert queries.show_artifact(artifact)["sha256"] == hashlib.sha256(SECRET.encode()).hexdigest()
    text = client.get(reverse("dashboard:task", args=[key])).content.decode()
    assert "or be copied" in text
    _, token = make_token("t", ["read"], created_by="cli:test")
    head = {"Authorization": f"Bearer {token}"}
    for part in ("", "/outputs", "/events", "/artifacts", "/spend", "/handoff", "/transcript"):
        answer = client.get(f"/api/v1/tasks/{key}{part}", headers=head)
        assert answer.status_code == 200, (part, answer.content)
    assert client.get(f"/api/v1/approvals/{approval.pk}", headers=head).status_code == 200


def test_what_lost_its_contents_can_not_go_on_or_be_copied() -> None:
    flow = make_workflow("three")
    with registered(flow):
        failed, dead = make_in(states.FAILED, flow), make_in(states.DEAD, flow)
        with registered(make_rich(), CHILD):
            rich = run_rich()
        Task.objects.filter(pk=dead.pk).update(seen_at=clock.now(1))
        clock.offset = 31 * DAY
        assert forget() == {forgetting.CONTENTS: 4}
        first = StepOutput.objects.filter(task=rich).order_by("seq").first()
        assert first is not None
        refused: list[Any] = [
            lambda: operators.retry_task(failed.pk, actor=ACTOR),
            lambda: operators.restart_task(dead.pk, to_step="a", actor=ACTOR, note=""),
            lambda: fork_task(failed.pk, from_step="a", actor=ACTOR),
            lambda: edit_output(rich, first.seq, output={}, actor=ACTOR, reason="no"),
        ]
        for number, action in enumerate(refused):
            with pytest.raises(ContentsRemoved, match="submit a new task"):
                action()
            assert Task.objects.exclude(finished_at=None).count() == 4, number
        operators.cancel_task(dead.pk, actor=ACTOR)


def test_unfinished_needed_and_unseen_tasks_are_never_touched(client: Client) -> None:
    flow = make_workflow("copied")
    flows = {status: make_workflow(status) for status in states.STATUSES}
    with registered(flow, *flows.values()):
        made = {status: make_in(status, own) for status, own in flows.items()}
        copied = make_in(states.COMPLETED, flow)
        fork_task(copied.pk, from_step="a", actor=ACTOR)
        before = {key: row for key, row in list_rows().items() if key != made["completed"].pk}
        clock.offset = 400 * DAY
        assert forget(dry=True) == {"tasks": 3, "unseen": 1, "needed": 1}
        assert forget() == {"tasks": 3, "unseen": 1, "needed": 1}
        left = list_rows()
        gone = {made[status].pk for status in ("completed", "failed", "cancelled")}
        assert gone.isdisjoint(left)
        assert left == {key: row for key, row in before.items() if key not in gone}
        client.force_login(make_user("viewer"))
        page = reverse("dashboard:task", args=[made["dead"].pk])
        assert client.get(page).status_code == 200
        assert forget() == {"tasks": 1, "needed": 1}, "it was looked at"


def list_rows() -> dict[UUID, Any]:
    return {row["id"]: row for row in Task.objects.values()}


def test_a_task_that_gives_up_again_is_unseen_again() -> None:
    flow = make_workflow("three")
    with registered(flow):
        dead = make_in(states.DEAD, flow)
        Task.objects.filter(pk=dead.pk).update(seen_at=clock.now(-60))
        clock.offset = 31 * DAY
        assert forget() == {"unseen": 1}


def test_a_whole_task_goes_and_the_audit_log_keeps_what_it_was(client: Client) -> None:
    key = run_rich()
    result = queries.show_task(key)["result"]
    Task.objects.filter(pk=key).update(idempotency_key="k")
    clock.offset = 400 * DAY
    assert forget() == {forgetting.TASKS: 1, forgetting.CONTENTS: 1}, "children first"
    assert forget() == {forgetting.TASKS: 1}
    assert not Task.objects.exists()
    call_command("collect", hours=0, verbosity=0)
    assert SECRET not in dump_everything()
    entry = AuditEntry.objects.get(action="removed", task=key)
    kept = entry.before
    assert kept["result_sha256"] == hashlib.sha256(dump_json(result).encode()).hexdigest()
    assert (kept["workflow"], kept["status"], kept["used"]["cost"]) == ("rich", "completed", "0.50")
    assert [one["status"] for one in kept["decisions"]] == ["approved"]
    assert [one["key"].split(":", 1)[1] for one in kept["effects"]] == ["make:0:0:pay"]
    with pytest.raises(TaskRemoved, match="365 days after its end"):
        queries.find_task(key)
    with answer_call(read_call()):
        narrow_call("user:1", frozenset({"elsewhere"}), payload=True)
        with pytest.raises(TaskNotFound) as hidden:
            queries.find_task(key)
    assert not isinstance(hidden.value, TaskRemoved), "its lane is not the caller's"
    _, token = make_token("t", ["read"], created_by="cli:test")
    head = {"Authorization": f"Bearer {token}"}
    for part in ("", "/outputs", "/log"):
        answer = client.get(f"/api/v1/tasks/{key}{part}", headers=head)
        assert (answer.status_code, answer.json()["code"]) == (410, "task_removed"), part
    client.force_login(make_user("viewer"))
    page = client.get(reverse("dashboard:task", args=[key]))
    assert (page.status_code, "removed by retention on" in page.content.decode()) == (410, True)


def test_a_key_is_free_again_once_its_task_is_gone_and_not_before() -> None:
    flow = make_workflow("three")
    options: dict[str, Any] = {"workflow": flow, "input": {}, "actor": ACTOR, "key": "k"}
    with registered(flow):
        task, _ = submit_task(**options)
        operators.cancel_task(task.pk, actor=ACTOR)
        clock.offset = 31 * DAY
        assert forget() == {forgetting.CONTENTS: 1}
        assert submit_task(**options) == (task, False)
        with pytest.raises(LedgerError, match="another"):
            submit_task(**options | {"input": {"other": 1}})
        clock.offset = 366 * DAY
        assert forget() == {forgetting.TASKS: 1}
        again, created = submit_task(**options)
        assert created
        assert again.pk != task.pk


def test_a_task_stays_for_the_month_whose_budget_it_counts_in(settings: Any) -> None:
    settings.LONGWATCH_RETENTION = {"rules": [{"task_days": 1}]}
    key = run_rich()
    moment = clock.read()
    clock.offset = 2 * DAY
    Spend.objects.update(at=moment if clock.read().month == moment.month else clock.now())
    forget()
    assert forget() == {"needed": 1}
    clock.offset = 40 * DAY
    assert forget() == {forgetting.TASKS: 1}
    assert not Task.objects.filter(pk=key).exists()


def test_the_first_rule_that_fits_decides(settings: Any) -> None:
    settings.LONGWATCH_RETENTION = {
        "rules": [
            {"lane": ["tests"], "status": ["completed"], "payload_days": 1},
            {"workflow": ["three"], "status": ["failed"]},
            {"status": ["failed", "cancelled"], "payload_days": 10},
        ]
    }
    flow, other = make_workflow("three"), make_workflow("other")
    with registered(flow, other):
        quick = make_in(states.COMPLETED, flow)
        Task.objects.filter(pk=quick.pk).update(lane="tests")
        kept = [make_in(states.COMPLETED, flow), make_in(states.FAILED, flow)]
        later = make_in(states.FAILED, other)
    clock.offset = 2 * DAY
    assert forget() == {forgetting.CONTENTS: 1}
    clock.offset = 11 * DAY
    assert forget() == {forgetting.CONTENTS: 1}
    thinned = Task.objects.exclude(thinned_days=None).values_list("pk", "thinned_days")
    assert dict(thinned) == {quick.pk: 1, later.pk: 10}
    assert Task.objects.filter(pk__in=[one.pk for one in kept], thinned_at=None).count() == 2


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"rules": [{"payload_days": 0}]}, "rule 1, payload_days"),
        ({"rules": [{}, {"status": ["running"]}]}, "rule 2, status"),
        ({"rules": [{"payload_days": 9, "task_days": 3}]}, "more than task_days"),
        ({"rule": []}, "takes rules"),
    ],
)
@pytest.mark.sqlite
def test_rules_that_can_not_be_meant_are_refused_by_name(
    settings: Any, given: Any, said: str
) -> None:
    from ledger.checks import check_retention

    settings.LONGWATCH_RETENTION = given
    (found,) = check_retention()
    assert (found.id, said in found.msg) == ("longwatch.E007", True), found.msg


def test_what_was_begun_is_finished_by_the_next_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ended after its first transaction, after its second, and so on; from the first one on the
    task can't go on."""
    key = run_rich()
    clock.offset = 31 * DAY
    monkeypatch.setattr(thinning, "ROWS", 3)
    for last in range(1, 100):
        left = iter(range(last))

        def rest(pace: Any, left: Iterator[int] = left) -> None:
            if next(left) == last - 1:  # noqa: B023
                raise KeyboardInterrupt

        with monkeypatch.context() as patch, contextlib.suppress(KeyboardInterrupt):
            patch.setattr(forgetting._Pace, "rest", rest)
            forgetting.forget(ACTOR)
        assert Task.objects.get(pk=key).thinned_at is not None
        if Task.objects.get(pk=key).thinned_days:
            break
    assert last > 3
    assert SECRET not in dump_everything()


@pytest.mark.sqlite
def test_the_command_shows_rules_and_what_would_go(capsys: pytest.CaptureFixture[str]) -> None:
    with registered(flow := make_workflow("three")):
        make_in(states.COMPLETED, flow)
        submit(flow)
    clock.offset = 31 * DAY
    call_command("retention")
    said = capsys.readouterr().out
    assert "every task: contents go after 30 days, the task after 365 days" in said
    assert "Would remove: contents of 1 tasks and 0 whole tasks" in said
    assert not Task.objects.exclude(thinned_at=None).exists()
    call_command("retention", run=True)
    assert "Removed: contents of 1 tasks" in capsys.readouterr().out
    assert [rule.payload_days for rule in read_rules()] == [30]
