"""Who may do what: every endpoint, page, part of a page and admin view against every caller.

The routes are those of the URL configuration and of the OpenAPI document, so a new one without a
row here fails. Each call is undone, and each refusal has to be in the audit log.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Iterator
from typing import Any
from uuid import UUID

import pytest
from django.contrib.auth.models import Group, User
from django.db import transaction
from django.test import Client
from django.urls import URLPattern, get_resolver

from ledger import artifacts, auditing, clock, registry, sql, uploads
from ledger.access import ADMIN, APPROVE, AUDIT, OPERATE, READ, ROLES, SCOPES, SUBMIT
from ledger.alerts import kinds, rules
from ledger.api.urls import api
from ledger.bulk.making import make_operation
from ledger.bulk.selecting import Selection
from ledger.events import Actor
from ledger.models import (
    AlertRule,
    ApiToken,
    Approval,
    Artifact,
    AuditEntry,
    BulkOperation,
    Reach,
    SavedView,
    Task,
    Upload,
)
from ledger.tokens import make_token, revoke_token
from ledger.transitions.submit import submit_task
from ledger.transitions.views import ViewDraft, save_view
from ledger.workflows import Workflow
from tests.dashboard.fleet import make_worker
from tests.factories import LEASE, OWNER, ask, claim, make_unit, make_workflow

pytestmark = [pytest.mark.both_databases, pytest.mark.django_db, pytest.mark.case(50)]

PUBLIC, SIGNED_IN = "public", "signed in"
LANE, ELSEWHERE = "day", "night"

API: dict[str, Any] = {
    "GET /tasks": READ, "POST /tasks": SUBMIT, "POST /tasks/batch": SUBMIT,
    "POST /tasks/delete-demo": OPERATE, "GET /tasks/{task_id}": READ,
    "GET /tasks/{task_id}/outputs": READ, "GET /tasks/{task_id}/events": READ,
    "GET /tasks/{task_id}/artifacts": READ, "GET /tasks/{task_id}/spend": READ,
    "GET /tasks/{task_id}/effects": READ, "GET /tasks/{task_id}/handoff": READ,
    "GET /tasks/{task_id}/log": READ, "GET /tasks/{task_id}/transcript": READ,
    "GET /tasks/{task_id}/messages": READ, "POST /tasks/{task_id}/messages": OPERATE,
    "DELETE /tasks/{task_id}/messages/{message_id}": OPERATE,
    "POST /tasks/{task_id}/effects/{effect_id}/mark": OPERATE,
    **{f"POST /tasks/{{task_id}}/{action}": OPERATE for action in (
        "cancel", "stop", "pause", "resume", "retry", "repair", "change", "outputs/{seq}/edit",
        "fork", "limits", "signals/{name}", "compensate")},
    "GET /approvals": READ, "GET /approvals/{approval_id}": READ,
    "POST /approvals/{approval_id}/answer": APPROVE, "POST /artifacts": SUBMIT,
    "GET /artifacts/{artifact_id}": READ, "GET /artifacts/{artifact_id}/content": READ,
    "POST /uploads": SUBMIT, "GET /uploads": SUBMIT, "GET /uploads/{upload_id}": SUBMIT,
    "PATCH /uploads/{upload_id}": SUBMIT, "DELETE /uploads/{upload_id}": SUBMIT,
    "POST /bulk": OPERATE, "GET /bulk": READ, "GET /bulk/{bulk_id}": READ,
    "GET /bulk/{bulk_id}/items": READ, "POST /bulk/{bulk_id}/stop": OPERATE,
    "GET /audit": AUDIT, "GET /workflows": READ, "GET /workers": READ, "GET /stalled": READ,
    **{f"POST /workers/{{owner}}/{action}": OPERATE for action in (
        "drain", "undrain", "declare-dead")},
    "GET /lanes": READ, "GET /lanes/{name}": READ, "POST /lanes/{name}": OPERATE,
}  # fmt: skip
"""Every operation of the API: the scope it takes."""

BODIES: dict[str, Any] = {
    "POST /tasks": {"workflow": "three", "input": {}, "lane": LANE},
    "POST /tasks/batch": {"items": [{"workflow": "three", "input": {}, "lane": LANE}]},
    "POST /tasks/{task_id}/effects/{effect_id}/mark": {"to": "done"},
    "POST /uploads": {"name": "n", "size": 1},
    "POST /tasks/{task_id}/repair": {"to_step": "a", "note": "n"},
    "POST /tasks/{task_id}/change": {"title": "x"},
    "POST /tasks/{task_id}/outputs/{seq}/edit": {"output": {}, "reason": "r"},
    "POST /tasks/{task_id}/fork": {"from_step": "a"},
    "POST /tasks/{task_id}/limits": {"units": 5000},
    "POST /tasks/{task_id}/messages": {"text": "go left"},
    "POST /bulk": {"action": "pause", "filter": {"lane": [LANE]}},
}

PAGES: dict[str, tuple[str, str]] = {
    "overview": ("GET", READ), "trouble": ("GET", READ), "workers": ("GET", READ),
    "workflows": ("GET", READ), "workflow": ("GET", READ), "audit": ("GET", AUDIT),
    "audit-export": ("GET", AUDIT), "legend": ("GET", READ), "since": ("GET", READ),
    "settings": ("GET", READ), "palette": ("GET", READ),
    "handoff": ("GET", READ), "log": ("GET", READ), "tasks": ("GET", READ),
    "delete-demo": ("GET", OPERATE), "task": ("GET", READ), "outputs": ("GET", READ),
    "output": ("GET", READ), "events": ("GET", READ), "act": ("GET", OPERATE),
    "approvals": ("GET", READ), "answers": ("GET", READ), "approval": ("GET", READ),
    "approval-file": ("GET", READ),
    "answer": ("POST", APPROVE), "undo": ("POST", APPROVE), "artifact": ("GET", READ),
    "artifact-view": ("GET", READ), "artifact-changes": ("GET", READ),
    "transcript": ("GET", READ), "compare": ("GET", READ), "bundle": ("GET", READ),
    "alerts": ("GET", OPERATE), "alert-new": ("GET", ADMIN), "alert": ("GET", ADMIN),
    "alert-act": ("POST", OPERATE), "worker-act": ("GET", OPERATE),
    "lanes": ("GET", READ), "lane": ("GET", OPERATE), "lane-act": ("POST", OPERATE),
    "words": ("GET", READ), "saved-views": ("GET", READ), "tasks-home": ("GET", READ),
    "view-new": ("GET", READ), "view-act": ("POST", READ),
    "bulks": ("GET", READ), "bulk-new": ("GET", OPERATE), "bulk": ("GET", READ),
    "together": ("GET", APPROVE), "bulk-stop": ("POST", OPERATE), "bulk-export": ("GET", READ),
    "tokens": ("GET", READ), "token-new": ("GET", ADMIN), "token-act": ("GET", ADMIN),
}  # fmt: skip
"""Every page by its name: how it is asked for, and the scope it takes."""

OPEN = {
    "openapi-json", "openapi-view", "api-root", "login", "login-link", "logout", "^api/", "healthz",
    "readyz",
}  # fmt: skip
"""Routes that anybody may ask: documents, health, signing in and out."""

APART = {"metrics"}
"""Outside of the API, for tokens and people by its rules."""

ADMIN_OPEN = {"admin/login/", "admin/logout/", "admin/jsi18n/", "admin/(?P<url>.*)$"}
"""Of the admin: the way in, the way out, the texts of its script, and what is no page."""


@dataclasses.dataclass(frozen=True)
class Caller:
    """Somebody at the door: a browser or a token, and what they should be able to do."""

    name: str
    client: Client
    headers: dict[str, str]
    scopes: frozenset[str]
    lane: bool = True
    """Whether the world's lane is one of theirs."""
    key: int = 0
    """Of a person."""

    @property
    def known(self) -> bool:
        """Whether anything is shown by which they are known, good or not."""
        return self.name != "anonymous"


@dataclasses.dataclass(frozen=True)
class World:
    """One task of LANE that waits for an answer, with a row of everything that has an address."""

    task: Task
    asked: Approval
    saved: Artifact
    rule: AlertRule
    upload: Upload
    submitter: User
    view: SavedView
    bulk: BulkOperation
    token: ApiToken

    @property
    def keys(self) -> dict[str, Any]:
        """What stands in a path."""
        return {
            "task_id": self.task.pk, "approval_id": self.asked.pk, "artifact_id": self.saved.pk,
            "rule_id": self.rule.pk, "upload_id": self.upload.pk, "effect_id": 1, "seq": 2,
            "owner": OWNER, "view_id": self.view.pk, "message_id": 1, "index": 0, "kind": "csv",
            "bulk_id": self.bulk.pk,
            "token_id": self.token.pk,
        }  # fmt: skip


@pytest.fixture
def world() -> Iterator[World]:
    """The task, and the workflow that it runs."""
    workflow = make_workflow()
    submitter = make_person("operator", "sam")
    with registry.registered(workflow):
        yield make_world(workflow, submitter)
    auditing.forget_refusals()


def make_world(workflow: Workflow, submitter: User) -> World:
    actor = Actor("user", str(submitter.pk))
    task, _ = submit_task(workflow=workflow, input={}, actor=actor, lane=LANE, title="canary")
    held = claim(workflow, lane=LANE)
    saved = artifacts.save_artifact(held, "a.patch", b"x")
    unit = make_unit(held, workflow)
    settled = sql.checkpoint_unit(held, unit, lease_seconds=LEASE, groups=None)
    assert settled is not None
    assert settled.kept_fence is not None
    held = dataclasses.replace(held, fence=settled.kept_fence, step_index=1, step_name="b")
    files = [{"path": "a.py", "diff": "@@ -1 +1 @@\n-a\n+b\n"}]
    asked = ask(held, workflow, payload={"files": files})
    kind = next(iter(kinds.KINDS))
    draft = rules.RuleDraft("r", [kind], kinds.EMAIL, "a@b.example", lane=LANE)
    rule, _ = rules.make_rule(draft, Actor("cli", "test"))
    make_worker(workflow)
    upload = uploads.begin_upload("in.bin", 9, "token:another")
    view = save_view("shared", ViewDraft(), actor, shared=True)
    bulk, _ = make_operation("cancel", Selection(ids=(task.pk,)), actor=actor)
    saved_row = Artifact.objects.get(pk=saved.id)
    token, _ = make_token("worlds", [READ], created_by="cli:test")
    return World(task, asked, saved_row, rule, upload, submitter, view, bulk, token)


def make_person(role: str, name: str, **reach: Any) -> User:
    user = User.objects.create_user(name)
    user.groups.add(Group.objects.get(name=role))
    if reach:
        Reach.objects.create(user=user, **reach)
    return user


def make_callers(world: World) -> list[Caller]:
    """Everybody who might come."""

    def browse(name: str, user: User, scopes: frozenset[str], **more: Any) -> Caller:
        client = Client(raise_request_exception=False)
        client.force_login(user)
        return Caller(name, client, {}, scopes, key=user.pk, **more)

    def call(name: str, scopes: list[str], good: bool = True) -> Caller:
        _, text = make_token(name, scopes, created_by="cli:test")
        kept = frozenset(scopes) if good else frozenset[str]()
        client = Client(raise_request_exception=False)
        return Caller(name, client, {"Authorization": f"Bearer {text}"}, kept)

    callers = [browse(role, make_person(role, role), ROLES[role]) for role in ROLES]
    elsewhere = make_person("operator", "otto", lanes=[ELSEWHERE])
    gone = make_person("admin", "gone")
    callers += [
        browse("other lane", elsewhere, ROLES["operator"], lane=False),
        browse("submitter", world.submitter, ROLES["operator"] - {APPROVE}),
        browse("deactivated", gone, frozenset()),
        call("submit only", [SUBMIT]),
        call("revoked", list(SCOPES), good=False),
        call("expired", list(SCOPES), good=False),
        Caller("anonymous", Client(raise_request_exception=False), {}, frozenset()),
    ]
    User.objects.filter(pk=gone.pk).update(is_active=False)
    assert revoke_token(ApiToken.objects.get(name="revoked").pk, by="cli:test")
    ApiToken.objects.filter(name="expired").update(expires_at=clock.now(-1.0))
    return callers


def undo[T](call: Callable[[], T]) -> tuple[T, list[AuditEntry]]:
    """What a call answers, and the refusals that it put on record; then as if it never was."""
    auditing.forget_refusals()
    last = AuditEntry.objects.order_by("-pk").values_list("pk", flat=True).first() or 0
    with transaction.atomic():
        answer = call()
        refused = list(AuditEntry.objects.filter(allowed=False, pk__gt=last))
        transaction.set_rollback(True)
    return answer, refused


def find_fault(caller: Caller, response: Any, refused: list[AuditEntry], wanted: set[int]) -> str:
    """What is wrong with an answer; empty when nothing is. `wanted`: how it may be refused."""
    status = response.status_code
    if response.streaming:
        response.getvalue()
    if not wanted:
        bad = status in {401, 403, 404} or status >= 500
        return f"refused with {status}" if bad or refused else ""
    if status not in wanted:
        return f"answered {status}, not {sorted(wanted)}"
    blind = READ not in caller.scopes or not caller.lane
    if blind and b"canary" in (b"" if response.streaming else response.content):
        return "shows the title"
    return "" if refused or not caller.known else "is not in the audit log"


def list_api() -> list[str]:
    """`POST /tasks/{task_id}/cancel` and so on, as OpenAPI has them."""
    paths = api.get_openapi_schema()["paths"]
    return [
        f"{method.upper()} {path.removeprefix('/api/v1')}"
        for path, item in paths.items()
        for method in item
    ]


def list_routes(patterns: Any = None, before: str = "") -> Iterator[tuple[str, str]]:
    """(path as it is written, name) of every route of the site."""
    for one in get_resolver().url_patterns if patterns is None else patterns:
        here = before + str(one.pattern)
        if isinstance(one, URLPattern):
            yield here, one.name or here
        else:
            yield from list_routes(one.url_patterns, here)


def test_every_route_has_its_row() -> None:
    assert set(list_api()) == set(API)
    operations = {name for path, name in list_routes() if path.startswith("api/v1/")} - OPEN
    assert len(operations) == len(API)
    pages = {
        name for path, name in list_routes() if not path.startswith(("api/v1/", "admin/"))
    } - OPEN
    assert pages == set(PAGES) | APART


def test_every_endpoint_is_for_those_it_is_meant_for(world: World) -> None:
    faults = []
    for caller in make_callers(world):
        for name, scope in API.items():
            method, template = name.split(" ")
            path = f"/api/v1{template.format(**world.keys, name='go')}"
            body = BODIES.get(name, {})
            if name == "POST /approvals/{approval_id}/answer":
                body = {"decision": "approve", "digest": world.asked.digest}
            response, refused = undo(
                lambda: caller.client.generic(  # noqa: B023  called at once
                    method, path, "" if method == "GET" else json.dumps(body),  # noqa: B023
                    content_type="application/json", headers=caller.headers,  # noqa: B023
                )
            )  # fmt: skip
            wanted = judge_api(caller, name, scope)
            if name.endswith(("/mark", "{upload_id}", "{message_id}")) and not wanted:
                wanted = {
                    404
                }  # the task has no effect and no message, and an upload is its sender's alone
                refused = refused or [AuditEntry()]
            if fault := find_fault(caller, response, refused, wanted):
                faults.append(f"{caller.name}: {name} {fault}")
    assert faults == []


def test_the_metrics_are_for_who_reads_every_lane(world: World) -> None:
    faults = []
    for caller in make_callers(world):
        response, refused = undo(
            lambda: caller.client.get("/metrics", headers=caller.headers)  # noqa: B023  called at once
        )
        wanted = judge_api(caller, "GET /metrics", READ) or (set() if caller.lane else {403})
        if fault := find_fault(caller, response, refused, wanted):
            faults.append(f"{caller.name}: {fault}")
        assert b"canary" not in response.content
    assert faults == []


def judge_api(caller: Caller, name: str, scope: str) -> set[int]:
    """How a caller is to be refused; empty when it is not."""
    if not caller.scopes:
        return {401}
    if scope not in caller.scopes:
        return {403}
    named = "{" in name
    if "{owner}" in name:  # it serves every lane
        return set() if caller.lane else {403}
    if not caller.lane and (named or name in {"POST /tasks", "POST /tasks/batch"}):
        return {404} if named else {403}
    return set()


def test_every_page_and_every_part_is_for_those_it_is_meant_for(world: World) -> None:
    paths = dict(_fill_pages(world))
    faults = []
    for caller in make_callers(world):
        for name, (method, scope) in PAGES.items():
            for headers in ({}, {"HX-Request": "true", "HX-Request-Type": "partial"}):
                response, refused = undo(
                    lambda: caller.client.generic(  # noqa: B023  called at once
                        method, paths[name], headers=caller.headers | headers  # noqa: B023
                    )
                )  # fmt: skip
                wanted = judge_page(caller, name, scope, part=bool(headers))
                # A token opens no page: it is nobody there, and a visitor's look is no try.
                known = dataclasses.replace(
                    caller, name="anonymous" if caller.headers else caller.name
                )
                if wanted == {302} and "/login/" not in response.get("Location", ""):
                    faults.append(f"{caller.name}: {name} leads to {response.get('Location')}")
                elif fault := find_fault(known, response, refused, wanted):
                    faults.append(f"{caller.name}: {name}{' part' * bool(headers)} {fault}")
    assert faults == []


def judge_page(caller: Caller, name: str, scope: str, *, part: bool) -> set[int]:
    """How a person is to be refused; empty when they are not."""
    if not caller.scopes or caller.headers:
        return {401} if part else {302}
    if caller.name == "submitter" and name in {"answer", "together"}:
        return set()  # nothing is filled in, so who may answer is not asked yet
    if scope not in caller.scopes:
        return {403}
    of_task = {"task", "handoff", "log", "outputs", "output", "events", "act", "approval", "answer",
               "approval-file", "undo", "artifact", "artifact-view", "artifact-changes",
               "alert", "alert-act", "transcript", "compare", "bundle", "bulk",
               "bulk-stop"}  # fmt: skip
    return {404} if not caller.lane and name in of_task else set()


def _fill_pages(world: World) -> Iterator[tuple[str, str]]:
    for path, name in list_routes():
        if name in PAGES and not path.startswith("api/"):
            words = {"workflow": "three", "act": "cancel", "alert-act": "replay",
                     "worker-act": "drain", "view-act": "pin",
                     "token-act": "revoke"}  # fmt: skip
            filled = path
            for key, value in {**world.keys, "name": words.get(name, "")}.items():
                for kind in ("uuid", "str", "int", "slug"):
                    filled = filled.replace(f"<{kind}:{key}>", str(value))
            assert "<" not in filled, filled
            yield name, f"/{filled}"


def test_every_admin_view_is_for_admins_alone(world: World) -> None:
    faults = []
    routes = [path for path, _ in list_routes() if path.startswith("admin/")]
    routes = [path for path in routes if path not in ADMIN_OPEN]
    assert len(routes) > 80
    refusals = AuditEntry.objects.filter(allowed=False)
    alike = {"revoked", "expired", "approver", "submitter"}  # of tokens and of roles, some do
    callers = [one for one in make_callers(world) if one.name not in alike]
    for caller in callers:
        for route in routes:
            auditing.forget_refusals()
            response = caller.client.get(_fill_admin(route, world), headers=caller.headers)
            if ADMIN in caller.scopes:
                if response.status_code >= 500:
                    faults.append(f"{caller.name}: {route} {response.status_code}")
                continue
            wanted = {302} if not caller.scopes or caller.headers else {403}
            # Nobody is told to sign in; that is no refusal of what they asked.
            known = dataclasses.replace(caller, name="anonymous") if wanted == {302} else caller
            path = response.request["PATH_INFO"]
            refused = list(refusals.filter(target=path[:200], actor=f"user:{caller.key}"))
            if fault := find_fault(known, response, refused, wanted):
                faults.append(f"{caller.name}: {route} {fault}")
    assert faults == []


def _fill_admin(route: str, world: World) -> str:
    """The route with the task's id for any row's, which none but the task has."""
    path = route.replace("<path:object_id>", str(world.task.pk)).replace("<id>", "1")
    path = path.replace("<path:content_type_id>", "1")
    return "/" + path.replace("^(?P<app_label>longwatch_ledger|auth)/$", "auth/")


def test_an_id_that_was_never_given_out_tells_no_more(world: World) -> None:
    """Who is limited to lanes can't tell another lane's task from none."""
    night = next(caller for caller in make_callers(world) if not caller.lane)
    told = [
        night.client.get(f"/api/v1/tasks/{key}").json()["detail"].replace(str(key), "ID")
        for key in (world.task.pk, UUID(int=7))
    ]
    assert told[0] == told[1]
