"""Admins' browsers, and a row in every table, full of text that must not be believed."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from django.test import Client

from ledger import clock, limits, sql, tokens
from ledger.events import Actor
from ledger.models import (
    AlertCondition,
    AlertDelivery,
    AlertRule,
    Approval,
    ApprovalLook,
    Artifact,
    AuditEntry,
    Blob,
    BulkItem,
    BulkOperation,
    Effect,
    Event,
    Handoff,
    Hour,
    HourSum,
    Lane,
    LiveLog,
    Outbox,
    Preference,
    Reach,
    SavedView,
    Signal,
    Tally,
    Task,
    Upload,
    UploadPart,
    Visit,
    Worker,
)
from ledger.transitions import approvals
from ledger.workflows import Workflow, registered
from tests.dashboard.conftest import make_user
from tests.factories import LEASE, OWNER, ask, claim, make_effect, make_unit, make_workflow, submit

HOSTILE = "<script>alert(1)</script> \"'><img src=x onerror=alert(2)> {{ 7 }} \u202egnp.exe"


@pytest.fixture
def flow(db: None) -> Iterator[Workflow]:
    """A workflow of the steps a, b, c that this process knows."""
    workflow = make_workflow(self_approval=True)
    with registered(workflow):
        yield workflow


@pytest.fixture
def admin(db: None) -> Client:
    """The browser of a member of the group admin, no superuser and no staff."""
    client = Client()
    client.force_login(make_user("admin"))
    return client


@pytest.fixture
def full(flow: Workflow) -> Task:
    """A task that waits for its second answer, with a row in every table."""
    task = submit(flow, title=HOSTILE[:200], tags=["<b>"], input={"text": HOSTILE},
                  key="<key>", lane="<lane>")  # fmt: skip
    held = claim(flow, lane="<lane>")
    limits.reserve_amount(held, key="<hold>", cost="0.1")
    limits.record_spend(held, key="<spend>", tokens_in=1, cost="0.5", note=HOSTILE)
    unit = make_unit(held, flow, output='{"text":"<script>"}', log_tail=HOSTILE)
    assert sql.checkpoint_unit(held, unit, lease_seconds=LEASE, groups=None)
    held = sql.read_task(Task.objects.get(pk=task.pk))
    request = ask(held, flow, body=HOSTILE, payload={"long": HOSTILE * 500})
    approvals.decide_approval(
        request.pk, decision="approve", actor=make_actor(), digest=request.digest,
        comment=HOSTILE, undo_seconds=100,
    )  # fmt: skip
    now = clock.read()
    Signal.objects.create(task=task, name=HOSTILE[:100], data=HOSTILE, by="<by>", at=now)
    blob = Blob.objects.create(digest="ab" * 32, size=1, created_at=now)
    Artifact.objects.create(task=task, name=HOSTILE, media_type="text/html", blob=blob,
                            created_at=now, created_by=OWNER)  # fmt: skip
    upload = Upload.objects.create(name=HOSTILE, media_type="<type>", size=1, sha256="<sum>",
                                   slot=0, created_at=now, created_by="<by>",
                                   expires_at=now)  # fmt: skip
    UploadPart.objects.create(upload=upload, offset=0, blob=blob)
    Effect.objects.filter(pk=make_effect(task, HOSTILE[:100]).pk).update(args=HOSTILE)
    Handoff.objects.create(task=task, step="<step>", turn=0, round=0, fence=1, digest="<digest>",
                           text=HOSTILE * 500, at=now)  # fmt: skip
    Lane.objects.create(name=HOSTILE[:100], updated_at=now)
    LiveLog.objects.create(task=task, step="<step>", turn=0, fence=1, size=9, text=HOSTILE, at=now)
    AuditEntry.objects.create(at=now, actor="<actor>", action="<do>", target=HOSTILE[:200],
                              task=task.pk, before={"a": HOSTILE}, reason=HOSTILE)  # fmt: skip
    Worker.objects.create(owner="<worker>", host="<host>", pid=1, started_at=now, seen_at=now)
    rule = AlertRule.objects.create(name="<rule>", kinds=["<kind>"], channel="webhook", lane="<b>",
                                    target="http://a/<key>", secret="<secret>", created_by="<by>",
                                    created_at=now, updated_at=now, next_at=now)  # fmt: skip
    Visit.objects.create(actor="<actor>", seen_at=now)
    bulk = BulkOperation.objects.create(action="<do>", actor="<actor>", selection={"a": HOSTILE},
                                        total=1, created_at=now, reason=HOSTILE)  # fmt: skip
    BulkItem.objects.create(operation=bulk, task=task.pk, why=HOSTILE)
    ApprovalLook.objects.create(approval=Approval.objects.latest("requested_at"), by="<b>", at=now)
    SavedView.objects.create(name="<view>", owner="<actor>", filters=[["q", HOSTILE[:90]]],
                             created_at=now, updated_at=now)  # fmt: skip
    told = Outbox.objects.create(at=now, kind="<kind>", data={"title": HOSTILE})
    AlertDelivery.objects.create(rule=rule, outbox=told, seq=1, created_at=now, error=HOSTILE[:90])
    AlertCondition.objects.create(key=f"<key>{HOSTILE}", kind="<kind>", since=now)
    Hour.objects.create(hour=1)
    Tally.objects.create(name="<name>", workflow=HOSTILE[:90], detail="<kind>", value=1)
    HourSum.objects.create(hour=1, lane="<b>", workflow="<b>", version="<b>", status="failed",
                           tasks=1, cost=1, tokens=1, repairs=0, seconds=0)  # fmt: skip
    Preference.objects.create(user=make_user("viewer", "likes"), zone="<zone>", view="<view>")
    Reach.objects.create(user=make_user("viewer", "reached"), lanes=["<b>", HOSTILE[:90]])
    tokens.make_token("<token>", ["read"], created_by="cli:<me>")
    Event.objects.create(task=task, seq=99, at=now, kind="<kind>", actor=HOSTILE[:200],
                         step="<step>", fence=1, data={"text": HOSTILE * 500})  # fmt: skip
    task.refresh_from_db()
    return task


def make_actor() -> Actor:
    """Who answers."""
    return Actor("user", "99")
