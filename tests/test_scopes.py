"""`Workflow(scope=)`: what its steps may use, wherever they run, and what is refused on record."""

from __future__ import annotations

from typing import Any

import pytest

from ledger import client, queries
from ledger.models import Task
from ledger.testing import Ended, run
from ledger.workflows import OWN_LANE, Child, Scope, Spawn, Workflow, registered

pytestmark = pytest.mark.django_db(transaction=True)
leaf = Workflow("leaf")
leaf.step(lambda ctx: None, name="only")


def run_step(step: Any, scope: Scope | None, **options: Any) -> Ended:
    """A task of one step, which has no second try."""
    flow = Workflow("scoped", scope=scope)
    flow.step(step, name="use", retries=0, **options)
    with registered(leaf):
        return run(flow)


def check_refused(ended: Ended, name: str) -> None:
    """The attempt failed, its reason is on record and names the cure."""
    assert (ended.status, ended.reason) == ("dead", "retries_exhausted")
    failed = next(event for event in ended.events if event["kind"] == "attempt_failed")
    error = failed["data"]["error"]
    assert error["type"] == "OutOfScope"
    assert name in error["message"]
    assert "Scope(" in error["message"]


USES: dict[str, Any] = {
    "secrets": lambda ctx: {"length": len(ctx.secret("BILLING"))},
    "tools": lambda ctx: ctx.allow_tool("search"),
    "lanes": lambda ctx: {"id": str(client.submit(leaf, lane="night"))},
}
NAMES = {"secrets": "BILLING", "tools": "search", "lanes": "night"}


@pytest.mark.parametrize("kind", USES)
@pytest.mark.parametrize("allowed", ["anything", "named", "other", "empty"])
def test_a_step_uses_what_its_scope_names_and_nothing_else(
    kind: str, allowed: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LONGWATCH_SECRET_BILLING", "sixteen-letters!")
    scopes = {"anything": None, "named": Scope(**{kind: [NAMES[kind]]}), "empty": Scope(),
              "other": Scope(secrets=["OTHER"], tools=["shell"], lanes=["day"])}  # fmt: skip
    ended = run_step(USES[kind], scopes[allowed])
    if allowed in {"anything", "named"}:
        assert ended.status == "completed"
        return
    check_refused(ended, NAMES[kind])
    assert not Task.objects.filter(lane="night").exists()


def test_many_submitted_at_once_are_judged_one_by_one() -> None:
    def use(ctx: Any) -> None:
        client.submit_many([{"workflow": leaf, "lane": lane} for lane in ("day", "night")])

    check_refused(run_step(use, Scope(lanes=["day"])), "night")
    assert not Task.objects.filter(workflow="leaf").exists()


@pytest.mark.parametrize(
    ("lane", "lanes", "good"),
    [
        (None, [], False), (None, [OWN_LANE], True), ("night", [OWN_LANE], False),
        ("night", ["night"], True), ("night", ["day"], False),
    ],
)  # fmt: skip
def test_children_go_to_lanes_of_the_scope_only(lane: Any, lanes: list[str], good: bool) -> None:
    ended = run_step(lambda ctx: Spawn([Child(leaf, lane=lane)]), Scope(lanes=lanes))
    assert Task.objects.filter(workflow="leaf").exists() == good
    if not good:
        check_refused(ended, lane or ended.task["lane"])


@pytest.mark.parametrize("scope", [Scope(), Scope(secrets=["BILLING"], tools=["search"])])
def test_an_isolated_step_is_held_to_it_by_its_worker(
    scope: Scope, monkeypatch: pytest.MonkeyPatch
) -> None:
    from tests import scoped_flows

    monkeypatch.setenv("LONGWATCH_SECRET_BILLING", "sixteen-letters!")
    monkeypatch.setattr(scoped_flows.apart, "scope", scope)
    ended = run(scoped_flows.apart)
    refused = ["OutOfScope", "OutOfScope"] if scope == Scope() else [None, None]
    assert ended.result == {"refused": refused}


@pytest.mark.parametrize(
    "given",
    [{"secrets": "BILLING"}, {"tools": [""]}, {"lanes": [7]}, {"tools": {"a": 1}}, {"lanes": None}],
)
def test_a_scope_that_is_no_list_of_names_is_refused_at_once(given: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=rf"Scope\({next(iter(given))}=\)"):
        Scope(**given)
    with pytest.raises(ValueError, match="takes a Scope"):
        Workflow("wrong", scope=given)  # type: ignore[arg-type]


def test_what_a_workflow_may_use_is_listed() -> None:
    flow = Workflow("listed", scope=Scope(tools=["search"], secrets=["A"]), on_limit="ask")
    flow.step(lambda ctx: None, name="only")
    told = {"secrets": ["A"], "tools": ["search"], "lanes": []}
    with registered(flow, leaf):
        listed = {one["name"]: one["scope"] for one in queries.list_workflows()}
        assert (listed["listed"], listed["leaf"]) == (told, None)
        known = next(one for one in queries.describe_known() if one["workflow"] == "listed")
    # A process without the code has it from the workers.
    fleet = queries.build_fleet([[known]])
    assert fleet.knows["listed", "1"].rules == {
        "scope": told, "on_limit": "ask", "self_approval": False, "concurrency": None,
    }  # fmt: skip


def test_outside_of_a_step_nothing_is_held_to_a_scope() -> None:
    run_step(USES["tools"], Scope())
    with registered(leaf):
        assert client.submit(leaf, lane="night")
