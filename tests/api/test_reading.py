"""GET: one task, lists and their cursors, long-poll, outputs, events, the fleet."""

from __future__ import annotations

import threading
import uuid
from collections.abc import Callable
from typing import Any

import pytest
from django.db import connection
from django.test import RequestFactory

from ledger import clock, queries, sql, states
from ledger.api import longpoll
from ledger.models import Task, Worker
from ledger.sql import Unit
from ledger.transitions import operators
from ledger.workflows import registered
from tests.api.conftest import Api
from tests.factories import claim, make_workflow, spawn
from tests.factories import submit as submit_one

pytestmark = pytest.mark.both_databases

OWNER = "host:1:boot"
GROUP = ("default", "brief", "2")


def submit(api: Api, **more: Any) -> dict[str, Any]:
    body = {"workflow": "brief", "input": {"subject": "bees"}} | more
    return dict(api.post("/tasks", body).expect(201))


def run_unit(task: dict[str, Any]) -> None:
    """Claim the task and store the output of its first unit."""
    held = sql.claim_task(OWNER, [GROUP], 60.0)
    assert held is not None
    assert str(held.task_id) == task["id"]
    unit = Unit('{"draft":"text"}', '{"draft":"text"}', 1, "review", 0, log_tail="wrote it")
    assert sql.checkpoint_unit(held, unit, lease_seconds=60.0, groups=None) is not None


@pytest.mark.parametrize(
    "key",
    [
        "99999999999999999999",
        "0",
        "-1",
        "nope",
        "%00",
        "..",
        str(uuid.uuid4()),
        "x" * 5_000,
        "%F0%9F%98%80",
        "00000000-0000-0000-0000-000000000000",
    ],
)
def test_what_is_not_there_is_404(api: Api, key: str) -> None:
    for path in (f"/tasks/{key}", f"/tasks/{key}/events", f"/approvals/{key}", f"/artifacts/{key}"):
        problem = api.get(path).expect(404)
        assert problem["code"] in {"task_not_found", "not_found"}
    api.post(f"/tasks/{key}/cancel", {}).expect(404)
    api.get(f"/tasks/{key}/").expect_problem(404, "not_found")


def test_unknown_paths_and_methods_are_problems(api: Api) -> None:
    api.get("/nothing").expect_problem(404, "not_found")
    api.get("").expect_problem(404, "not_found")
    api.post("/tasks/nothing/of/it", {}).expect_problem(404, "not_found")
    answer = api.post("/workers", {})
    answer.expect_problem(405, "method_not_allowed")
    assert answer.headers["Allow"] == "GET"


def test_a_list_is_walked_once_through_its_cursors(api: Api) -> None:
    sent = [submit(api, title=str(n))["id"] for n in range(7)]
    # Rows of one instant are told apart by their ids.
    Task.objects.update(created_at=clock.read())
    seen: list[str] = []
    cursor = ""
    while True:
        page = api.get("/tasks", limit=3, cursor=cursor).expect(200)
        assert len(page["items"]) <= 3
        seen += [item["id"] for item in page["items"]]
        cursor = page["next_cursor"]
        if cursor is None:
            break
        assert cursor == cursor.strip("/?&#%+= ")
    assert seen == sent[::-1]
    assert not {"input", "progress", "result"} & page["items"][0].keys()


@pytest.mark.parametrize(
    ("query", "status", "field"),
    [
        ({"limit": "-1"}, 422, "limit"),
        ({"limit": "0"}, 422, "limit"),
        ({"limit": "x"}, 422, "limit"),
        ({"limit": "1e9"}, 422, "limit"),
        ({"limit": ""}, 422, "limit"),
        ({"cursor": "zzz"}, 422, "cursor"),
        ({"cursor": str(uuid.uuid4())}, 422, "cursor"),
        ({"status": "succeeded"}, 422, "status"),
        ({"stalled": "perhaps"}, 422, "stalled"),
        ({"started": "2h"}, 422, "started"),
        ({"not_parent": "x"}, 422, "not_parent"),
        ({"q": "a\x00b"}, 400, "q"),
        ({"tag": "a\x00b"}, 400, "tag"),
    ],
)
def test_a_bad_filter_is_refused_by_name(
    api: Api, query: dict[str, str], status: int, field: str
) -> None:
    assert api.get("/tasks", **query).expect(status)["field"] == field


def test_a_limit_is_clamped(api: Api) -> None:
    submit(api)
    for limit in ("500", "501", "9" * 30):
        assert len(api.get("/tasks", limit=limit).expect(200)["items"]) == 1


def test_filters_narrow_the_list(api: Api) -> None:
    first = submit(api, title="Über bees", lane="acme", tags=["a", 'q"x'])
    second = submit(api, title="wasps", tags=["b"])
    operators.cancel_task(second["id"], actor=operators.Actor("cli", "x"))

    def ids(**query: Any) -> list[str]:
        return [item["id"] for item in api.get("/tasks", **query).expect(200)["items"]]

    assert ids(status="queued") == [first["id"]]
    assert ids(status=["queued", "cancelled"]) == [second["id"], first["id"]]
    assert ids(status="queued,cancelled") == [second["id"], first["id"]]
    assert ids(lane="acme") == ids(tag="a") == ids(tag='q"x') == ids(q="ber BEES") == [first["id"]]
    assert ids(q=first["id"]) == [first["id"]]
    assert ids(workflow="brief", tag="b") == [second["id"]]
    assert ids(lane=["acme", "default"]) == ids(not_tag="c") == [second["id"], first["id"]]
    assert ids(not_lane="acme") == ids(not_status="unfinished,failed") == [second["id"]]
    assert ids(finished="<1h") == ids(created="<1h", not_tag=["a", "x"]) == [second["id"]]
    assert ids(worker="w") == ids(error="x") == ids(owner="cli:no", not_error="x") == []
    assert ids(workflow="other") == ids(tag="c") == ids(q="100%") == ids(stalled="1") == []


@pytest.mark.case(11)
def test_a_silent_running_task_is_stalled(api: Api, task: dict[str, Any]) -> None:
    held = sql.claim_task(OWNER, [GROUP], 60.0)
    assert held is not None
    assert api.get("/tasks", stalled=True).expect(200)["items"] == []
    Task.objects.update(stall_after=60.0, last_progress_at=clock.now(-61.0))
    shown = api.get("/tasks", stalled=True).expect(200)["items"]
    assert [(item["id"], item["stalled"]) for item in shown] == [(task["id"], True)]
    assert shown[0]["lease"]["owner"] == OWNER
    assert shown[0]["claimable"] == {"ok": False, "why": "a worker holds it"}


def test_outputs_and_events_tell_one_story_in_order(api: Api, task: dict[str, Any]) -> None:
    run_unit(task)
    api.post(f"/tasks/{task['id']}/repair", {"to_step": "draft", "note": "shorter"}).expect(200)
    run_unit(task)
    path = f"/tasks/{task['id']}"

    live = api.get(f"{path}/outputs").expect(200)["items"]
    assert [(one["round"], one["superseded"]) for one in live] == [(1, False)]
    every = api.get(f"{path}/outputs", all=1).expect(200)["items"]
    assert [(one["round"], one["superseded_in_round"]) for one in every] == [(0, 1), (1, None)]
    assert every[0]["step"] == {"index": 0, "name": "draft"}
    assert every[0]["output"] == {"draft": "text"}

    events = api.get(f"{path}/events").expect(200)["items"]
    kinds = [event["kind"] for event in events]
    assert kinds == ["submitted", "checkpoint", "repaired", "checkpoint"]
    assert [event["seq"] for event in events] == sorted(event["seq"] for event in events)
    assert events[1]["actor"] == {"kind": "worker", "id": OWNER}
    assert events[1]["data"]["log_tail"] == "wrote it"
    assert events[0]["actor"]["kind"] == "token"

    after = api.get(f"{path}/events", after=events[1]["seq"]).expect(200)["items"]
    assert after == events[2:]
    page = api.get(f"{path}/events", limit=3).expect(200)
    assert page["items"] == events[:3]
    rest = api.get(f"{path}/events", limit=3, cursor=page["next_cursor"]).expect(200)
    assert (rest["items"], rest["next_cursor"]) == (events[3:], None)
    assert api.get(f"{path}/events", after="x").expect(422)["field"] == "after"
    assert api.get(f"{path}/events", after="9" * 19).expect(200)["items"] == []
    shown = api.get(path).expect(200)
    assert shown["repairs"] == {"count": 0, "max": 3}
    assert (shown["round"], shown["progress"]) == (1, {"draft": "text"})


def test_the_fleet_is_listed(api: Api) -> None:
    now = clock.read()
    knows = [{"workflow": "brief", "version": "2", "digest": "", "steps": ["draft"]}]
    make = {"host": "h", "pid": 1, "started_at": now, "knows": knows}
    Worker.objects.bulk_create(
        [
            Worker(owner="live", seen_at=now, **make),
            Worker(owner="gone", seen_at=clock.now(-600.0), **make),
            Worker(owner="ended", seen_at=now, stopped_at=now, **make),
        ]
    )
    workers = api.get("/workers").expect(200)["items"]
    assert {one["owner"]: one["live"] for one in workers} == {
        "live": True, "gone": False, "ended": False,
    }  # fmt: skip
    found = api.get("/workflows").expect(200)["items"]
    shown = next(one for one in found if one["name"] == "brief")
    assert (shown["workers"], shown["steps"]) == (1, ["draft", "review", "publish"])
    assert shown["input_schema"]["required"] == ["subject"]


def test_tasks_are_counted_by_status_up_to_a_cap(api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    for n in range(3):
        submit(api, title=str(n))
    operators.cancel_task(submit(api)["id"], actor=operators.Actor("cli", "x"))
    counts = queries.count_by_status()
    assert set(counts) == set(states.STATUSES)
    assert {name: count for name, count in counts.items() if count} == {
        "queued": 3, "cancelled": 1,
    }  # fmt: skip
    monkeypatch.setattr("ledger.queries.tasks.COUNT_CAP", 2)
    assert queries.count_by_status()["queued"] == 2


def wait(task_id: str, revision: int, seconds: float, *, threads: bool = True) -> None:
    request = RequestFactory().get("/", **{"wsgi.multithread": threads})
    longpoll.wait_for_change(request, uuid.UUID(task_id), revision, seconds)


@pytest.mark.django_db(transaction=True)
def test_a_long_poll_ends_when_the_task_changes(
    workflow: Any, login: Callable[..., Api], transactional_db: None
) -> None:
    api = login()
    task = submit(api)
    ended = threading.Event()

    def poll() -> None:
        try:
            wait(task["id"], task["revision"], 30.0)
            ended.set()
        finally:
            connection.close()

    thread = threading.Thread(target=poll)
    thread.start()
    assert not ended.wait(0.2)
    api.post(f"/tasks/{task['id']}/pause", {}).expect(200)
    assert ended.wait(20.0)
    thread.join()
    changed = api.get(f"/tasks/{task['id']}", wait=30, revision=task["revision"]).expect(200)
    assert changed["revision"] > task["revision"]


def test_a_long_poll_is_bounded_and_takes_no_seat_that_others_need(
    api: Api, task: dict[str, Any]
) -> None:
    wait(task["id"], task["revision"], 0.05)
    wait(task["id"], task["revision"], 30.0, threads=False)
    longpoll.set_threads(2)
    try:
        assert longpoll._seats.acquire(blocking=False)
        wait(task["id"], task["revision"], 30.0)
    finally:
        longpoll.set_threads(2 * longpoll.UNKNOWN_SERVER)
    for bad in ("-1", "nan", "soon"):
        assert api.get(f"/tasks/{task['id']}", wait=bad).expect(422)["field"] == "wait"
    api.get(f"/tasks/{task['id']}", wait="0", revision=10**30).expect(200)


@pytest.mark.case(44)
def test_lists_read_no_large_columns_and_few_queries(
    api: Api, django_assert_max_num_queries: Any
) -> None:
    for n in range(10):
        submit(api, title=str(n))
    with django_assert_max_num_queries(5) as seen:
        assert len(api.get("/tasks").expect(200)["items"]) == 10
    assert not any('"progress"' in query["sql"] for query in seen.captured_queries)


@pytest.mark.django_db
def test_a_parent_says_what_it_waits_for_and_lists_its_children(api: Api) -> None:
    flow = make_workflow()
    with registered(flow):
        task = submit_one(flow)
        spawn(claim(flow), flow, 2)
        shown = api.get(f"/tasks/{task.pk}").expect(200)
        assert (shown["status_reason"], shown["waiting_for"]) == (
            "children", {"children": 2, "open": 2},
        )  # fmt: skip
        children = api.get("/tasks", parent=str(task.pk)).expect(200)["items"]
        assert {one["parent"] for one in children} == {str(task.pk)}
        assert len(children) == 2
