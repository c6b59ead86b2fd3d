"""Many at once over REST: the parts that only a client meets."""

from __future__ import annotations

from typing import Any

import pytest
from django.test import Client

from ledger.bulk.doing import do_pending
from ledger.models import Approval, BulkOperation
from ledger.tokens import make_token
from ledger.workflows import Workflow
from tests.factories import ask, claim, submit

pytestmark = [pytest.mark.django_db, pytest.mark.both_databases]

PATH = "/api/v1/bulk"


def call(scope: str) -> Client:
    """A client with a token of this scope."""
    _, text = make_token("ci", ["read", scope], created_by="cli:ann")
    return Client(headers={"Authorization": f"Bearer {text}"})


def send(client: Client, body: dict[str, Any], **headers: str) -> Any:
    return client.post(PATH, body, content_type="application/json", headers=headers)


def put(flow: Workflow, **options: Any) -> dict[str, str]:
    submit(flow, priority=100, input={"subject": "ferries"})
    row = ask(claim(flow), flow, **options)
    return {"id": str(row.pk), "digest": row.digest}


def test_questions_are_answered_together_by_who_may_approve(workflow: Workflow) -> None:
    asked = [put(workflow) for _ in range(2)]
    body = {"action": "approve", "approvals": asked, "arguments": {"comment": "fine"}}
    assert send(call("operate"), body).status_code == 403
    approver = call("approve")
    first = send(approver, body, **{"Idempotency-Key": "k"})
    again = send(approver, body, **{"Idempotency-Key": "k"})
    assert (first.status_code, again.status_code) == (201, 200)
    shown = first.json()
    assert again.json()["id"] == shown["id"]
    assert (shown["selection"], shown["total"]) == ({"approvals": 2}, 2)
    while do_pending():
        pass
    items = approver.get(f"{PATH}/{shown['id']}/items").json()["items"]
    assert [(one["approval"], one["outcome"]) for one in items] == [
        (one["id"], "done") for one in asked
    ]
    # By the API an answer acts at once.
    assert set(Approval.objects.values_list("status", "comment")) == {("approved", "fine")}
    assert not Approval.objects.filter(applied_at__isnull=True).exists()


def test_a_request_that_is_wrong_begins_nothing(workflow: Workflow) -> None:
    one = put(workflow)
    approver = call("approve")
    for more in (
        {}, {"approvals": []}, {"approvals": [one], "tasks": [one["id"]]},
        {"approvals": [one], "arguments": {"values": 1}},
        {"approvals": [one], "action": "reject"}, {"approvals": [{"id": "x", "digest": ""}]},
    ):  # fmt: skip
        response = send(approver, {"action": "approve"} | more)
        assert response.status_code == 422, more
    stale = {"approvals": [one | {"digest": "0" * 64}]}
    assert send(approver, {"action": "approve"} | stale).status_code == 422
    assert send(call("operate"), {"action": "pause", "approvals": [one]}).status_code == 422
    assert not BulkOperation.objects.exists()


def test_each_kind_of_operation_is_stopped_by_who_may_begin_it(workflow: Workflow) -> None:
    approver, operator = call("approve"), call("operate")
    answers = send(approver, {"action": "approve", "approvals": [put(workflow)]}).json()["id"]
    submit(workflow, input={"subject": "tides"})
    tasks = send(operator, {"action": "pause", "filter": {}}).json()["id"]
    for client, own, other in ((approver, answers, tasks), (operator, tasks, answers)):
        assert (
            client.post(f"{PATH}/{other}/stop", {}, content_type="application/json").status_code
            == 403
        )
        assert (
            client.post(f"{PATH}/{own}/stop", {}, content_type="application/json").status_code
            == 200
        )
