"""What holds for every page there is: few queries, and an error page when one can't be made."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from django.db import connection
from django.test import Client, RequestFactory
from django.urls import reverse
from django.views import defaults

from dashboard.actions import ACTIONS
from dashboard.bulk import DEEDS
from dashboard.urls import urlpatterns
from ledger import artifacts, sql, states
from ledger.alerts import routing
from ledger.bulk.making import make_operation
from ledger.bulk.selecting import Selection
from ledger.events import Actor
from ledger.models import Task
from ledger.tokens import make_token
from ledger.transitions.outputs import edit_output
from ledger.workflows import Workflow
from tests.alerts.kit import make_rule
from tests.dashboard.conftest import PART
from tests.dashboard.fleet import fill_with_trouble
from tests.dashboard.test_actions import make_dead_at_b
from tests.factories import LEASE, OWNER, ask, claim, make_in, make_unit, spawn, submit

MAX_QUERIES = 12
NO_PAGES = frozenset(
    {
        "audit-export",
        "answer",
        "undo",
        "alert-act",
        "lane-act",
        "view-act",
        "logout",
        "login-link",
        "artifact",
        "bulk-stop",
        "bulk-export",
        "bundle",
    }
)
"""Routes that write, or send a file."""


def make_edited(three: Workflow) -> Task:
    """A task whose one unit a person wrote."""
    task = make_dead_at_b(three)
    seq = task.outputs.get().seq
    edit_output(task.id, seq, output={"ok": 1}, actor=Actor("user", "1"), reason="wrong")
    return task


def list_pages(three: Workflow) -> dict[str, list[str]]:
    """route: its paths, each with something to show."""
    fill_with_trouble(three)
    task = submit(three, title="Ferry timetables", tags=["nightly"])
    held = claim(three)
    while held.task_id != task.id:
        held = claim(three)
    artifacts.save_artifact(held, "a.patch", b"x")
    held.turn = 1
    saved = artifacts.save_artifact(held, "a.patch", b"y")
    held.turn = 0
    sql.checkpoint_unit(held, make_unit(held, three), lease_seconds=LEASE, groups=[])
    files = [{"path": f"{name}.py", "diff": "@@ -1 +1 @@\n-a\n+b\n"} for name in "abc"]
    submit(three, priority=100)
    asked = ask(
        claim(three), three, payload={"files": files}, send_back_to="a", form={"type": "string"}
    )
    make_in(states.COMPLETED, three)
    seq = task.outputs.get().seq
    rule = make_rule("ann@here.example", "dead", "approval_requested", channel="email")
    make_in(states.DEAD, three)
    routing.route_outbox()
    edited = make_edited(three)
    edit = edited.outputs.get(fence=0).seq
    parent = submit(three, priority=100)
    spawn(claim(three), three, 3)
    token, _ = make_token("nightly", ["read"], created_by="user:1", owner="user:1")
    keys: dict[str, list[list[Any]]] = {
        "workflow": [[three.name]], "task": [[task.id], [edited.id], [parent.id]],
        "outputs": [[task.id], [edited.id]], "output": [[task.id, seq], [edited.id, edit]],
        "events": [[task.id]], "handoff": [[task.id]], "log": [[task.id]],
        "transcript": [[task.id]], "compare": [[task.id], [edited.id]],
        "token-act": [[token.pk, "rotate"], [token.pk, "revoke"]],
        "worker-act": [[OWNER, "drain"], [OWNER, "declare-dead"]],
        "act": [[task.id, name] for name in ACTIONS if name != "edit"],
        "approval": [[asked.id]], "alert": [[rule.id]], "approval-file": [[asked.id, 0]],
        "bulk": [[make_operation("pause", Selection(ids=(edited.id, parent.id)),
                                 actor=Actor("user", "1"))[0].pk]],
        "artifact-view": [[saved.id]], "artifact-changes": [[saved.id]],
    }  # fmt: skip
    names = [str(route.name) for route in urlpatterns if route.name not in NO_PAGES]
    found = {
        name: [reverse(f"dashboard:{name}", args=args) for args in keys.get(name, [[]])]
        for name in names
    }
    found["act"].append(reverse("dashboard:act", args=[task.id, "edit"]) + f"?unit={seq}")
    found["lane"].append("/lanes/set/?lane=a%2Fb")
    found["tasks"] += ["/tasks/?q=ferry&tag=nightly", "/tasks/?status=unfinished"]
    chosen = f"task={task.id}&task={parent.id}"
    found["bulk-new"] = [
        *(f"/bulk/new/?action={name}&all=1&q=e" for name in DEEDS),
        f"/bulk/new/?action=cancel&{chosen}", f"/bulk/new/?action=export&{chosen}",
    ]  # fmt: skip
    pair = f"{asked.pk}:{asked.digest}"
    found["together"] += [f"/approvals/together/?action={name}&asked={pair}"
                          for name in ("approve", "reject")]  # fmt: skip
    found["trouble"] += [
        f"/stalled/?kind={kind}" for kind in ("stalled", "lost", "over-time", "gave-up")
    ]
    return found


@pytest.mark.both_databases
@pytest.mark.case(70)
def test_no_page_takes_many_queries_or_is_kept_by_a_cache(
    sign_in: Callable[..., Client], three: Workflow, django_assert_max_num_queries: Any
) -> None:
    admin = sign_in("admin")
    pages = list_pages(three)
    assert len(pages) > 12
    assert connection.features.supports_json_field  # Django asks SQLite once in a process
    for paths in pages.values():
        for path in paths:
            for headers in ({}, PART):
                with django_assert_max_num_queries(MAX_QUERIES):
                    response = admin.get(path, headers=headers)
                assert response.status_code in {200, 302}, path
                assert "no-store" in response["Cache-Control"], path
                assert {"HX-Request", "Cookie"} <= set(response["Vary"].split(", ")), path


def test_a_page_that_can_not_be_made_says_so_in_words() -> None:
    """Without a request, a user or a database: any of them may be what is broken."""
    response = defaults.server_error(RequestFactory().get("/"))
    text = response.content.decode()
    assert response.status_code == 500
    assert "This page could not be made" in text
    assert "longwatch.css" in text
