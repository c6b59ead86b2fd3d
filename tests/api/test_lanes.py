"""A person or a token that is limited to lanes: nothing exists for it outside of them."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator
from typing import Any

import pytest
from django.contrib.auth.models import Group, User
from django.test import Client

from ledger import artifacts, auditing, clock, limits, queries, registry, sql, states
from ledger.access import SCOPES, list_scopes
from ledger.api.edge import NOBODY
from ledger.calls import Call, answer_call
from ledger.errors import InvalidInput
from ledger.models import AuditEntry, Reach, Task, Worker
from ledger.queries import HIDDEN
from ledger.tokens import make_token
from ledger.transitions import approvals, holder, operators
from ledger.workflows import Workflow
from tests.api.conftest import BASE, Api
from tests.conftest import ROOT
from tests.factories import (
    CLIENT,
    LEASE,
    OPERATOR,
    OWNER,
    ask,
    attempt,
    claim,
    make_unit,
    make_workflow,
    spawn,
    submit,
)

pytestmark = [pytest.mark.both_databases, pytest.mark.django_db]

SECRET = "tulip-canary"


@pytest.fixture
def flow() -> Iterator[Workflow]:
    """A workflow of the steps a, b, c that this process knows."""
    auditing.forget_refusals()
    workflow = make_workflow()
    with registry.registered(workflow):
        yield workflow
    clock.offset = 0.0


def make_task(flow: Workflow, lane: str) -> Task:
    """A task of `lane` that has worked, saved, failed once, asked; every place holds SECRET."""
    task = submit(flow, lane=lane, title=f"work of {lane}", input={"word": SECRET})
    held = claim(flow, lane=lane)
    artifacts.save_artifact(held, "a.txt", SECRET.encode())
    word = json.dumps({"word": SECRET})
    unit = make_unit(held, flow, output=word, progress=word)
    settled = sql.checkpoint_unit(held, unit, lease_seconds=LEASE, groups=None)
    assert settled is not None
    assert settled.kept_fence is not None
    again = dataclasses.replace(held, fence=settled.kept_fence, step_index=1, step_name="b")
    form = {"type": "object", "title": SECRET}
    shown = {"body": SECRET, "payload": {"word": SECRET}, "proposal": {"word": SECRET}}
    ask(again, flow, form=form, **shown)
    task.refresh_from_db()
    assert task.status == states.WAITING
    return task


def make_caller(**options: Any) -> Api:
    """A token with every scope, limited as said."""
    _, text = make_token("t", SCOPES, created_by="cli:test", **options)
    return Api(text)


def read_to_the_end(response: Any) -> bytes:
    """The bytes of an answer, streamed or not; what it holds open is closed."""
    return response.getvalue() if response.streaming else response.content


def sign_in(role: str, **reach: Any) -> Client:
    """A person's browser."""
    user = User.objects.create_user(f"{role}-{len(reach)}-{User.objects.count()}")
    user.groups.add(Group.objects.get(name=role))
    if reach:
        Reach.objects.create(user=user, **reach)
    client = Client()
    client.force_login(user)
    return client


def test_what_is_in_another_lane_is_not_found(flow: Workflow) -> None:
    theirs, own = make_task(flow, "day"), make_task(flow, "night")
    night = make_caller(lanes=["night"])
    for task, status in ((own, 200), (theirs, 404)):
        places = ["", "/outputs", "/events", "/artifacts", "/spend"]
        asked, saved = task.approvals.get(), task.artifacts.get()
        paths = [f"/tasks/{task.pk}{place}" for place in places]
        paths += [f"/approvals/{asked.pk}", f"/artifacts/{saved.pk}"]
        paths += [f"/artifacts/{saved.pk}/content"]
        answers = {path: night.get(path) for path in paths}
        assert {path: got.status for path, got in answers.items()} == dict.fromkeys(paths, status)
        read_to_the_end(answers[paths[-1]].response)
    for action in ("cancel", "stop", "pause", "resume", "retry", "signals/go"):
        night.post(f"/tasks/{theirs.pk}/{action}").expect_problem(404, "task_not_found")
    bodies: dict[str, Any] = {
        "repair": {"to_step": "a", "note": "n"}, "change": {"title": "x"},
        "limits": {"limits": {"units": 9}}, "fork": {"from_step": "a"},
        "outputs/1/edit": {"output": {}, "reason": "r"},
    }  # fmt: skip
    for action, body in bodies.items():
        night.post(f"/tasks/{theirs.pk}/{action}", body).expect_problem(404, "task_not_found")
    asked = theirs.approvals.get()
    body = {"decision": "approve", "digest": asked.digest}
    refusal = night.post(f"/approvals/{asked.pk}/answer", body).expect_problem(404, "not_found")
    assert str(theirs.pk) not in refusal["detail"], "nor is its task known by it"
    theirs.refresh_from_db()
    assert (theirs.status, theirs.events.filter(actor__startswith="token").count()) == (
        "waiting",
        0,
    )
    refused = AuditEntry.objects.filter(allowed=False, actor__startswith="token:", task=theirs.pk)
    assert refused.exists()


def test_lists_counts_and_figures_are_of_ones_own_lanes(flow: Workflow) -> None:
    theirs, own = make_task(flow, "day"), make_task(flow, "night")
    night = make_caller(lanes=["night"])
    for path in ("/tasks", "/tasks?q=work", "/tasks?lane=night", "/tasks?status=waiting"):
        assert [row["id"] for row in night.get(path).expect(200)["items"]] == [str(own.pk)]
    for path in ("/tasks?lane=day", f"/tasks?q={theirs.pk}", "/stalled"):
        assert night.get(path).expect(200)["items"] == []
    assert [row["task"] for row in night.get("/approvals").expect(200)["items"]] == [str(own.pk)]
    assert night.get(f"/approvals?task={theirs.pk}").expect(200)["items"] == []
    with answer_call(Call(lanes=frozenset({"night"}))):
        assert queries.count_by_status()["waiting"] == 1
        assert len(queries.list_unfinished()) == 1
        assert queries.count_waiting() == len(queries.list_waiting()) == 1
        fleet = queries.load_fleet()
        counts = queries.count_trouble(queries.list_unknown(fleet))
        assert counts["approvals"].count == 1
    operators.cancel_task(theirs.pk, actor=OPERATOR)
    with answer_call(Call(lanes=frozenset({"night"}))):
        assert queries.list_ended(60) == []
        assert queries.list_decided() == []
        assert queries.count_trials(60).whole
    assert len(queries.list_ended(60)) == 1


def test_workers_hold_no_task_of_another_lane_to_see(flow: Workflow) -> None:
    now = clock.read()
    Worker.objects.bulk_create([Worker(owner=OWNER, host="h", pid=1, started_at=now, seen_at=now)])
    submit(flow, lane="day", title="work of day")
    claim(flow, lane="day")
    night = make_caller(lanes=["night"])
    assert [row["tasks"] for row in night.get("/workers").expect(200)["items"]] == [[]]
    page = sign_in("viewer", lanes=["night"]).get("/workers/").content.decode()
    assert OWNER.split(":")[0] in page
    assert "work of day" not in page


def test_nothing_is_submitted_into_another_lane(flow: Workflow) -> None:
    night = make_caller(lanes=["night"])
    body: dict[str, Any] = {"workflow": "three", "input": {}}
    problem = night.post("/tasks", body).expect_problem(403, "not_allowed")
    assert "default" in problem["detail"]
    assert "night" in problem["detail"]
    batch = {"items": [body | {"lane": "night"}, body | {"lane": "day"}]}
    assert "'day'" in night.post("/tasks/batch", batch).expect(403)["detail"]
    assert not Task.objects.exists()
    made = night.post("/tasks", body | {"lane": "night"}).expect(201)
    night.post(f"/tasks/{made['id']}/change", {"lane": "day"}).expect_problem(403, "not_allowed")
    browser = sign_in("operator", lanes=["night"])
    form = browser.get("/workflows/three/").context["form"]
    assert form["lane"].value() == "night"
    typed = {name: form[name].value() for name in form.fields}
    typed = {name: value for name, value in typed.items() if value is not None} | {"lane": "day"}
    page = browser.post("/workflows/three/", typed)
    assert page.status_code == 403
    assert [task.lane for task in Task.objects.all()] == ["night"]
    assert AuditEntry.objects.filter(allowed=False, reason__contains="'day'").count() >= 3


def test_an_upload_is_seen_by_who_made_it(flow: Workflow) -> None:
    night, other = make_caller(lanes=["night"]), make_caller(lanes=["night", "day"])
    kept = night.post("/artifacts?name=a.txt", b"x").expect(201)
    night.get(f"/artifacts/{kept['id']}").expect(200)
    other.get(f"/artifacts/{kept['id']}").expect(404)
    make_caller().get(f"/artifacts/{kept['id']}").expect(200)


def test_pages_show_ones_own_lanes_only(flow: Workflow) -> None:
    theirs, own = make_task(flow, "day"), make_task(flow, "night")
    client = sign_in("operator", lanes=["night"])
    asked, saved = theirs.approvals.get(), theirs.artifacts.get()
    for path in (
        f"/tasks/{theirs.pk}/", f"/tasks/{theirs.pk}/outputs/", f"/tasks/{theirs.pk}/events/",
        f"/tasks/{theirs.pk}/outputs/2/", f"/tasks/{theirs.pk}/cancel/", f"/approvals/{asked.pk}/",
        f"/approvals/{asked.pk}/files/0/", f"/artifacts/{saved.pk}/",
    ):  # fmt: skip
        assert client.get(path).status_code == 404, path
        part = client.get(path, headers={"HX-Request": "true"})
        assert part.status_code == 404, path
    for path in ("/", "/tasks/", "/approvals/", "/stalled/", "/workers/", "/workflows/"):
        page = client.get(path).content.decode()
        assert str(theirs.pk) not in page, path
        assert "work of day" not in page, path
    assert str(own.pk) in client.get("/tasks/").content.decode()
    assert client.post(f"/tasks/{theirs.pk}/pause/").status_code == 404
    assert client.post(f"/approvals/{asked.pk}/undo/").status_code == 404


def test_an_amount_of_a_child_in_another_lane_does_not_name_it(flow: Workflow) -> None:
    submit(flow, lane="day")
    spawn(claim(flow, lane="day"), flow, 2)
    last = Task.objects.exclude(parent=None).latest("id")
    Task.objects.exclude(parent=None).update(title="of day")
    Task.objects.filter(pk=last.pk).update(lane="night", title="of night")
    for lane in ("day", "night"):
        limits.record_spend(claim(flow, lane=lane), key="k", tokens_in=1)
    parent = Task.objects.get(parent=None)
    for lanes, said in ((["day"], ["child task of day", "child task"]),
                        (None, ["child task of day", "child task of night"])):  # fmt: skip
        told = make_caller(lanes=lanes).get(f"/tasks/{parent.pk}/spend").expect(200)
        assert [one["note"] for one in told["items"]] == said


def test_who_lacks_the_permission_payload_is_shown_no_contents(flow: Workflow) -> None:
    task = make_task(flow, "day")
    asked, saved = task.approvals.get(), task.artifacts.get()
    blind = make_caller(payload=False)
    paths = [
        "/tasks", f"/tasks/{task.pk}", f"/tasks/{task.pk}/outputs", f"/tasks/{task.pk}/events",
        "/approvals", f"/approvals/{asked.pk}", f"/artifacts/{saved.pk}", "/stalled",
    ]  # fmt: skip
    for path in paths:
        answer = blind.get(path)
        assert answer.status == 200, path
        assert SECRET not in answer.response.content.decode(), path
    shown = blind.get(f"/tasks/{task.pk}").expect(200)
    assert (shown["status"], shown["title"], shown["input"]) == ("waiting", "work of day", None)
    blind.get(f"/artifacts/{saved.pk}/content").expect_problem(403, "not_allowed")
    for query in ({}, {"sent": 1}):
        blind.get(f"/tasks/{task.pk}/handoff", **query).expect_problem(403, "not_allowed")
    body = {"decision": "approve", "digest": asked.digest}
    blind.post(f"/approvals/{asked.pk}/answer", body).expect_problem(403, "not_allowed")
    assert SECRET in make_caller().get(f"/tasks/{task.pk}").response.content.decode()


def test_pages_hide_contents_too(flow: Workflow) -> None:
    task = make_task(flow, "day")
    asked, saved = task.approvals.get(), task.artifacts.get()
    seq = task.outputs.order_by("seq")[0].seq
    paths = [
        "/", "/tasks/", f"/tasks/{task.pk}/", f"/tasks/{task.pk}/outputs/",
        f"/tasks/{task.pk}/outputs/{seq}/", f"/tasks/{task.pk}/events/", "/approvals/",
        f"/approvals/{asked.pk}/", "/stalled/",
    ]  # fmt: skip
    blind, seeing = sign_in("operator", payload=False), sign_in("operator")
    for path in paths:
        page = blind.get(path)
        assert page.status_code == 200, path
        assert SECRET not in page.content.decode(), path
    assert SECRET in seeing.get(f"/tasks/{task.pk}/").content.decode()
    assert SECRET in seeing.get(f"/approvals/{asked.pk}/").content.decode()
    assert blind.get(f"/artifacts/{saved.pk}/").status_code == 403
    assert blind.get(f"/tasks/{task.pk}/handoff/").status_code == 403
    assert "somebody else answers" in blind.get(f"/approvals/{asked.pk}/").content.decode()


def test_the_words_of_steps_and_answers_are_contents_too(flow: Workflow) -> None:
    task = submit(flow)
    holder.release_task(claim(flow), why=SECRET, delay=0.0)
    asked = ask(claim(flow), flow, send_back_to="a")
    answer: dict[str, Any] = {"digest": asked.digest, "actor": OPERATOR, "comment": SECRET}
    approvals.decide_approval(asked.pk, decision="send_back", **answer)
    again = ask(claim(flow), flow, send_back_to="a")
    paths = [f"/tasks/{task.pk}/", f"/tasks/{task.pk}/events/", "/approvals/",
             f"/approvals/{again.pk}/", f"/approvals/{asked.pk}/"]  # fmt: skip
    blind, seeing = sign_in("viewer", payload=False), sign_in("viewer")
    for path in paths:
        assert SECRET not in blind.get(path).content.decode(), path
    assert SECRET in seeing.get(f"/approvals/{again.pk}/").content.decode()
    told = make_caller(payload=False).get(f"/tasks/{task.pk}/events")
    assert SECRET not in told.response.content.decode()
    (released,) = [one for one in told.expect(200)["items"] if one["kind"] == "released"]
    assert (released["data"]["why"], released["data"]["delay"]) == (HIDDEN, 0.0)


def test_errors_are_told_by_their_type_alone(flow: Workflow) -> None:
    task = submit(flow)
    failed = attempt()
    failed.error["message"] = SECRET
    holder.fail_task(claim(flow), failed)
    blind, browser = make_caller(payload=False), sign_in("viewer", payload=False)
    shown = blind.get(f"/tasks/{task.pk}").expect(200)
    assert (shown["error"]["type"], shown["error"]["message"]) == ("Boom", HIDDEN)
    for path in (f"/tasks/{task.pk}/events", "/tasks"):
        assert SECRET not in blind.get(path).response.content.decode()
    for path in ("/", "/stalled/", f"/tasks/{task.pk}/", f"/tasks/{task.pk}/events/"):
        assert SECRET not in browser.get(path).content.decode(), path


def test_who_is_limited_administers_nothing(flow: Workflow) -> None:
    for reach in ({"lanes": ["night"]}, {"payload": False}):
        client = sign_in("admin", **reach)
        assert client.get("/admin/").status_code == 403
        assert client.get(f"{BASE}/tasks").status_code == 200
        assert list_scopes(User.objects.latest("pk")) >= set(SCOPES)


def test_an_admin_sets_how_far_a_person_sees(flow: Workflow) -> None:
    admin = sign_in("admin")
    ann = User.objects.create_user("ann")
    body = {"user": ann.pk, "lanes": "night\n day \n", "payload": "on"}
    assert admin.post("/admin/longwatch_ledger/reach/add/", body).status_code == 302
    assert Reach.objects.get().lanes == ["day", "night"]
    change = f"/admin/longwatch_ledger/reach/{ann.pk}/change/"
    assert admin.post(change, {"lanes": ""}).status_code == 302
    assert Reach.objects.values_list("lanes", "payload").get() == (None, False)
    entry = AuditEntry.objects.filter(action="change_reach").first()
    assert entry is not None
    assert (entry.before, entry.after) == (
        {"lanes": ["day", "night"], "payload": True}, {"lanes": None, "payload": False},
    )  # fmt: skip
    assert sign_in("operator").post(change, {"lanes": "x"}).status_code == 403


def test_a_token_of_some_lanes_reads_no_audit_log() -> None:
    for limited in ({"lanes": ["night"]}, {"payload": False}):
        with pytest.raises(InvalidInput):
            make_token("t", ["audit"], created_by="cli:me", **limited)  # type: ignore[arg-type]
    for lanes in ([], [" "], ["x" * 101], ["a\nb"]):
        with pytest.raises(InvalidInput):
            make_token("t", ["read"], created_by="cli:me", lanes=lanes)


def test_every_read_model_takes_its_rows_from_what_the_caller_sees() -> None:
    # list_lineage follows copies from lane to lane; a search takes one time from all tasks, a jump
    # their newest ids; what was asked in runs is of tasks that are seen; an edit asks of a task
    # that was found whether people were asked about it, or about what it was copied from
    allowed = {"seen.py": 6, "tasks.py": 1, "filters.py": 1, "jumps.py": 1, "runs.py": 1}
    allowed |= {"editing.py": 2, "onpage.py": 1}
    for file in sorted((ROOT / "ledger/queries").glob("*.py")):
        text = file.read_text()
        found = sum(text.count(f"{name}.objects") for name in ("Task", "Approval", "Artifact"))
        assert found == allowed.get(file.name, 0), file.name
    assert NOBODY == "anonymous"
    assert str(CLIENT) == "cli:tester"
