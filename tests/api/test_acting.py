"""POST on a task and on an approval: every action, by whom, and what a refusal says."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from uuid import UUID

import pytest

from ledger import sql
from ledger.models import Approval, Signal, Task
from ledger.sql import Unit
from ledger.transitions.asking import ask_approval
from ledger.transitions.deleting import DEMO
from ledger.transitions.submit import submit_task
from ledger.workflows import AskApproval, Workflow
from tests.api.conftest import Api
from tests.factories import make_effect

pytestmark = pytest.mark.both_databases

OWNER = "host:1:boot"
GROUP = ("default", "brief", "2")


@pytest.fixture
def approval(api: Api, task: dict[str, Any], workflow: Workflow) -> dict[str, Any]:
    """The task waits for an answer at its step `review`."""
    held = sql.claim_task(OWNER, [GROUP], 60.0)
    assert held is not None
    unit = Unit('{"draft":"text"}', '{"draft":"text"}', 1, "review", 0)
    settled = sql.checkpoint_unit(held, unit, lease_seconds=60.0, groups=None)
    assert settled is not None
    assert settled.kept_fence is not None
    assert settled.kept_at is not None
    held.fence, held.started_at = settled.kept_fence, settled.kept_at
    held.step_index, held.step_name = 1, "review"
    ask = AskApproval("Publish it?", body="Read it.", payload={"n": 1}, send_back_to="draft")
    assert ask_approval(held, Unit("{}", None, 1, "review", 0), ask, workflow) is not None
    page = api.get("/approvals", status="open").expect(200)
    assert len(page["items"]) == 1
    return dict(page["items"][0])


def test_pause_resume_cancel(api: Api, task: dict[str, Any]) -> None:
    path = f"/tasks/{task['id']}"
    paused = api.post(f"{path}/pause", {"reason": "lunch"}).expect(200)
    assert (paused["status"], paused["status_reason"]) == ("paused", "paused_by_operator")
    assert api.post(f"{path}/resume").expect(200)["status"] == "queued"
    assert api.post(f"{path}/cancel").expect(200)["status"] == "cancelled"
    assert api.post(f"{path}/cancel", {}).expect(200)["status"] == "cancelled"
    for action, body in (
        ("retry", {}), ("resume", {}), ("pause", {}), ("repair", {"to_step": 0}),
        ("limits", {"units": 9}),
    ):  # fmt: skip
        problem = api.post(f"{path}/{action}", body).expect_problem(409, "wrong_status")
        assert "cancelled" in problem["detail"]
    events = api.get(f"{path}/events").expect(200)["items"]
    assert [event["kind"] for event in events] == ["submitted", "paused", "resumed", "cancelled"]
    assert events[1]["data"]["reason"] == "lunch"


def test_stop_takes_a_running_unit_from_its_worker(api: Api, task: dict[str, Any]) -> None:
    path = f"/tasks/{task['id']}"
    assert sql.claim_task(OWNER, [GROUP], 60.0) is not None
    assert api.post(f"{path}/stop").expect(409)["code"] == "wrong_status"
    asked = api.post(f"{path}/cancel").expect(200)
    assert (asked["status"], asked["cancel_requested"]) == ("running", True)
    assert api.post(f"{path}/stop").expect(200)["status"] == "cancelled"


def test_an_old_revision_is_refused(api: Api, task: dict[str, Any]) -> None:
    path = f"/tasks/{task['id']}"
    api.post(f"{path}/pause", {"revision": task["revision"]}).expect(200)
    api.post(f"{path}/resume", {"revision": task["revision"]}).expect_problem(409, "stale_revision")
    api.post(f"{path}/resume", {"revision": 2**70}).expect_problem(409, "stale_revision")


def test_limits_are_changed_directly_or_as_an_object(api: Api, task: dict[str, Any]) -> None:
    path = f"/tasks/{task['id']}/limits"
    assert api.post(path, {"units": 9, "reason": "more"}).expect(200)["limits"]["units"] == 9
    changed = api.post(path, {"limits": {"cost": "7.5", "wall": 60}}).expect(200)
    assert (changed["limits"]["cost"], changed["limits"]["wall"]) == ("7.50", 60.0)
    api.post(path, {}).expect_problem(422, "invalid_input", "limits")
    api.post(path, {"tokens": "many"}).expect_problem(422, "invalid_input", "tokens")
    api.post(path, {"tokens": 2**60}).expect_problem(422, "invalid_input", "limits.tokens")


@pytest.mark.parametrize(
    ("body", "status", "field"),
    [
        ({}, 422, "to_step"),
        ({"to_step": "nowhere"}, 422, "step"),
        ({"to_step": 2}, 422, "to_step"),
        ({"to_step": 2**70}, 422, "step"),
        ({"to_step": "draft", "note": "a\x00b"}, 400, "note"),
        ({"to_step": "draft", "note": "x" * 5_000}, 422, "note"),
        ({"to_step": "draft", "notes": "x"}, 422, "notes"),
        ({"to_step": "draft", "revision": "1"}, 422, "revision"),
    ],
)
def test_a_bad_repair_is_refused_by_name(
    api: Api, task: dict[str, Any], body: dict[str, Any], status: int, field: str
) -> None:
    problem = api.post(f"/tasks/{task['id']}/repair", body).expect(status)
    assert problem["field"].startswith(field)


def test_an_output_is_edited(api: Api, approval: dict[str, Any], task: dict[str, Any]) -> None:
    path = f"/tasks/{task['id']}/outputs"
    draft, review = api.get(path).expect(200)["items"]
    body = {"output": {"draft": "mine"}, "reason": "shorter"}
    asked = api.post(f"{path}/{review['seq']}/edit", body).expect_problem(409, "not_editable")
    assert "restart from review" in asked["detail"]
    for change, status, field in (
        ({"output": None}, 422, "output"), ({"output": []}, 422, "output"),
        ({"reason": ""}, 422, "reason"), ({"output": {"x": float("nan")}}, 400, "output.x"),
        ({"output": {"x": "y" * 70_000}}, 413, "output"), ({"note": ""}, 422, "note"),
    ):  # fmt: skip
        problem = api.post(f"{path}/{draft['seq']}/edit", body | change).expect(status)
        assert problem["field"] == field
    for seq in (1, 99, 2**70):
        api.post(f"{path}/{seq}/edit", body).expect_problem(404, "not_found")
    edited = api.post(f"{path}/{draft['seq']}/edit", body).expect(200)
    assert (edited["status"], edited["step"]["name"]) == ("queued", "review")
    assert (edited["progress"], edited["round"]) == ({"draft": "mine"}, 1)
    (live,) = api.get(path).expect(200)["items"]
    assert live["edited_by"].startswith("token:")
    api.post(f"{path}/{draft['seq']}/edit", body).expect_problem(409, "not_editable")
    api.post(f"/tasks/{task['id']}/cancel").expect(200)
    api.post(f"{path}/{live['seq']}/edit", body).expect_problem(409, "wrong_status")
    assert Approval.objects.get().status == "void"


def test_labels_and_priority_are_changed(api: Api, task: dict[str, Any]) -> None:
    path = f"/tasks/{task['id']}/change"
    changed = api.post(path, {"priority": 9, "tags": ["a"], "reason": "urgent"}).expect(200)
    assert (changed["priority"], changed["tags"], changed["lane"]) == (9, ["a"], "default")
    assert api.get("/tasks", tag="a").expect(200)["items"][0]["id"] == task["id"]
    for body, field in (
        ({}, "changes"), ({"priority": "9"}, "priority"), ({"priority": 101}, "priority"),
        ({"lane": ""}, "lane"), ({"tags": "a"}, "tags"), ({"status": "dead"}, "status"),
    ):  # fmt: skip
        api.post(path, body).expect_problem(422, "invalid_input", field)
    api.post(path, {"title": "x", "revision": 1}).expect_problem(409, "stale_revision")


def test_a_copy_is_a_task_of_its_own(
    api: Api, login: Callable[..., Api], approval: dict[str, Any], task: dict[str, Any]
) -> None:
    path = f"/tasks/{task['id']}/fork"
    body = {"from_step": "review", "reason": "once more"}
    copy = api.post(path, body, Idempotency_Key="k").expect(201)
    assert api.post(path, body, Idempotency_Key="k").expect(200) == copy
    api.post(path, body | {"from_step": 0}, Idempotency_Key="k").expect_problem(
        409, "idempotency_conflict"
    )
    assert (copy["copied_from"], copy["status"]) == (task["id"], "queued")
    assert (copy["step"]["name"], copy["progress"]) == ("review", {"draft": "text"})
    outputs = api.get(f"/tasks/{copy['id']}/outputs").expect(200)["items"]
    assert [(one["step"]["name"], one["fence"]) for one in outputs] == [("draft", 0)]
    original = api.get(f"/tasks/{task['id']}/outputs").expect(200)["items"]
    assert outputs[0]["copied_from"] == {"task": task["id"], "seq": original[0]["seq"]}
    assert original[0]["copied_from"] is None
    events = api.get(f"/tasks/{task['id']}/events").expect(200)["items"]
    assert events[-1]["data"] == {
        "copied_to": copy["id"], "from_step": "review", "outputs": 1, "reason": "once more",
    }  # fmt: skip
    cancelled = api.post(f"/tasks/{task['id']}/cancel").expect(200)
    new = {"from_step": 0, "input": {"subject": "wasps"}, "revision": cancelled["revision"]}
    again = api.post(path, new).expect(201)
    assert (again["input"], again["progress"]) == ({"subject": "wasps", "size": 3}, {})
    api.post(path, new).expect_problem(409, "stale_revision")
    for change, status, field in (
        ({"from_step": "publish"}, 422, "from_step"), ({"from_step": "x"}, 422, "step"),
        ({"from_step": None}, 422, "from_step"), ({"input": {}}, 422, "input.subject"),
        ({"input": [1]}, 422, "input"), ({"workflow_version": "9"}, 422, "workflow"),
        ({"colour": 1}, 422, "colour"), ({"input": {"subject": "a\x00"}}, 400, "input.subject"),
    ):  # fmt: skip
        problem = api.post(path, {"from_step": 0} | change).expect(status)
        assert problem["field"].startswith(field)
    assert Task.objects.count() == 3


def test_an_approval_is_read_and_answered(
    api: Api, login: Callable[..., Api], approval: dict[str, Any], task: dict[str, Any]
) -> None:
    path = f"/approvals/{approval['id']}"
    assert api.get(path).expect(200) == approval
    assert (approval["task"], approval["step"]) == (task["id"], "review")
    assert approval["decisions"] == ["approve", "reject", "send_back"]
    assert (
        api.get(f"/tasks/{task['id']}").expect(200)["claimable"]["why"] == "waits for an approval"
    )

    good = {"decision": "approve", "digest": approval["digest"], "comment": "fine"}
    problem = api.post(f"{path}/answer", good).expect_problem(403, "not_allowed")
    assert "submitted" in problem["detail"]
    other = login()
    other.post(f"{path}/answer", good | {"digest": "0" * 64}).expect_problem(409, "digest_mismatch")
    for change, status, field in (
        ({"decision": "yes"}, 422, "decision"),
        ({"digest": None}, 422, "digest"),
        ({"comment": "a\x00b"}, 400, "comment"),
        ({"comment": "x" * 20_000}, 422, "comment"),
        ({"values": {"x": float("nan")}}, 400, "values.x"),
        ({"values": [1]}, 422, "values"),
        ({"verdict": "ok"}, 422, "verdict"),
    ):
        body = {name: value for name, value in (good | change).items() if value is not None}
        assert other.post(f"{path}/answer", body).expect(status)["field"] == field
    decided = other.post(f"{path}/answer", good).expect(200)
    assert (decided["status"], decided["decision"]) == ("approved", "approve")
    assert decided["decided_by"].startswith("token:")
    assert [vote["decision"] for vote in decided["votes"]] == ["approve"]
    gone = api.get(f"/tasks/{task['id']}").expect(200)
    assert (gone["status"], gone["step"]["name"]) == ("queued", "publish")
    late = other.post(f"{path}/answer", good).expect_problem(409, "approval_closed")
    assert "approved" in late["detail"]
    assert api.get("/approvals", status="open").expect(200)["items"] == []
    assert len(api.get("/approvals", task=task["id"]).expect(200)["items"]) == 1
    assert api.get("/approvals", status="maybe").expect(422)["field"] == "status"


def test_a_late_answer_to_a_cancelled_task_is_refused(
    api: Api, login: Callable[..., Api], approval: dict[str, Any], task: dict[str, Any]
) -> None:
    assert api.post(f"/tasks/{task['id']}/cancel").expect(200)["status"] == "cancelled"
    body = {"decision": "approve", "digest": approval["digest"]}
    login().post(f"/approvals/{approval['id']}/answer", body).expect_problem(409, "approval_closed")
    assert Approval.objects.get().status == "void"


def test_each_call_needs_its_scope(
    login: Callable[..., Api], approval: dict[str, Any], task: dict[str, Any]
) -> None:
    fresh = login().post("/tasks", {"workflow": "brief", "input": {"subject": "y"}}).expect(201)
    calls: dict[str, list[tuple[str, str, Any]]] = {
        "read": [
            ("get", path, None)
            for path in (
                "/tasks", f"/tasks/{task['id']}", f"/tasks/{task['id']}/outputs",
                f"/tasks/{task['id']}/events", f"/tasks/{task['id']}/artifacts",
                f"/tasks/{task['id']}/spend", "/approvals",
                f"/approvals/{approval['id']}", "/workers", "/workflows", "/stalled",
            )
        ],
        "submit": [("post", "/tasks", {"workflow": "brief", "input": {"subject": "x"}}),
                   ("post", "/tasks/batch", {"items": [{"workflow": "brief",
                                                        "input": {"subject": "x"}}]}),
                   ("post", "/artifacts?name=x", b"bytes")],
        "approve": [("post", f"/approvals/{approval['id']}/answer",
                     {"decision": "reject", "digest": approval["digest"]})],
        "operate": [("post", f"/tasks/{fresh['id']}/{action}", body) for action, body in (
            ("pause", {}), ("resume", {}), ("limits", {"units": 9}), ("fork", {"from_step": 0}),
            ("change", {"title": "x"}),
            ("cancel", {}),
        )],
    }  # fmt: skip
    for needed, group in calls.items():
        others = [scope for scope in calls if scope != needed]
        poor, rich = login(*others), login(needed)
        for method, path, body in group:
            for caller, ok in ((poor, False), (rich, True)):
                answer = getattr(caller, method)(path, *([] if body is None else [body]))
                if ok:
                    assert answer.status in {200, 201}, (method, path, answer.response.content)
                else:
                    problem = answer.expect_problem(403, "not_allowed")
                    assert needed in problem["detail"]
    statuses = dict(Task.objects.values_list("pk", "status"))
    assert (statuses[UUID(task["id"])], statuses[UUID(fresh["id"])]) == ("failed", "cancelled")


def test_a_signal_waits_in_the_mailbox_and_its_key_counts_once(
    api: Api, task: dict[str, Any], login: Callable[..., Api]
) -> None:
    path = f"/tasks/{task['id']}/signals/paid"
    api.post(path, {"data": {"sum": 5}}, Idempotency_Key="k").expect(200)
    api.post(path, {"data": {"sum": 5}}, Idempotency_Key="k").expect(200)
    api.post(path, {"data": {"sum": 6}}, Idempotency_Key="k").expect_problem(
        409, "idempotency_conflict"
    )
    api.post(path).expect(200)
    assert [s.data for s in Signal.objects.order_by("id")] == [{"sum": 5}, None]
    kinds = [one["kind"] for one in api.get(f"/tasks/{task['id']}/events").expect(200)["items"]]
    assert kinds == ["submitted", "signalled", "signalled"]
    api.post(f"/tasks/{task['id']}/signals/{'x' * 101}").expect_problem(
        422, "invalid_input", "name"
    )
    login("submit").post(path).expect_problem(403, "not_allowed")
    login("read").post(path).expect_problem(403, "not_allowed")
    mine = login("submit", "read")
    made = mine.post("/tasks", {"workflow": "brief", "input": {"subject": "x"}}).expect(201)
    mine.post(f"/tasks/{made['id']}/signals/go").expect(200)


def test_a_task_that_undoes_its_effects_says_how_it_ends(api: Api, task: dict[str, Any]) -> None:
    path = f"/tasks/{task['id']}"
    make_effect(Task.objects.get(), compensation="refund")
    assert api.post(f"{path}/compensate").expect_problem(409, "wrong_status")
    shown = api.post(f"{path}/cancel", {"reason": "not needed"}).expect(200)
    assert (shown["status"], shown["status_reason"]) == ("queued", "compensating")
    assert shown["ending"] == {"status": "cancelled", "reason": "cancelled_by_operator"}
    assert api.post(f"{path}/cancel").expect(200)["revision"] == shown["revision"]
    api.post(f"{path}/stop").expect_problem(409, "wrong_status")
    [one] = api.get(f"{path}/effects").expect(200)["items"]
    undo = one["compensation"]
    assert (undo["name"], undo["state"], undo["key"]) == (
        "refund", "not_done", f"{one['key']}:undo",
    )  # fmt: skip


def test_an_effect_is_settled(api: Api, task: dict[str, Any]) -> None:
    path = f"/tasks/{task['id']}/effects"
    effect = make_effect(Task.objects.get())
    [shown] = api.get(path).expect(200)["items"]
    assert (shown["state"], shown["key"]) == ("unknown", f"{task['id']}:a:0:0:pay")
    api.post(f"{path}/{effect.pk}/mark", {"to": "lost"}).expect(422)
    api.post(f"{path}/{effect.pk + 1}/mark", {"to": "done"}).expect_problem(404, "not_found")
    body = {"to": "done", "result": [1], "reason": "seen"}
    api.post(f"{path}/{effect.pk}/mark", body).expect(200)
    [shown] = api.get(path).expect(200)["items"]
    assert (shown["state"], shown["result"], shown["marked_by"][:6]) == ("done", [1], "token:")
    api.post(f"{path}/{effect.pk}/mark", body).expect_problem(409, "effect_conflict")


@pytest.mark.case(73)
def test_the_demo_is_deleted_and_the_rest_says_why_it_stays(
    api: Api, login: Callable[..., Api], workflow: Workflow
) -> None:
    given: dict[str, Any] = {"workflow": workflow, "input": {"subject": "bees"}, "actor": DEMO}
    done, busy = (submit_task(**given, key=f"demo-{n}")[0] for n in (1, 2))
    api.post(f"/tasks/{done.pk}/cancel").expect(200)
    login("read", "submit").post("/tasks/delete-demo").expect_problem(403, "not_allowed")
    answer = api.post("/tasks/delete-demo", {"reason": "seen enough"}).expect(200)
    why = "it is queued; cancel it first"
    assert answer == {"deleted": [str(done.pk)], "kept": [{"id": str(busy.pk), "why": why}]}
    api.get(f"/tasks/{done.pk}").expect_problem(404, "task_not_found")
    api.post(f"/tasks/{done.pk}/retry").expect_problem(404, "task_not_found")


def test_the_hand_off_is_read(api: Api, task: dict[str, Any]) -> None:
    sent = api.get(f"/tasks/{task['id']}/handoff").expect(200)
    assert sent["markdown"].startswith("# ")
    assert (sent["data"]["task"], sent["data"]["bound"]) == (task["id"], 4000)
    less = api.get(f"/tasks/{task['id']}/handoff", tokens=2000).expect(200)
    assert (less["data"]["bound"], less["digest"]) == (2000, sent["digest"])
    assert api.get(f"/tasks/{task['id']}/handoff", tokens=1).expect(422)["field"] == "tokens"
