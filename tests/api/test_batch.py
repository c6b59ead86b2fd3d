"""POST /tasks/batch: all or none, and what is wrong is named; GET /tasks/{id}/spend, /stalled."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import pytest
from django.db import transaction

from ledger import client, clock, limits, sql
from ledger.errors import IdempotencyConflict, InvalidInput, LimitReached
from ledger.models import Event, Task
from ledger.transitions.submit import MAX_BATCH
from ledger.workflows import Workflow
from tests.api.conftest import Api
from tests.ledger.threads import Crew

pytestmark = pytest.mark.both_databases

OWNER = "host:1:boot"
GROUP = ("default", "brief", "2")


def make_item(subject: str = "bees", **more: Any) -> dict[str, Any]:
    """A task of a batch."""
    return {"workflow": "brief", "input": {"subject": subject}, **more}


def test_a_batch_is_stored_whole_and_in_order(api: Api) -> None:
    items = [make_item(str(n), title=f"t{n}", priority=n, lane=f"l{n % 2}") for n in range(5)]
    page = api.post("/tasks/batch", {"items": items}).expect(201)
    assert page["next_cursor"] is None
    assert [(one["title"], one["priority"], one["lane"]) for one in page["items"]] == [
        (f"t{n}", n, f"l{n % 2}") for n in range(5)
    ]
    assert not {"input", "progress", "result"} & page["items"][0].keys()
    stored = [api.get(f"/tasks/{one['id']}").expect(200)["input"] for one in page["items"]]
    assert [one["subject"] for one in stored] == list("01234")
    assert Event.objects.filter(kind="submitted").count() == 5


@pytest.mark.parametrize(
    ("bad", "status", "code", "field"),
    [
        (make_item(priority=101), 422, "invalid_input", "priority"),
        (make_item(priority="5"), 422, "invalid_input", "priority"),
        (make_item(tags=["a", 1]), 422, "invalid_input", "tags[1]"),
        (make_item(lane=""), 422, "invalid_input", "lane"),
        (make_item(key=""), 422, "invalid_input", "key"),
        (make_item(title="a\x00b"), 400, "unparsable_input", "title"),
        (make_item("x" * 300_000), 413, "payload_too_large", "input"),
        (make_item(limits={"cost": "a lot"}), 422, "invalid_input", "limits.cost"),
        (make_item(colour="red"), 422, "invalid_input", "colour"),
        ({"workflow": "brief", "input": {}}, 422, "invalid_input", "input.subject"),
        ({"workflow": "brief"}, 422, "invalid_input", "input"),
        ({"workflow": "nope", "input": {}}, 422, "unknown_workflow", "workflow"),
        (make_item(workflow_version="9"), 422, "unknown_workflow", "workflow"),
        (make_item("wasps", key="taken"), 409, "idempotency_conflict", "key"),
        (make_item("wasps", key="new"), 409, "idempotency_conflict", "key"),
    ],
)
def test_one_bad_item_is_named_and_nothing_is_stored(
    api: Api, bad: dict[str, Any], status: int, code: str, field: str
) -> None:
    api.post("/tasks", make_item(), Idempotency_Key="taken").expect(201)
    items = [make_item(key="new"), *(make_item() for _ in range(6)), bad]
    problem = api.post("/tasks/batch", {"items": items}).expect_problem(
        status, code, f"items.7.{field}"
    )
    assert f"items.7.{field}" in problem["detail"]
    assert Task.objects.count() == Event.objects.count() == 1


def test_a_batch_has_one_to_a_thousand_items(api: Api, workflow: Workflow) -> None:
    for items in ([], [make_item()] * (MAX_BATCH + 1), "x", None):
        api.post("/tasks/batch", {"items": items}).expect_problem(422, "invalid_input", "items")
        if items is not None and items != "x":
            with pytest.raises(InvalidInput, match="items: takes 1 to 1,000"):
                client.submit_many(items)
    page = api.post("/tasks/batch", {"items": [make_item()] * MAX_BATCH}).expect(201)
    assert len({one["id"] for one in page["items"]}) == Task.objects.count() == MAX_BATCH


def test_each_item_has_its_own_key(api: Api) -> None:
    items = [make_item("a", key="a"), make_item("b", key="b"), make_item("a", key="a")]
    first = api.post("/tasks/batch", {"items": items}).expect(201)["items"]
    assert first[0]["id"] == first[2]["id"] != first[1]["id"]
    again = api.post("/tasks/batch", {"items": items}).expect(200)["items"]
    assert again == first
    alone = api.post("/tasks", make_item("b"), Idempotency_Key="b").expect(200)
    assert alone["id"] == first[1]["id"]
    more = api.post("/tasks/batch", {"items": [*items, make_item("c", key="c")]}).expect(201)
    assert more["items"][:3] == first
    assert Task.objects.count() == 3


@pytest.mark.django_db(transaction=True)
def test_the_same_batch_sent_twice_at_once_is_stored_once(
    transactional_db: None, login: Callable[..., Api], workflow: Workflow
) -> None:
    api = login()
    items = [make_item(str(n), key=f"k{n}") for n in range(20)]
    answers = send_at_once(api, items, items, items)
    assert sorted(answer.status for answer in answers) == [200, 200, 201]
    assert len({tuple(one["id"] for one in answer.json["items"]) for answer in answers}) == 1
    assert Task.objects.count() == 20


def send_at_once(api: Api, *batches: list[dict[str, Any]]) -> list[Any]:
    """The answers to batches that are sent in the same instant."""
    crew = Crew()
    answers = crew(*[
        functools.partial(api.post, "/tasks/batch", {"items": items}) for items in batches
    ])  # fmt: skip
    crew.close()
    return answers


@pytest.mark.django_db(transaction=True)
def test_batches_with_the_same_keys_in_another_order_never_wait_in_a_circle(
    transactional_db: None, login: Callable[..., Api], workflow: Workflow
) -> None:
    items = [make_item(str(n), key=f"k{n}") for n in range(60)]
    answers = send_at_once(login(), items, items[::-1])
    assert sorted(answer.status for answer in answers) == [200, 201]
    one, other = ([task["id"] for task in answer.json["items"]] for answer in answers)
    assert one == other[::-1]
    assert Task.objects.count() == 60


def test_a_batch_is_worked_off_in_its_own_order_whatever_its_keys(api: Api) -> None:
    items = [make_item(title=str(n), key=f"k{9 - n}") for n in range(5)] + [make_item(title="5")]
    page = api.post("/tasks/batch", {"items": items}).expect(201)
    ranked = Task.objects.order_by("rank", "id").values_list("title", flat=True)
    assert list(ranked) == list("012345")
    assert [one["id"] for one in page["items"]] == sorted(one["id"] for one in page["items"])


def test_a_batch_of_the_client_shares_the_callers_transaction(db: None, workflow: Workflow) -> None:
    items = [{"workflow": workflow, "input": {"subject": "x"}, "limits": {"units": 7}},
             {"workflow": "brief", "input": {"subject": "y"}, "key": "y"}]  # fmt: skip
    with transaction.atomic():
        client.submit_many(items)
        transaction.set_rollback(True)
    assert not Task.objects.exists()
    keys = client.submit_many(items)
    assert [client.get(key)["limits"]["units"] for key in keys] == [7, 10_000]
    with transaction.atomic():
        with pytest.raises(IdempotencyConflict, match=r"^items\.1\.key: "):
            client.submit_many([items[0], {**items[1], "input": {"subject": "z"}}])
        client.submit(workflow, {"subject": "the transaction goes on"})
    assert Task.objects.count() == 3


def test_every_amount_is_listed_in_order(api: Api, task: dict[str, Any]) -> None:
    held = sql.claim_task(OWNER, [GROUP], 60.0)
    assert held is not None
    for n in range(3):
        limits.record_spend(held, key=f"k{n}", tokens_in=n, tokens_out=1, cost="0.1", note="call")
    Task.objects.update(fence=99, limit_tokens=1)
    with pytest.raises(LimitReached):
        limits.record_spend(held, key="late", tokens_in=5)
    path = f"/tasks/{task['id']}/spend"
    first = api.get(path, limit=3).expect(200)
    rest = api.get(path, cursor=first["next_cursor"]).expect(200)
    assert rest["next_cursor"] is None
    every = first["items"] + rest["items"]
    assert [one["key"] for one in every] == ["k0", "k1", "k2", "late"]
    assert [one["stale"] for one in every] == [False, False, False, True]
    assert every[2] | {"seq": 0, "at": ""} == {
        "seq": 0, "at": "", "key": "k2", "step": "draft", "turn": 0, "fence": 1, "tokens_in": 2,
        "tokens_out": 1, "cost": "0.10", "note": "call", "stale": False,
    }  # fmt: skip
    assert [one["seq"] for one in every] == sorted(one["seq"] for one in every)
    api.get(path, cursor="x").expect_problem(422, "invalid_input", "cursor")
    api.get("/tasks/00000000-0000-0000-0000-000000000000/spend").expect(404)


def test_the_longest_silent_stalled_task_comes_first(api: Api) -> None:
    for n in range(3):
        api.post("/tasks", make_item(str(n), title=str(n))).expect(201)
        assert sql.claim_task(OWNER, [GROUP], 60.0) is not None
    for title, silent in (("0", 700.0), ("1", 900.0), ("2", 500.0)):
        Task.objects.filter(title=title).update(last_progress_at=clock.now(-silent))
    shown = api.get("/stalled").expect(200)
    assert [one["title"] for one in shown["items"]] == ["1", "0"]
    assert all(one["stalled"] for one in shown["items"])
    assert len(api.get("/stalled", limit=1).expect(200)["items"]) == 1
    api.get("/stalled", limit=0).expect_problem(422, "invalid_input", "limit")
