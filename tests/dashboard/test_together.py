"""Several questions at once on the pages: chosen by kind, previewed, answered as shown."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.test import Client

from ledger.bulk.doing import do_pending
from ledger.bulk.making import make_operation
from ledger.bulk.selecting import Selection
from ledger.models import Approval, BulkItem, BulkOperation, Reach, Task
from ledger.tokens import make_token
from ledger.workflows import Workflow
from tests.dashboard.test_queue import list_groups, list_shown, put
from tests.factories import CLIENT, make_workflow, submit

pytestmark = pytest.mark.both_databases

PATH = "/approvals/together/"


@pytest.fixture
def approver(sign_in: Callable[..., Client]) -> Client:
    """An approver's browser."""
    return sign_in("approver")


def read_form(response: Any, number: int = 1) -> dict[str, list[str]]:
    """The hidden fields of a form of the page, of several the one with this number."""
    text = response.content.decode()
    form = re.findall(r'<form class="(?:bulkf|gsec tog)".*?</form>', text, re.DOTALL)[number - 1]
    fields: dict[str, list[str]] = {}
    for tag in re.findall(r'<input type="hidden"[^>]*>', form):
        name, value = re.search(r'name="([^"]*)"', tag), re.search(r'value="([^"]*)"', tag)
        assert name
        fields.setdefault(name[1], []).append(value[1] if value else "")
    return fields


def look(client: Client, action: str, rows: list[Approval]) -> Any:
    """The preview, by the way a browser takes."""
    pairs = [f"{row.pk}:{row.digest}" for row in rows]
    sent = client.post(PATH, {"action": action, "asked": pairs})
    return sent if sent.status_code != 303 else client.get(sent["Location"])


def finish() -> dict[str, int]:
    while do_pending():
        pass
    rows = list(BulkItem.objects.values_list("outcome", flat=True))
    return {name: rows.count(name) for name in set(rows)}


def test_a_whole_kind_is_chosen_previewed_and_approved(approver: Client, three: Workflow) -> None:
    rows = [put(three, f"Ferry {n}", body=f"Body **{n}**") for n in range(2)]
    other = put(make_workflow("five"), "Tides")
    queue = approver.get("/approvals/?q=e").content.decode()
    assert f'href="{PATH}?q=e"' in queue
    page = approver.get(PATH)
    text = page.content.decode()
    assert text.count('class="gsec tog"') == 2
    assert "<strong>1</strong>" in text
    sent = approver.post(PATH, read_form(page) | {"action": "approve", "whole": "1"})
    preview = approver.get(sent["Location"])
    text = preview.content.decode()
    assert "Approve 2 questions" in text
    assert "<strong>0</strong>" in text
    assert "b runs." in text
    assert "Each takes effect 8 s after it is stored" in text
    assert "Tides" not in text
    done = approver.post(PATH, read_form(preview) | {"do-comment": "fine"})
    assert done.status_code == 303
    assert finish() == {"done": 2}
    states = {row.pk: row for row in Approval.objects.all()}
    assert [states[row.pk].status for row in (*rows, other)] == ["approved", "approved", "open"]
    assert {states[row.pk].comment for row in rows} == {"fine"}
    shown = approver.get(done["Location"]).content.decode()
    assert "Approve 2 questions" in shown
    assert f"/approvals/{rows[0].pk}/" in shown
    # The undo window is the one of a single answer, in the queue.
    assert approver.get("/approvals/").content.decode().count('data-key="z"') == 2


def test_the_preview_leaves_out_what_is_not_to_be_approved_so_and_says_why(
    approver: Client, three: Workflow
) -> None:
    me = User.objects.get()
    low, high, mine = put(three, "Low"), put(three, "High", risk="high"), put(three, "Mine")
    Task.objects.filter(pk=mine.task_id).update(submitted_by=f"user:{me.pk}")
    files = {"files": [{"path": "a", "diff": "@@ -1 +1 @@\n-a\n+b\n"}]}
    long = [put(three, "Files", payload=files), put(three, "Body", body="x" * 5_000)]
    page = look(approver, "approve", [low, high, mine, *long])
    text = page.content.decode()
    assert "5 are chosen; it applies to 1." in text
    for why in ("Its risk is high;", "You submitted it", "more to look at than a list shows"):
        assert why in text
    fields = read_form(page)
    assert fields["asked"] == [f"{low.pk}:{low.digest}"]
    # A form that says otherwise is not believed.
    fields["asked"] += [f"{one.pk}:{one.digest}" for one in (high, mine, *long)]
    assert approver.post(PATH, fields).status_code == 303
    assert finish() == {"done": 1, "skipped": 2}
    assert set(Approval.objects.exclude(pk=low.pk).values_list("status", flat=True)) == {"open"}
    rejected = look(approver, "reject", [high, *long])
    assert "Reject 3 questions" in rejected.content.decode()
    assert "Of 1 there is no undo." in rejected.content.decode()
    assert approver.post(PATH, read_form(rejected)).status_code == 422
    assert approver.post(PATH, read_form(rejected) | {"do-comment": "no"}).status_code == 303
    assert finish() == {"done": 4, "skipped": 2}


def test_what_changed_since_the_preview_is_refused_and_told_apart(
    approver: Client, three: Workflow
) -> None:
    kept, revised = put(three, "Kept"), put(three, "Revised")
    preview = look(approver, "approve", [kept, revised])
    Approval.objects.filter(pk=revised.pk).update(digest="f" * 64)
    done = approver.post(PATH, read_form(preview))
    assert finish() == {"done": 1, "refused": 1}
    text = approver.get(f"{done['Location']}&outcome=refused").content.decode()
    assert "It has changed since you looked" in text
    assert Approval.objects.get(pk=revised.pk).status == "open"
    late = look(approver, "approve", [kept])
    assert "There is none that can be answered so." in late.content.decode()
    assert approver.post(PATH, read_form(late)).status_code == 422


def test_over_25_the_number_is_typed_and_two_kinds_are_refused(
    approver: Client, three: Workflow
) -> None:
    rows = [put(three) for _ in range(26)]
    preview = look(approver, "approve", rows[:26])
    assert "Type 26 to confirm" in preview.content.decode()
    assert approver.post(PATH, read_form(preview) | {"do-typed": "25"}).status_code == 422
    assert not BulkOperation.objects.exists()
    assert approver.post(PATH, read_form(preview) | {"do-typed": "26"}).status_code == 303
    finish()
    two = look(approver, "approve", [rows[0], put(make_workflow("five"))])
    assert two.status_code == 200  # what is answered already is of no kind
    two = look(approver, "approve", [put(three), put(make_workflow("six"))])
    assert two.status_code == 422
    assert "one operation answers one kind" in two.content.decode()


@pytest.mark.parametrize("sent", [{"action": "approve"}, {"action": "send_back", "asked": "x:y"},
                                  {"action": "approve", "asked": "x"},
                                  {"action": "approve", "asked": f"{'0' * 32}:y"}])  # fmt: skip
def test_a_choice_that_is_wrong_begins_nothing(approver: Client, sent: dict[str, str]) -> None:
    assert approver.post(PATH, sent | {"go": "1"}).status_code == 422
    assert not BulkOperation.objects.exists()


def test_it_is_for_approvers_who_see_contents(
    sign_in: Callable[..., Client], three: Workflow
) -> None:
    row = put(three)
    put(three)
    assert sign_in("viewer").get(PATH).status_code == 403
    blind = sign_in("approver")
    Reach.objects.create(user=User.objects.get(username="approver"), payload=False)
    assert PATH not in blind.get("/approvals/").content.decode()
    refused = blind.get(PATH)
    assert refused.status_code == 403
    assert "permission payload" in refused.content.decode()
    Reach.objects.update(payload=True, lanes=["elsewhere"])
    assert look(blind, "approve", [row]).status_code == 422
    assert "Nothing to answer" in blind.get(PATH).content.decode()


def test_who_may_answer_stops_an_operation_on_answers_and_no_other(
    approver: Client, three: Workflow
) -> None:
    done = approver.post(PATH, read_form(look(approver, "approve", [put(three), put(three)])))
    path = done["Location"].partition("?")[0]
    do_pending(limit=1)
    assert b"Stop</button>" in approver.get(path).content
    assert approver.post(f"{path}stop/").status_code == 303
    assert finish() == {"done": 1, "stopped": 1}
    submit(three)
    row, _ = make_operation("pause", Selection(), actor=CLIENT)
    assert approver.post(f"/bulk/{row.pk}/stop/").status_code == 403


def test_what_ones_own_token_submitted_is_ones_own_in_the_queue(
    approver: Client, three: Workflow, django_assert_max_num_queries: Any
) -> None:
    me = User.objects.get()
    token, _ = make_token("ci", ["submit"], created_by=f"user:{me.pk}", owner=f"user:{me.pk}")
    mine, child = put(three), put(three)
    Task.objects.filter(pk=mine.task_id).update(submitted_by=f"token:{token.pk}")
    Task.objects.filter(pk=child.task_id).update(
        parent=mine.task_id, submitted_by=f"task:{mine.task_id}"
    )
    free = put(three)
    with django_assert_max_num_queries(12):
        text = approver.get("/approvals/").content.decode()
    assert list_groups(text)[:2] == [
        "Yours to answer 1", "You submitted these, someone else answers 2",
    ]  # fmt: skip
    assert list_shown(text)[0] == str(free.pk)
