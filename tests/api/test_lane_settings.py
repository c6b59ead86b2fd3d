"""/lanes: what people set, what it counts, and that it is said why a task waits."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from urllib.parse import quote

import pytest
from django.core.management import call_command

from ledger import clock, lanebudgets, limits, registry
from ledger.access import OPERATE, READ
from ledger.models import AuditEntry, Task, Worker
from ledger.queries.fleet import describe_known
from ledger.tokens import make_token
from ledger.workflows import Workflow
from tests.api.conftest import Api
from tests.factories import OWNER, claim, make_workflow, submit

pytestmark = [pytest.mark.both_databases, pytest.mark.django_db]

ODD = "teams/ä b?#%/day"


@pytest.fixture
def flow(monkeypatch: pytest.MonkeyPatch) -> Iterator[Workflow]:
    """A workflow that this process and a live worker know."""
    monkeypatch.setattr(lanebudgets, "_kept", None)
    monkeypatch.setattr(lanebudgets, "SUMS_SECONDS", -1.0)
    workflow = make_workflow()
    with registry.registered(workflow):
        now, knows = clock.now(), describe_known()
        Worker.objects.bulk_create(
            [Worker(owner=OWNER, host="h", pid=1, started_at=now, seen_at=now, knows=knows)]
        )
        yield workflow


def test_a_lane_is_set_and_read_by_any_name(flow: Workflow, login: Callable[..., Api]) -> None:
    api, path = login(), f"/lanes/{quote(ODD, safe='')}"
    assert api.get(path).expect(200)["weight"] == 1, "nobody has set anything for it"
    body = {"weight": 3, "cap": 2, "rate": 5, "per": "minute", "burst": 4, "cost_day": "1.5",
            "tokens_month": 9, "revision": 0}  # fmt: skip
    told = api.post(path, body).expect(200)
    assert (told["name"], told["cost_day"], told["revision"]) == (ODD, "1.50", 1)
    assert told["used"] == {
        "cost_day": "0.00", "cost_month": "0.00", "tokens_day": 0, "tokens_month": 0
    }  # fmt: skip
    api.post(path, {"cap": 9, "revision": 0}).expect_problem(409, "stale_revision")
    assert api.post(path, {"cap": None}).expect(200)["cap"] is None
    assert api.get(path).expect(200)["weight"] == 3
    (one,) = api.get("/lanes").expect(200)["items"]
    assert one["name"] == ODD
    assert [e.after for e in AuditEntry.objects.filter(action="lane_changed").order_by("id")][
        1
    ] == {"cap": None}


@pytest.mark.parametrize(
    ("body", "field"),
    [({"weight": 0}, "weight"), ({"weight": None}, "weight"), ({"cap": 0}, "cap"),
     ({"per": "hour"}, "per"), ({"cost_day": "-1"}, "cost_day"), ({"burst": 10**9}, "burst"),
     ({"tokens_day": -1}, "tokens_day")],
)  # fmt: skip
def test_what_can_not_be_is_refused_at_its_field(
    login: Callable[..., Api], body: dict[str, object], field: str
) -> None:
    login().post("/lanes/a", body).expect_problem(422, "invalid_input", field)


def test_counts_and_ages_are_those_of_the_tasks(flow: Workflow, login: Callable[..., Api]) -> None:
    api = login()
    for lane, count in (("a", 3), ("b", 1)):
        for _ in range(count):
            submit(flow, lane=lane)
    claim(flow, lane="a")
    page = api.get("/lanes", limit=1).expect(200)
    (first,) = page["items"]
    assert (first["name"], first["running"], first["queued"]) == ("a", 1, 2)
    assert first["oldest_queued_at"] is not None
    (second,) = api.get("/lanes", cursor=page["next_cursor"]).expect(200)["items"]
    assert (second["name"], second["running"], second["queued"]) == ("b", 0, 1)


def test_a_task_says_that_its_lane_keeps_it(flow: Workflow, login: Callable[..., Api]) -> None:
    api = login()
    spent = submit(flow, lane="tenant")
    limits.record_spend(claim(flow, lane="tenant"), key="a", cost="2.00")
    task = submit(flow, lane="tenant")

    def look() -> dict[str, object]:
        return dict(api.get(f"/tasks/{task.pk}").expect(200)["claimable"])

    assert look() == {"ok": True, "why": ""}
    api.post("/lanes/tenant", {"cost_day": "2.00"}).expect(200)
    over = "lane over its day's money until 00:00 UTC"
    assert look() == {"ok": False, "why": over}
    assert api.get("/lanes/tenant").expect(200)["closed"] == over
    api.post("/lanes/tenant", {"paused": True}).expect(200)
    assert look() == {"ok": False, "why": f"its lane is paused; {over}"}
    ran = api.post("/lanes/tenant", {"run_one": True}).expect(200)
    assert ran["running_one"] == str(task.pk)
    assert not look()["ok"], "a budget keeps that one too"
    api.post("/lanes/tenant", {"cost_day": None}).expect(200)
    assert look()["ok"]
    api.post("/lanes/tenant", {"run_one": True}).expect_problem(409, "wrong_status")
    assert Task.objects.get(pk=spent.pk).status == "running"


def test_who_sees_one_lane_may_pause_it_and_raise_no_bound(flow: Workflow, db: None) -> None:
    _, text = make_token("own", [READ, OPERATE], created_by="cli:me", lanes=["mine"])
    api = Api(text)
    submit(flow, lane="mine")
    submit(flow, lane="theirs")
    assert [one["name"] for one in api.get("/lanes").expect(200)["items"]] == ["mine"]
    api.get("/lanes/theirs").expect_problem(404, "not_found")
    api.post("/lanes/theirs", {"paused": True}).expect_problem(404, "not_found")
    api.post("/lanes/mine", {"paused": True}).expect(200)
    api.post("/lanes/mine", {"weight": 9}).expect_problem(403, "not_allowed")


def test_the_command_says_and_sets_the_same(
    flow: Workflow, capsys: pytest.CaptureFixture[str]
) -> None:
    task = submit(flow, lane="a b")
    call_command("lane", "set", "a b", "--cap", "2", "--cost-day", "1", "--weight", "4")
    call_command("lane", "set", "a b", "--cap", "none")
    call_command("lane", "pause", "a b")
    call_command("lane", "list")
    said = capsys.readouterr().out.splitlines()
    assert said[0] == "a b  0 running, 1 queued, weight 4, cap 2"
    assert said[-1] == "a b  0 running, 1 queued, weight 4, its lane is paused"
    call_command("lane", "run-one", "a b")
    assert capsys.readouterr().out.strip() == str(task.pk)
