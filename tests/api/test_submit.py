"""POST /tasks: what is taken, what is refused, and by which name."""

from __future__ import annotations

import gzip
import json
from typing import Any

import pytest

from ledger.models import Task, Worker
from tests.api.conftest import Api

pytestmark = pytest.mark.both_databases

GOOD = {"workflow": "brief", "input": {"subject": "bees"}}


def test_a_submitted_task_is_shown_as_it_is_stored(api: Api) -> None:
    body = GOOD | {
        "workflow_version": "2",
        "title": "Über Bienen",
        "lane": "acme",
        "priority": 7,
        "tags": ["a", "b"],
        "limits": {"units": 5, "tokens": 100, "cost": "1.25", "wall": 60},
        "max_repairs": 1,
    }
    task = api.post("/tasks", body).expect(201)
    assert task["status"] == "queued"
    assert task["input"] == {"subject": "bees", "size": 3}
    assert task["step"] == {"index": 0, "name": "draft", "turn": 0}
    assert (task["title"], task["lane"], task["priority"]) == ("Über Bienen", "acme", 7)
    assert (task["tags"], task["total_steps"]) == (["a", "b"], 3)
    assert task["repairs"] == {"count": 0, "max": 1}
    assert task["limits"] == {
        "units": 5, "tokens": 100, "cost": "1.25", "wall": 60.0, "deadline_at": None,
    }  # fmt: skip
    assert task["claimable"] == {"ok": False, "why": "no worker is running"}
    assert task["submitted_by"].startswith("token:")
    assert task["created_at"].endswith("Z")
    assert api.get(f"/tasks/{task['id']}").expect(200) == task


def test_the_same_key_and_body_give_the_same_task(api: Api) -> None:
    first = api.post("/tasks", GOOD, Idempotency_Key="k1").expect(201)
    assert api.post("/tasks", GOOD, Idempotency_Key="k1").expect(200)["id"] == first["id"]
    other = GOOD | {"title": "another"}
    api.post("/tasks", other, Idempotency_Key="k1").expect_problem(409, "idempotency_conflict")
    assert api.post("/tasks", GOOD, Idempotency_Key="k2").expect(201)["id"] != first["id"]
    assert Task.objects.count() == 2


def test_a_workflow_that_only_a_worker_knows_is_taken(api: Api) -> None:
    from ledger import clock

    wanted = {"workflow": "far", "input": {"x": 1}}
    problem = api.post("/tasks", wanted).expect_problem(422, "unknown_workflow", "workflow")
    assert "brief" in problem["detail"]
    knows = [{"workflow": "far", "version": "7", "digest": "d" * 64, "steps": ["one", "two"]}]
    now = clock.read()
    Worker.objects.bulk_create(
        [Worker(owner="h:1:b", host="h", pid=1, started_at=now, seen_at=now, knows=knows)]
    )
    task = api.post("/tasks", wanted).expect(201)
    assert (task["workflow_version"], task["total_steps"]) == ("7", 2)
    assert task["step"]["name"] == "one"
    assert task["claimable"] == {"ok": True, "why": ""}
    assert Task.objects.get().definition_digest == "d" * 64
    api.post("/tasks", wanted | {"workflow_version": "8"}).expect_problem(
        422, "unknown_workflow", "workflow"
    )


@pytest.mark.case(40)
@pytest.mark.case(41)
@pytest.mark.case(43)
@pytest.mark.case(44)
@pytest.mark.parametrize(
    ("change", "status", "code", "field"),
    [
        ({"workflow": None}, 422, "invalid_input", "workflow"),
        ({"workflow": "nope"}, 422, "unknown_workflow", "workflow"),
        ({"workflow_version": "9"}, 422, "unknown_workflow", "workflow"),
        ({"input": None}, 422, "invalid_input", "input"),
        ({"input": []}, 422, "invalid_input", "input"),
        ({"input": {}}, 422, "invalid_input", "input.subject"),
        ({"input": {"subject": 3}}, 422, "invalid_input", "input.subject"),
        ({"input": {"subject": "x", "colour": 1}}, 422, "invalid_input", "input.colour"),
        ({"inptu": {}}, 422, "invalid_input", "inptu"),
        ({"priority": 2**63}, 422, "invalid_input", "priority"),
        ({"priority": "5"}, 422, "invalid_input", "priority"),
        ({"priority": True}, 422, "invalid_input", "priority"),
        ({"priority": 1.5}, 422, "invalid_input", "priority"),
        ({"lane": ""}, 422, "invalid_input", "lane"),
        ({"lane": "x" * 101}, 422, "invalid_input", "lane"),
        ({"title": "x" * 201}, 422, "invalid_input", "title"),
        ({"title": "a\nb"}, 422, "invalid_input", "title"),
        ({"tags": "a"}, 422, "invalid_input", "tags"),
        ({"tags": [1]}, 422, "invalid_input", "tags[0]"),
        ({"tags": ["x"] * 21}, 422, "invalid_input", "tags"),
        ({"max_repairs": -1}, 422, "invalid_input", "max_repairs"),
        ({"limits": {"unit": 1}}, 422, "invalid_input", "limits.unit"),
        ({"limits": {"units": -1}}, 422, "invalid_input", "limits.units"),
        ({"limits": {"cost": "a lot"}}, 422, "invalid_input", "limits.cost"),
        ({"limits": {"cost": 1.5}}, 422, "invalid_input", "limits.cost"),
        ({"limits": {"wall": 10**12}}, 422, "invalid_input", "limits.wall"),
        ({"limits": {"wall": "60"}}, 422, "invalid_input", "limits.wall"),
        ({"limits": {"wall": True}}, 422, "invalid_input", "limits.wall"),
        ({"limits": {"deadline_at": "2030-01-01T00:00:00"}}, 422, "invalid_input",
         "limits.deadline_at"),
        ({"not_before": "2030-01-01T00:00:00"}, 422, "invalid_input", "not_before"),
        ({"not_before": "soon"}, 422, "invalid_input", "not_before"),
        ({"not_before": 10**12}, 422, "invalid_input", "not_before"),
        ({"not_before": "0001-01-01T00:00:00+14:00"}, 422, "invalid_input", "not_before"),
        ({"not_before": "9999-12-31T23:59:59-14:00"}, 422, "invalid_input", "not_before"),
        ({"title": "a\x00b"}, 400, "unparsable_input", "title"),
        ({"tags": ["a\x00b"]}, 400, "unparsable_input", "tags[0]"),
        ({"input": {"subject": "a\x00b"}}, 400, "unparsable_input", "input.subject"),
        ({"input": {"subject": "\ud800"}}, 400, "unparsable_input", "input.subject"),
        ({"input": {"a\x00b": 1}}, 400, "unparsable_input", "input (a key)"),
        ({"input": {"subject": float("nan")}}, 400, "unparsable_input", "input.subject"),
        ({"input": {"deep": {"x": [float("-inf")]}}}, 400, "unparsable_input",
         "input.deep.x[0]"),
        ({"input": {"subject": "x" * 300_000}}, 413, "payload_too_large", "input"),
        ({"input": {"subject": "x" * 1_100_000}}, 413, "payload_too_large", "body"),
        ({"input": {"subject": "x" * 4_000_000}}, 413, "payload_too_large", "body"),
    ],
)  # fmt: skip
def test_a_bad_field_is_refused_by_name(
    api: Api, change: dict[str, Any], status: int, code: str, field: str
) -> None:
    body = {name: value for name, value in (GOOD | change).items() if value is not None}
    api.post("/tasks", body).expect_problem(status, code, field)
    assert not Task.objects.exists()


@pytest.mark.case(43)
@pytest.mark.parametrize(
    ("raw", "status", "field"),
    [
        (b"", 400, "body"),
        (b"hello", 400, "body"),
        (b"[]", 400, "body"),
        (b"3", 400, "body"),
        (b"null", 400, "body"),
        (b'"text"', 400, "body"),
        (json.dumps(GOOD).encode("utf-16"), 400, "body"),
        (json.dumps(GOOD).encode("utf-32"), 400, "body"),
        (b'{"workflow": "\xff"}', 400, "body"),
        (b'{"input": {"x": 1e400}}', 400, "input.x"),
        (b'{"input": {"x": Infinity}}', 400, "input.x"),
        (b'{"input": {"x": 1}, "input": {"x": 2}}', 400, "input"),
        (b'{"input": {"x": ' + b"9" * 5000 + b"}}", 400, "body"),
        (b'{"input": {"x": ' + b"9" * 1001 + b"}}", 400, "input.x"),
        (b'{"a":' + b"[" * 65 + b"]" * 65 + b"}", 400, "a" + "[0]" * 64),
        (b"[" * 20_000 + b"]" * 20_000, 400, "body"),
        (b'{"input":' * 20_000 + b"1" + b"}" * 20_000, 400, "body"),
        (b"[" * 1_000_000, 400, "body"),
        (b'{"workflow": "brief"', 400, "body"),
        (gzip.compress(json.dumps(GOOD).encode()), 400, "body"),
    ],
)  # fmt: skip
def test_a_body_that_is_no_plain_json_object_is_refused(
    api: Api, raw: bytes, status: int, field: str
) -> None:
    problem = api.post("/tasks", raw).expect(status)
    assert problem["code"] == "unparsable_input"
    assert problem["field"] == field[:100]


@pytest.mark.case(43)
def test_a_compressed_body_and_a_form_are_refused(api: Api) -> None:
    raw = gzip.compress(json.dumps(GOOD).encode())
    api.post("/tasks", raw, Content_Encoding="gzip").expect_problem(
        415, "unsupported_media_type", "body"
    )
    form = b"--x\r\nContent-Disposition: form-data; name=a\r\n\r\n1\r\n--x--\r\n"
    answer = api.post("/tasks", form, Content_Type="multipart/form-data; boundary=x")
    assert answer.expect(400)["field"] == "body"


def test_a_byte_order_mark_and_a_forms_content_type_do_no_harm(api: Api) -> None:
    raw = b"\xef\xbb\xbf" + json.dumps(GOOD).encode()
    api.post("/tasks", raw, Content_Type="application/x-www-form-urlencoded").expect(201)


@pytest.mark.case(43)
@pytest.mark.case(44)
def test_large_whole_numbers_and_many_keys_round_trip(api: Api, workflow: Any) -> None:
    from ledger import registry
    from ledger.workflows import Workflow

    free = Workflow("free")
    free.step(lambda ctx: None, name="only")
    sent = {"big": 2**53 + 1, "bigger": 10**30, "tiny": 1e-300, "text": "日本 😀 \u2028"}
    with registry.registered(free):
        task = api.post("/tasks", {"workflow": "free", "input": sent}).expect(201)
        many = {f"k{n}": n for n in range(15_000)}
        api.post("/tasks", {"workflow": "free", "input": many}).expect(201)
        wide = {f"k{n}": n for n in range(100_000)}
        answer = api.post("/tasks", {"workflow": "free", "input": wide})
    assert answer.status == 413
    assert api.get(f"/tasks/{task['id']}").expect(200)["input"] == sent


@pytest.mark.parametrize("key", ["", "x" * 201, "a\tb"])
def test_a_bad_idempotency_key_is_refused_by_name(api: Api, key: str) -> None:
    api.post("/tasks", GOOD, Idempotency_Key=key).expect_problem(
        422, "invalid_input", "Idempotency-Key"
    )


def test_a_task_for_later_waits(api: Api) -> None:
    later = GOOD | {"not_before": "2030-01-01T02:00:00+02:00"}
    task = api.post("/tasks", later).expect(201)
    assert (task["status"], task["status_reason"]) == ("scheduled", "not_before")
    assert task["available_at"] == "2030-01-01T00:00:00Z"
    assert task["claimable"] == {"ok": False, "why": "starts later"}


@pytest.mark.parametrize("path", ["", "/{id}/fork", "/{id}/signals/go"])
@pytest.mark.parametrize("key", ["", "x" * 201, "a\x7fb", "a\xa0b"])
def test_a_bad_key_is_refused_by_the_name_of_its_header(
    api: Api, task: dict[str, Any], path: str, key: str
) -> None:
    bodies = {"": {"workflow": "brief", "input": {"subject": "x"}}, "/{id}/fork": {"from_step": 0}}
    answer = api.post(f"/tasks{path.format(**task)}", bodies.get(path, {}), Idempotency_Key=key)
    answer.expect_problem(422, "invalid_input", "Idempotency-Key")
