"""What a question's page shows beside its text: artifacts, two versions compared, whose turn it is,
who set the risk, what an answer changed."""

from __future__ import annotations

import html
import io
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from django.contrib.auth import get_user_model
from django.test import Client
from django.urls import reverse

from dashboard import comparing
from ledger import artifacts, clock, sweeper
from ledger.errors import InvalidInput
from ledger.events import Actor
from ledger.models import Approval, Artifact, Reach
from ledger.outcomes import AskApproval
from ledger.transitions import approvals, asking
from ledger.workflows import Workflow
from tests.factories import ask, claim, submit

pytestmark = pytest.mark.both_databases
OLD = "Ferries\n08:00 Naxos\n12:00 Paros\n" + "".join(f"{n}\n" for n in range(20))
NEW = OLD.replace("08:00", "08:30").replace("19\n", "19 <b>")


@pytest.fixture(autouse=True)
def store(settings: Any, tmp_path: Path) -> Path:
    settings.LONGWATCH_ARTIFACTS = str(tmp_path / "artifacts")
    return tmp_path / "artifacts"


@pytest.fixture
def approver(sign_in: Callable[..., Client]) -> Client:
    """An approver's browser."""
    return sign_in("approver")


def put(flow: Workflow, *files: tuple[str, str | bytes], **options: Any) -> Approval:
    """An open question of a new task whose step saved these files; `diff` takes their indexes."""
    submit(flow, title="Ferry timetables")
    held = claim(flow)
    saved = [artifacts.save_artifact(held, name, content) for name, content in files]
    for key in ("artifacts", "diff"):
        if key in options:
            options[key] = [saved[index] for index in options[key]]
    found: Approval = ask(held, flow, **options)
    return found


def read(client: Client, asked: Approval) -> str:
    """The page, as text."""
    return html.unescape(
        client.get(reverse("dashboard:approval", args=[asked.pk])).content.decode()
    )


def approve(client: Client, asked: Approval, **more: str) -> Any:
    """Send the form as the page had it."""
    form = {"decision": "approve", "digest": asked.digest, "comment": "", **more}
    return client.post(reverse("dashboard:answer", args=[asked.pk]), form)  # type: ignore[arg-type]


def test_two_versions_of_an_artifact_are_shown_as_one_diff(
    approver: Client, three: Workflow
) -> None:
    asked = put(three, ("old.txt", OLD), ("new.txt", NEW), diff=(0, 1))
    text = read(approver, asked)
    assert "old.txt → new.txt" in text
    assert "<i>+2</i> <u>\N{MINUS SIGN}2" in text
    assert "<ins>30</ins>" in text
    assert "19 <b>" in text
    assert "&lt;b&gt;" in approver.get(f"/approvals/{asked.pk}/").content.decode()
    assert "No newline at end of file" in text
    for row in Artifact.objects.all():
        assert f"/artifacts/{row.pk}/" in text
    assert approve(approver, asked).status_code == 302


@pytest.mark.parametrize(
    ("old", "new", "why"),
    [
        (b"\x00\x01", "text", "they are no text"),
        ("a\n", b"\xff\xfe", "they are no text"),
        ("a\n" * (comparing.MAX_LINES + 1), "a", "they are too long"),
        ("a" * (comparing.MAX_BYTES + 1), "a", "they are too large"),
        ("a", "a", "their bytes are the same"),
    ],
    ids=["nul", "bytes", "lines", "size", "same"],
)
def test_what_can_not_be_compared_can_be_downloaded(
    old: str | bytes, new: str | bytes, why: str, approver: Client, three: Workflow
) -> None:
    asked = put(three, ("report", old), ("report.new", new), diff=(0, 1))
    text = read(approver, asked)
    assert f"Not compared here: {why}." in text
    assert '<table class="diff"' not in text
    assert approve(approver, asked).status_code == 302


def test_what_has_lost_its_bytes_can_not_be_approved(
    approver: Client, three: Workflow, store: Path
) -> None:
    asked = put(three, ("old.txt", "lost a"), ("new.txt", "lost b"), diff=(0, 1))
    for file in store.rglob("*"):
        if file.is_file():
            file.unlink()
    assert "its bytes can't be read" in read(approver, asked)
    assert approve(approver, asked).status_code == 422
    asked.refresh_from_db()
    assert asked.status == "open"


def test_artifacts_are_listed_and_the_digest_is_of_their_content(
    approver: Client, three: Workflow
) -> None:
    first = put(three, ("report.md", "# One"), ("table.csv", "a,b"), artifacts=[0, 1])
    text = read(approver, first)
    assert "2 files" in text
    for row in Artifact.objects.all():
        assert re.search(rf'href="/artifacts/{row.pk}/"[^>]*>.*?{row.name}', text, re.DOTALL)
    shown = approver.get(f"/api/v1/approvals/{first.pk}").json()
    assert [one["name"] for one in shown["artifacts"]] == ["report.md", "table.csv"]
    other = put(three, ("report.md", "# Two"), ("table.csv", "a,b"), artifacts=[0, 1])
    plain = put(three)
    assert len({first.digest, other.digest, plain.digest}) == 3


def test_who_sees_no_contents_sees_no_artifacts(
    sign_in: Callable[..., Client], three: Workflow
) -> None:
    asked = put(three, ("salaries.csv", "a"), ("new.csv", "b"), artifacts=[0], diff=(0, 1))
    blind = sign_in("approver", "blind")
    Reach.objects.create(user=get_user_model().objects.get(username="blind"), payload=False)
    text = read(blind, asked) + str(blind.get(f"/api/v1/approvals/{asked.pk}").json())
    assert asked.subject in text
    assert "salaries.csv" not in text
    assert str(Artifact.objects.get(name="new.csv").pk) not in text


@pytest.mark.django_db
def test_only_the_tasks_own_artifacts_are_shown(three: Workflow) -> None:
    put(three, ("theirs.txt", "secret"))
    theirs = Artifact.objects.get()
    held = claim_new(three)
    upload = artifacts.store_upload(io.BytesIO(b"up"), "input.txt", actor="token:1")
    found = asking.describe_attached(held, AskApproval("Go on?", artifacts=[upload]))
    assert found is not None
    for ref in (theirs, theirs.pk, "theirs.txt", "none"):
        with pytest.raises(InvalidInput, match=r"diff=.*no artifact of this task"):
            asking.describe_attached(held, AskApproval("Go on?", diff=(upload, ref)))


def claim_new(flow: Workflow) -> Any:
    """The id of a new task that a worker holds."""
    submit(flow)
    return claim(flow).task_id


def test_the_page_says_who_set_the_risk(approver: Client, three: Workflow) -> None:
    three.risk_floor = "high"
    text = read(approver, put(three, risk="medium"))
    assert "High risk" in text
    assert "risk set by the workflow\N{RIGHT SINGLE QUOTATION MARK}s floor" in text
    assert "b runs at once. Can\N{RIGHT SINGLE QUOTATION MARK}t be undone." in text


def test_the_page_says_whose_turn_it_is_and_who_is_next(approver: Client, three: Workflow) -> None:
    leads = [("group:leads", 7200), (["group:board"], 3600)]
    asked = put(three, expires=600, remind=120, assignees=["user:99"], escalate=leads)
    text = read(approver, asked)
    assert "Only user 99, but not the submitter" in text
    assert "This question is for user 99." in text
    assert (
        "it is passed on to group leads for 2 h, then to group board for 1 h. After that, " in text
    )
    assert "The next reminder comes at" in text
    queue = approver.get("/approvals/").content.decode()
    assert re.search(r"For others.*queue-", queue, re.DOTALL)
    assert "No approvals waiting for you." in queue
    clock.offset += 601
    sweeper.sweep()
    clock.offset += 121
    sweeper.sweep()
    text = read(approver, asked)
    assert "Passed on to group leads" in text
    assert "it is passed on to group board for 1 h. After that, " in text
    assert "Reminded 1 time." in text
    shown = approver.get(f"/api/v1/approvals/{asked.pk}").json()
    assert (shown["assignees"], shown["reminders"]) == (["group:leads"], 1)
    assert shown["escalation"] == [{"assignees": ["group:board"], "seconds": 3600.0}]


def test_what_an_answer_changed_stands_beside_the_proposal(
    approver: Client, three: Workflow
) -> None:
    form = {"type": "object", "properties": {"to": {"type": "string"}, "n": {"type": "integer"}},
            "required": ["n"]}  # fmt: skip
    proposal = {"to": "Naxos", "n": 4}
    asked = put(three, form=form, proposal=proposal)
    approvals.decide_approval(
        asked.pk, decision="approve", actor=Actor("user", "9"), digest=asked.digest,
        values={"to": "Paros", "n": 4, "at": "noon"}, undo_seconds=8,
    )  # fmt: skip
    asked.refresh_from_db()
    assert asked.proposal == proposal
    text = read(approver, asked)
    assert '<th scope="row">to</th><td><del>Naxos</del></td><td><ins>Paros</ins></td>' in text
    assert '<th scope="row">at</th><td><del></del></td><td><ins>noon</ins></td>' in text
    assert '<th scope="row">n</th>' not in text
    assert approver.get(f"/api/v1/approvals/{asked.pk}").json()["edits"] == [
        {"name": "to", "proposed": "Naxos", "answered": "Paros"},
        {"name": "at", "proposed": None, "answered": "noon"},
    ]
    same = put(three, form=form, proposal=proposal)
    approve(approver, same, to="x")
    plain = {"decision": "approve", "actor": Actor("user", "9"), "digest": same.digest}
    with_none = put(three, form=form, proposal=proposal)
    approvals.decide_approval(with_none.pk, **{**plain, "digest": with_none.digest})
    assert "Answered as proposed." in read(approver, with_none)
