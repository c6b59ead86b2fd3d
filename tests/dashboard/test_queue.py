"""The queue: whose turn it is, narrowed by the address, on to the next; the history of answers."""

from __future__ import annotations

import html
import re
from collections.abc import Callable
from typing import Any

import pytest
from django.contrib.auth.models import Group, User
from django.test import Client
from django.urls import reverse

from dashboard import queue
from ledger import clock
from ledger.events import Actor
from ledger.models import Approval, Reach, Task
from ledger.queries.seen import HIDDEN
from ledger.transitions import approvals
from ledger.workflows import Workflow
from tests.dashboard.conftest import PART
from tests.factories import ask, claim, make_workflow, submit

pytestmark = pytest.mark.both_databases
DIFF = "@@ -1 +1 @@\n-a\n+b\n"
ANN = Actor("cli", "ann")


@pytest.fixture
def approver(sign_in: Callable[..., Client]) -> Client:
    """An approver's browser."""
    return sign_in("approver")


def put(flow: Workflow, title: str = "Ferries", **options: Any) -> Approval:
    """An open question of a new task, which is first in line."""
    submit(flow, title=title, priority=100)
    return Approval.objects.get(pk=ask(claim(flow), flow, **options).pk)


def answer(client: Client, asked: Approval, query: str = "", **more: Any) -> Any:
    """Approve it, or what `more` says."""
    headers = more.pop("headers", {})
    form = {"decision": "approve", "digest": asked.digest, "comment": "", **more}
    path = reverse("dashboard:answer", args=[asked.id])
    return client.post(f"{path}{query}", form, headers=headers)


def list_shown(text: str) -> list[str]:
    """The ids of the questions in a queue, in order."""
    return re.findall(r'id="queue-([0-9a-f-]{36})"', text)


def list_groups(text: str) -> list[str]:
    """The headings of a queue with their counts."""
    found = re.findall(
        r'class="qgroup">([^<]*?)\s*(?:<span class="count">(\d+)</span>)?</h2>', text
    )
    return [" ".join(filter(None, pair)) for pair in found]


def test_the_queue_says_whose_turn_it_is(approver: Client, three: Workflow) -> None:
    me = User.objects.get()
    me.groups.add(Group.objects.create(name="legal"))
    own = put(three)
    Task.objects.filter(pk=own.task_id).update(submitted_by=f"user:{me.pk}")
    voted = put(three, votes=2)
    put(three)
    put(three, assignees=[f"user:{me.pk}"])
    put(three, assignees=["group:legal"])
    put(three, assignees=["group:board"])
    answer(approver, voted)
    assert list_groups(approver.get("/approvals/").content.decode()) == [
        "Yours to answer 2", "Your team\N{RIGHT SINGLE QUOTATION MARK}s 1",
        "You have voted, more votes are needed 1", "You submitted these, someone else answers 1",
        "For others 1",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("query", "found"),
    [("risk=high", 0), ("workflow=five", 1), ("kind=question&q=TIDES", 1), ("kind=limit", None),
     ("q=no+such", None), ("q=%00", 2)],
)  # fmt: skip
def test_the_address_narrows_the_queue_and_links_keep_it(
    approver: Client, three: Workflow, query: str, found: int | None
) -> None:
    asked = [put(three, risk="high"), put(make_workflow("five"), "Tides")]
    page = approver.get(f"/approvals/?{query}")
    text = page.content.decode()
    expected = [str(asked[1].id), str(asked[0].id)] if found == 2 else []
    expected = [str(asked[found].id)] if found in (0, 1) else expected
    assert (page.status_code, sorted(list_shown(text))) == (200, sorted(expected))
    if found is None:
        assert "Show all 2 waiting" in text
    elif found < 2:
        link = re.search(r'<a data-row href="([^"]*)"', text)
        poll = re.search(r'id="approval-queue" hx-get="([^"]*)"', text)
        assert link and poll  # noqa: PT018
        again = approver.get(poll[1].replace("&amp;", "&"), headers=PART).content.decode()
        beside = approver.get(link[1].replace("&amp;", "&")).content.decode()
        assert list_shown(again) == list_shown(beside) == expected


def test_a_wrong_filter_is_left_out_and_said(approver: Client, three: Workflow) -> None:
    asked = put(three)
    page = approver.get("/approvals/?risk=none")
    assert page.status_code == 422
    assert list_shown(page.content.decode()) == [str(asked.id)]
    assert "it takes one of low, medium, high. It is left out." in page.content.decode()


@pytest.mark.parametrize("headers", [{}, PART], ids=["plain", "htmx"])
def test_an_answer_leads_to_the_next_question_of_the_filter(
    approver: Client, three: Workflow, headers: Any
) -> None:
    first, other, last = put(three, expires=900), put(three, expires=950, risk="high"), put(three)

    def go(asked: Approval) -> str:
        response = answer(approver, asked, "?risk=low", headers=headers)
        return str(response.get("HX-Redirect") or response.get("Location"))

    assert go(first) == reverse("dashboard:approval", args=[last.id]) + "?risk=low"
    beside = approver.get(reverse("dashboard:approval", args=[last.id])).content.decode()
    assert 'class="qrows undoing"' in beside
    assert "Approved: Go on?" in beside
    text = approver.get("/approvals/").content.decode()
    undo = reverse("dashboard:undo", args=[first.id])
    assert f'action="{undo}"' in text
    approver.post(undo)
    # The last in line leads back to the first; where none is left the page stays.
    assert go(last) == reverse("dashboard:approval", args=[first.id]) + "?risk=low"
    answer(approver, first, "?risk=low")
    stays = answer(approver, other, "?risk=high", confirmed="1", headers=headers)
    assert str(other.id) in (stays.content.decode() if headers else stays["Location"])


def test_a_question_of_others_is_never_the_next(approver: Client, three: Workflow) -> None:
    put(three, assignees=["group:board"])
    asked = put(three)
    assert str(asked.id) in answer(approver, asked)["Location"]


def test_every_answer_is_kept_page_by_page(approver: Client, three: Workflow) -> None:
    asked = [put(three, title=f"Ferry {n}") for n in range(53)]
    for one in asked:
        approvals.decide_approval(
            one.pk, decision="reject", actor=ANN, digest=one.digest, comment=f"no {one.task.title}"
        )
        clock.offset += 1
    text = approver.get("/approvals/answers/").content.decode()
    older = re.search(r'href="\?(cursor=[^"]*)">Older', text)
    assert older
    rest = approver.get(f"/approvals/answers/?{older[1]}").content.decode()
    shown = [re.findall(r"no (Ferry \d+)</td>", page) for page in (text, rest)]
    assert [len(page) for page in shown] == [50, 3]
    assert shown[0] + shown[1] == [f"Ferry {n}" for n in reversed(range(53))]
    counts = {"q=ferry+52": 1, "by=cli:ann": 50, "by=user:9": 0, "status=approved": 0}
    for query, count in (counts | {"workflow=three&status=rejected": 50}).items():
        page = approver.get(f"/approvals/answers/?{query}").content.decode()
        assert page.count("<b>Rejected</b>") == count, query
    for wrong in ("status=open", "cursor=x"):
        page = approver.get(f"/approvals/answers/?{wrong}")
        assert (page.status_code, page.content.decode().count("<b>Rejected</b>")) == (422, 50)


def test_who_sees_no_contents_reads_no_comment(
    sign_in: Callable[..., Client], three: Workflow
) -> None:
    asked = put(three)
    approvals.decide_approval(
        asked.pk, decision="reject", actor=ANN, digest=asked.digest, comment="secret words"
    )
    viewer = sign_in("viewer")
    reach = Reach.objects.create(user=User.objects.get(username="viewer"), payload=False)
    text = viewer.get("/approvals/answers/").content.decode()
    assert ("secret words" in text, HIDDEN in text) == (False, True)
    Reach.objects.filter(pk=reach.pk).update(lanes=["night"])
    assert "No answers yet" in viewer.get("/approvals/answers/").content.decode()


def test_a_queue_that_is_cut_says_how_many_there_are(
    approver: Client, three: Workflow, monkeypatch: pytest.MonkeyPatch
) -> None:
    for _ in range(4):
        put(three)
    monkeypatch.setattr(queue, "MAX_WAITING", 3)
    monkeypatch.setattr("ledger.queries.questions.MAX_WAITING", 3)
    text = approver.get("/approvals/").content.decode()
    assert len(list_shown(text)) == 3
    assert "The first 3 of 4 by expiry are shown" in text


def ask_again(flow: Workflow, asked: Approval, **options: Any) -> Approval:
    """Send it back; the same step asks again in the next round."""
    approvals.decide_approval(
        asked.pk, decision="send_back", actor=ANN, digest=asked.digest, comment="look again"
    )
    return Approval.objects.get(pk=ask(claim(flow), flow, send_back_to="a", **options).pk)


def test_a_revised_question_shows_what_changed_since_it_was_looked_at(
    approver: Client, sign_in: Callable[..., Client], three: Workflow
) -> None:
    diff = "@@ -1 +1 @@\n-a\n+{}\n"
    files = [{"path": "a.py", "diff": diff.format("b")}, {"path": "gone.py", "diff": DIFF}]
    kept = {"path": "kept.py", "diff": DIFF}
    first = put(three, send_back_to="a", payload={"files": [*files, kept]}, body="Old words",
                proposal={"title": "A", "same": 1}, form={"type": "object"})  # fmt: skip
    path = reverse("dashboard:approval", args=[first.id])
    assert 'id="revised"' not in approver.get(path).content.decode()
    now = [{"path": "a.py", "diff": diff.format("c")}, {"path": "new.py", "diff": DIFF}, kept]
    second = ask_again(three, first, payload={"files": now}, body="New words",
                       proposal={"title": "B", "same": 1}, form={"type": "object"})  # fmt: skip
    page = approver.get(reverse("dashboard:approval", args=[second.id])).content.decode()
    files = page.partition('id="files-h"')[2].partition("</section>")[0]
    mark = r'<span class="mono">([\w.]+)</span>(?:<span class="tag is-fix">([^<]+)</span>)?'
    assert re.findall(mark, files) == [
        ("a.py", "changed since you looked"), ("new.py", "changed since you looked"),
        ("kept.py", ""),
    ]  # fmt: skip
    part = page.partition('id="revised"')[2].partition("</section>")[0]
    assert "Changed since you last looked" in part
    assert re.findall(r'<span class="mono">([\w.]+)</span> ([\w ]+)<', part) == [
        ("a.py", "is changed otherwise"), ("new.py", "is changed now"),
        ("gone.py", "is left as it was now"),
    ]  # fmt: skip
    for words in ("<del>A</del>", "<ins>B</ins>", "<del>Old</del>", "<ins>New</ins>", "look again"):
        assert words in part, words
    # Who never looked at the first is told of what it was asked before.
    other = sign_in("operator").get(reverse("dashboard:approval", args=[second.id]))
    assert "Changed since it was asked before" in other.content.decode()


def test_what_is_new_is_told_from_the_version_that_was_looked_at_last(
    approver: Client, three: Workflow
) -> None:
    first = put(three, send_back_to="a", body="one")
    approver.get(reverse("dashboard:approval", args=[first.id]))
    second = ask_again(three, first, body="two")
    third = ask_again(three, second, body="three")
    page = approver.get(reverse("dashboard:approval", args=[third.id])).content.decode()
    part = page.partition('id="revised"')[2].partition("</section>")[0]
    assert re.findall(r'class="tx">(\w+)</td>', part) == ["one", "three"]


def test_earlier_answers_stand_beside_the_question(approver: Client, three: Workflow) -> None:
    elsewhere = put(three, title="Tides", send_back_to="a")
    approvals.decide_approval(
        elsewhere.pk, decision="reject", actor=ANN, digest=elsewhere.digest, comment="cite it"
    )
    asked = ask_again(three, put(three, send_back_to="a"))
    foreign = put(make_workflow("five"))
    approvals.decide_approval(foreign.pk, decision="approve", actor=ANN, digest=foreign.digest)
    page = approver.get(reverse("dashboard:approval", args=[asked.id])).content.decode()
    before, lazy = page.partition('id="before-h"')[2].partition('id="elsewhere"')[::2]
    path = re.search(r'hx-get="([^"]*)"', lazy)
    assert path
    there = approver.get(path[1], headers=PART).content.decode()
    assert re.search(r"Sent back by cli ann.*look again", before, re.DOTALL)
    assert re.search(r"Rejected by cli ann.*Tides.*cite it", there, re.DOTALL)
    assert str(foreign.id) not in there
    alike = re.search(r'href="(/approvals/answers/[^"]*)"', lazy)
    assert alike
    assert approver.get(html.unescape(alike[1])).content.decode().count("data-row") == 2


def test_a_call_of_a_tool_is_asked_about_in_words_and_shown_once(
    approver: Client, three: Workflow
) -> None:
    args = {"to": "ann@example.org"}
    schema = {"type": "object", "properties": {"to": {"type": "string"}}}
    call = {"tool": "send_mail", "arguments": args, "call": "c1"}
    asked = put(three, payload=call, proposal=args, form=schema, then="again", on_reject="again")
    text = html.unescape(
        approver.get(reverse("dashboard:approval", args=[asked.id])).content.decode()
    )
    assert "The call of send_mail is made with the arguments as they stand here" in text
    assert "The call is not made; the agent is told no, with your comment" in text
    assert text.count('value="ann@example.org"') == 1
    assert "Full request" not in text
    assert 'aria-label="Arguments"' not in text
    bare = put(three, payload=call, proposal=args, then="again", on_reject="again")
    text = html.unescape(
        approver.get(reverse("dashboard:approval", args=[bare.id])).content.decode()
    )
    assert text.count("ann@example.org") == 1
