"""`manage.py worker` from a terminal."""

from __future__ import annotations

from io import StringIO

import pytest
from django.core.management import CommandError, call_command

from ledger import states
from ledger.models import AuditEntry, Worker
from ledger.tokens import make_token
from ledger.workflows import registered
from tests.api.conftest import Api
from tests.dashboard.fleet import make_worker
from tests.factories import OWNER, make_in, make_workflow


def run(*arguments: str) -> str:
    out = StringIO()
    call_command("worker", *arguments, stdout=out, stderr=StringIO())
    return out.getvalue().strip()


def test_workers_are_listed_told_and_declared_dead(
    db: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    workflow = make_workflow()
    with registered(workflow):
        make_worker(workflow, cluster="c")
        make_worker(workflow, owner="host:2:b", cluster="c")
        task = make_in(states.RUNNING, workflow)
        assert "host:1  live  holds 1 task  seen" in run("list")
        assert run("drain", "host:1", "--cluster", "--reason", "new kernel") == "2 workers told"
        assert "host:1  live, told drain all  holds 1 task" in run("list")
        assert run("undrain", OWNER) == "1 worker told"
        monkeypatch.setattr("builtins.input", lambda prompt: "host:2")
        with pytest.raises(CommandError, match="is not host:1"):
            run("declare-dead", "host:1")
        assert run("declare-dead", "host:1", "--yes") == "1 lease taken away"
        task.refresh_from_db()
    assert (task.status, Worker.objects.get(pk=OWNER).told) == (states.QUEUED, "dead")
    assert "host:1  stopped, told dead  holds 0 tasks" in run("list")
    assert AuditEntry.objects.filter(target=f"worker:{OWNER}").count() == 3
    with pytest.raises(CommandError, match="There is no worker nobody"):
        run("drain", "nobody")


def test_rest_tells_workers_too(db: None) -> None:
    api = Api()
    _, text = make_token("ops", ["read", "operate"], created_by="cli:me")
    api.headers = {"Authorization": f"Bearer {text}"}
    workflow = make_workflow()
    make_worker(workflow, cluster="c")
    with registered(workflow):
        task = make_in(states.RUNNING, workflow)
    path = f"/workers/{OWNER}"
    assert api.post(f"{path}/drain", {"cluster": True}).expect(200) == {"workers": 1}
    row = api.get("/workers").expect(200)["items"][0]
    assert (row["told"], row["cluster"], row["tasks"]) == ("drain_all", "c", [str(task.pk)])
    assert api.post(f"{path}/undrain").expect(200) == {"workers": 1}
    assert api.post(f"{path}/declare-dead", {"reason": "on fire"}).expect(200) == {"fenced": 1}
    api.post(f"{path}/drain").expect_problem(409, "worker_ended")
    api.post("/workers/x:1:y/drain").expect_problem(404, "not_found")
