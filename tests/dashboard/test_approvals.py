"""Questions: the queue, the diff, the answer bound to what was shown, the race, the undo."""

from __future__ import annotations

import functools
import html
import re
from collections.abc import Callable
from typing import Any

import pytest
from django.test import Client
from django.urls import reverse

from ledger import clock, states
from ledger.errors import InvalidInput
from ledger.events import Actor
from ledger.models import Approval, Task
from ledger.transitions import approvals
from ledger.workflows import Workflow
from tests.dashboard.conftest import PART
from tests.factories import ask, claim, expire_lease, submit

pytestmark = pytest.mark.both_databases

DIFF = "--- a/x.py\n+++ b/x.py\n@@ -1,2 +1,2 @@\n import re\n-import os\n+import sys  # <b>\n"


@pytest.fixture
def approver(sign_in: Callable[..., Client]) -> Client:
    """An approver's browser."""
    return sign_in("approver")


def put(workflow: Workflow, **options: Any) -> Approval:
    """An open question of a new task."""
    task = submit(workflow, title="Ferry timetables")
    found = ask(claim(workflow), workflow, **options)
    assert found.task_id == task.id
    return Approval.objects.get(pk=found.pk)


def path_of(asked: Approval, name: str = "approval") -> str:
    """A page of the question."""
    return reverse(f"dashboard:{name}", args=[asked.id])


def answer(client: Client, asked: Approval, decision: str, **more: str) -> Any:
    """Send the form as the page had it; `headers` by keyword for htmx."""
    headers = more.pop("headers", {})
    form = {"decision": decision, "digest": asked.digest, "comment": "", **more}
    return client.post(path_of(asked, "answer"), form, headers=headers)  # type: ignore[arg-type]


def read_tag(text: str, element: str) -> str:
    """The tag that a polled part was sent with."""
    found = re.search(rf'id="{element}"[^>]* hx-ptag="([^"]*)"', text)
    assert found
    return found[1]


def test_the_queue_shows_first_what_expires_first(approver: Client, three: Workflow) -> None:
    late, soon = put(three, expires=9_000.0), put(three, expires=60.0)
    text = approver.get("/approvals/").content.decode()
    assert re.findall(r'id="queue-([0-9a-f-]{36})"', text) == [str(soon.id), str(late.id)]
    assert "<title>(2) Approvals · Longwatch</title>" in text


def test_an_empty_queue_says_who_answered_last(approver: Client, three: Workflow) -> None:
    assert b"No approvals waiting." in approver.get("/approvals/").content
    answer(approver, put(three), "approve")
    text = approver.get("/approvals/").content.decode()
    assert re.search(r"No approvals waiting\. Last one .* by approver\.", text, re.DOTALL)


def test_an_unchanged_queue_is_a_304(approver: Client, three: Workflow) -> None:
    asked = put(three)
    tag = read_tag(approver.get("/approvals/").content.decode(), "approval-queue")
    poll = approver.get("/approvals/", headers=PART | {"HX-PTag": tag})
    assert (poll.status_code, poll.content) == (304, b"")
    answer(approver, asked, "approve")
    poll = approver.get("/approvals/", headers=PART | {"HX-PTag": tag})
    assert poll.status_code == 200
    assert "Just decided" in poll.content.decode()


def test_the_question_shows_what_it_would_change(approver: Client, three: Workflow) -> None:
    payload = {
        "files": [{"path": "pkg/x.py", "diff": DIFF}],
        "left_alone": [{"path": "pkg/compat.py", "why": "2 import errors"}],
        "tests": {"before": {"ran": 283}, "after": {"ran": 283}},
        "extra": {"note": "see"},
    }
    asked = put(three, payload=payload, risk="high", send_back_to="a")
    text = approver.get(path_of(asked)).content.decode()
    for part in ("pkg/x.py", "+1</i> <u>\N{MINUS SIGN}1", "pkg/compat.py", "2 import errors",
                 '<th scope="row">Ran</th><td>283</td><td>283</td>', "risk set by step a",
                 "import sys  # &lt;b&gt;", "High risk",
                 "b runs at once", "Restarts from a", "&quot;note&quot;: &quot;see"):  # fmt: skip
        assert part in text, part
    assert re.search(r'<tr class="del"><td class="ln">2</td><td class="ln"></td>', text)


def test_a_long_diff_is_loaded_when_it_is_opened(approver: Client, three: Workflow) -> None:
    long = "@@ -1 +1,9 @@\n" + "+line\n" * 1_400
    files = [{"path": f"f{n}.py", "diff": long} for n in range(3)]
    asked = put(three, payload={"files": files})
    text = approver.get(path_of(asked)).content.decode()
    assert text.count('<tr class="add">') == 1_400
    later = re.findall(r'href="(/approvals/[^"]*/files/\d+/)"', text)
    assert len(later) == 2
    for path in later:
        assert approver.get(path).content.decode().count('<tr class="add">') == 1_400
        part = approver.get(path, headers=PART).content.decode()
        assert part.lstrip().startswith('<table class="diff"')
    assert approver.get(later[0].replace("/1/", "/9/")).status_code == 404


def test_an_approval_takes_effect_when_the_time_to_undo_is_over(
    approver: Client, three: Workflow
) -> None:
    asked = put(three)
    response = answer(approver, asked, "approve")
    assert response.status_code == 302
    task = Task.objects.get(pk=asked.task_id)
    assert (task.status, task.status_reason) == (states.WAITING, states.DECIDED)
    text = approver.get(path_of(asked)).content.decode()
    assert "takes effect" in text
    assert path_of(asked, "undo") in text
    assert approver.post(path_of(asked, "undo")).status_code == 302
    asked.refresh_from_db()
    assert asked.status == "open"
    answer(approver, asked, "approve")
    clock.offset = 9.0
    assert approvals.apply_decision(asked.task_id)
    task.refresh_from_db()
    assert (task.status, task.step_name) == (states.QUEUED, "b")
    late = approver.post(path_of(asked, "undo"))
    assert late.status_code == 409
    assert b"already approved" in late.content


def test_an_answer_with_a_script_sends_the_changed_parts(approver: Client, three: Workflow) -> None:
    asked = put(three)
    response = answer(approver, asked, "approve", headers=PART)  # type: ignore[arg-type]
    text = response.content.decode()
    assert response["HX-Retarget"] == "#decision"
    assert re.findall(r'<hx-partial hx-target="#([a-z-]+)"', text) == [
        "state",
        "settings",
        "approval-queue",
    ]
    assert path_of(asked, "undo") in text
    assert "</html>" not in text


@pytest.mark.parametrize(
    "options", [{"risk": "high"}, {"money": True}, {"outside_effect": True}], ids=str
)
@pytest.mark.parametrize("headers", [{}, PART], ids=["plain", "htmx"])
def test_what_can_not_be_undone_is_asked_twice(
    approver: Client, three: Workflow, options: dict[str, Any], headers: Any
) -> None:
    asked = put(three, **options)
    first = answer(approver, asked, "approve", comment="fine", headers=headers)
    text = first.content.decode()
    assert first.status_code == 200
    assert "There is no undo." in text
    asked.refresh_from_db()
    assert asked.status == "open"
    if headers:
        assert first["HX-Retarget"] == "#dialog"
    typed = dict(re.findall(r'<input type="hidden" name="(\w+)" value="([^"]*)">', text))
    typed.pop("csrfmiddlewaretoken", None)
    assert typed == {
        "decision": "approve", "digest": asked.digest, "comment": "fine", "confirmed": "1",
    }  # fmt: skip
    response = approver.post(path_of(asked, "answer"), typed, headers=headers)
    assert response.status_code == (200 if headers else 302)
    asked.refresh_from_db()
    assert (asked.status, asked.comment) == ("approved", "fine")
    assert asked.applied_at is not None


@pytest.mark.parametrize("decision", ["reject", "send_back"])
@pytest.mark.parametrize("headers", [{}, PART], ids=["plain", "htmx"])
def test_a_negative_answer_says_why(
    approver: Client, three: Workflow, decision: str, headers: Any
) -> None:
    asked = put(three, send_back_to="a")
    empty = answer(approver, asked, decision, headers=headers)
    assert empty.status_code == 422
    assert "Say what should change" in empty.content.decode()
    asked.refresh_from_db()
    assert asked.status == "open"
    response = answer(approver, asked, decision, comment="cite the source", headers=headers)
    assert response.status_code == (200 if headers else 302)
    asked.refresh_from_db()
    assert asked.comment == "cite the source"


@pytest.mark.parametrize("headers", [{}, PART], ids=["plain", "htmx"])
def test_the_loser_of_a_race_learns_who_decided_what(
    approver: Client, sign_in: Callable[..., Client], three: Workflow, headers: Any
) -> None:
    asked = put(three)
    answer(sign_in("operator", "winner"), asked, "reject", comment="too early")
    late = answer(approver, asked, "approve", comment="I typed this", headers=headers)
    assert late.status_code == 409
    text = late.content.decode()
    assert "already rejected" in text
    assert re.search(r"winner: rejected at <time.*?</time>, “too early”", text)
    assert "I typed this" in text


def test_an_answer_to_another_text_is_refused(approver: Client, three: Workflow) -> None:
    asked = put(three)
    late = answer(approver, asked, "approve", digest="0" * 64)
    assert late.status_code == 409
    assert b"The request has changed since you were shown it." in late.content
    asked.refresh_from_db()
    assert asked.status == "open"


def test_an_answer_after_the_deadline_is_refused(approver: Client, three: Workflow) -> None:
    asked = put(three, expires=60.0)
    expire_lease(61)
    assert answer(approver, asked, "approve").status_code == 409


def test_nobody_answers_for_what_they_submitted(approver: Client, three: Workflow) -> None:
    asked = put(three)
    me = Actor("user", approver.session["_auth_user_id"])
    Task.objects.filter(pk=asked.task_id).update(submitted_by=str(me))
    text = approver.get(path_of(asked)).content.decode()
    assert "You submitted this task; somebody else answers." in text
    assert 'name="decision"' not in text
    assert "You submitted these, someone else answers" in text
    forced = answer(approver, asked, "approve")
    assert forced.status_code == 403
    asked.refresh_from_db()
    assert asked.status == "open"


def test_a_viewer_reads_the_question_and_has_no_button(
    sign_in: Callable[..., Client], three: Workflow
) -> None:
    text = sign_in("viewer").get(path_of(put(three))).content.decode()
    assert "It takes the role approver to answer." in text
    assert 'name="decision"' not in text


def test_values_are_json_with_the_proposal_filled_in(approver: Client, three: Workflow) -> None:
    asked = put(three, form={"type": "object"}, proposal={"title": "Ä"})
    text = approver.get(path_of(asked)).content.decode()
    assert "&quot;title&quot;: &quot;Ä&quot;" in text
    for bad in ("{", "NaN", '{"a": Infinity}'):
        wrong = answer(approver, asked, "approve", values=bad)
        assert wrong.status_code == 422
        assert "This is no JSON" in wrong.content.decode()
    assert answer(approver, asked, "approve", values='{"title": "B"}').status_code == 302
    asked.refresh_from_db()
    assert asked.values == {"title": "B"}


@pytest.mark.parametrize(
    "form", [{}, {"decision": "maybe"}, {"decision": "approve"}, {"decision": "send_back"}]
)
def test_a_made_up_answer_changes_nothing(
    approver: Client, three: Workflow, form: dict[str, str]
) -> None:
    asked = put(three)
    assert approver.post(path_of(asked, "answer"), form).status_code in {409, 422}
    asked.refresh_from_db()
    assert asked.status == "open"


def test_a_poll_never_touches_a_form_that_somebody_may_type_in(
    approver: Client, sign_in: Callable[..., Client], three: Workflow
) -> None:
    asked = put(three)
    text = approver.get(path_of(asked)).content.decode()
    state = re.search(r'<div id="state".*?</div>', text, re.DOTALL)
    assert state
    assert "<form" not in state[0]
    tag = read_tag(text, "state")
    poll = approver.get(path_of(asked), headers=PART | {"HX-PTag": tag})
    assert (poll.status_code, poll.content) == (304, b"")
    answer(sign_in("operator"), asked, "approve")
    poll = approver.get(path_of(asked), headers=PART | {"HX-PTag": tag})
    assert poll.status_code == 200
    assert "hx-partial" not in poll.content.decode()
    assert "by operator" in poll.content.decode()
    # Once the answer is shown nobody types: the undo goes when its time is over, polls end.
    clock.offset = 9.0
    approvals.apply_decision(asked.task_id)
    poll = approver.get(path_of(asked), headers=PART | {"HX-PTag": poll["HX-PTag"]})
    text = poll.content.decode()
    assert '<hx-partial hx-target="#decision"' in text
    assert "hx-trigger" not in text
    assert path_of(asked, "undo") not in text


def test_the_pages_take_few_queries(
    approver: Client, three: Workflow, django_assert_max_num_queries: Any
) -> None:
    asked = [put(three) for _ in range(5)]
    with django_assert_max_num_queries(12):
        approver.get("/approvals/")
    with django_assert_max_num_queries(12):
        approver.get(path_of(asked[0]))


def test_a_body_is_markdown_and_cannot_do_harm(approver: Client, three: Workflow) -> None:
    asked = put(three, body="Read **this**. <script>x</script>")
    text = approver.get(path_of(asked)).content.decode()
    assert "<strong>this</strong>" in text
    assert "<script>x" not in text


def test_a_cut_diff_says_so_and_keeps_the_true_counts(approver: Client, three: Workflow) -> None:
    files = [{"path": "x.py", "diff": DIFF, "added": 900, "removed": 800, "cut": True}]
    asked = put(three, payload={"files": files})
    text = approver.get(path_of(asked)).content.decode()
    assert "+900</i>" in text
    assert "this is not the whole change" in text


def test_what_can_not_be_opened_can_not_be_approved(approver: Client, three: Workflow) -> None:
    part = {"path": "x.py", "diff": DIFF, "cut": True}
    asked = put(three, payload={"files": [part]})
    assert 'disabled aria-describedby="no-approve"' in approver.get(path_of(asked)).content.decode()
    forced = answer(approver, asked, "approve")
    assert forced.status_code == 422
    assert b"it can&#x27;t be approved" in forced.content
    asked.refresh_from_db()
    assert asked.status == "open"
    assert answer(approver, asked, "reject", comment="show all of it").status_code == 302

    whole = "01a226da-0000-7000-8000-00000000db66"
    asked = put(three, payload={"files": [part], "whole": whole})
    assert f'href="/artifacts/{whole}/"' in approver.get(path_of(asked)).content.decode()
    assert answer(approver, asked, "approve").status_code == 302


def test_a_diff_that_the_page_cuts_is_a_download(approver: Client, three: Workflow) -> None:
    diff = "@@ -1 +1,9 @@\n" + "+line\n" * 5_100
    asked = put(three, payload={"files": [{"path": "x.py", "diff": diff}]})
    path = f"{path_of(asked)}files/0/"
    assert f"{path}?whole" in approver.get(path).content.decode()
    whole = approver.get(f"{path}?whole")
    assert whole.content.decode() == diff
    assert whole["Content-Disposition"].startswith("attachment")
    assert answer(approver, asked, "approve").status_code == 302


FORM = {
    "type": "object",
    "required": ["title"],
    "properties": {
        "title": {"type": "string", "title": "Title of the report", "minLength": 3},
        "copies": {"type": "integer", "maximum": 9},
        "share": {"type": "number"},
        "tests": {"type": "boolean"},
        "kind": {"enum": ["patch", "archive"]},
        "names": {"type": "array", "items": {"type": "string"}},
        "more": {"type": "object"},
    },
}
PROPOSED = {
    "title": "Ferry", "copies": 1, "share": 0.5, "tests": True, "kind": "archive",
    "names": ["a", "b"], "more": {"x": 1}, "kept": 7,
}  # fmt: skip
TYPED = {
    "in-title": "Ferry times", "in-copies": "2", "in-share": "0.25", "in-kind": "patch",
    "in-names": "b\nc", "in-more": '{"y": 2}',
}  # fmt: skip


def test_a_form_has_a_field_for_each_property(approver: Client, three: Workflow) -> None:
    asked = put(three, form=FORM, proposal=PROPOSED)
    text = approver.get(path_of(asked)).content.decode()
    for part in (
        'name="in-title" type="text" value="Ferry"', 'inputmode="numeric" value="1"',
        'inputmode="decimal" value="0.5"', 'name="in-tests" checked',
        '<option value="archive" selected>', ">\na\nb</textarea>", "Proposed: Ferry",
        "Title of the report",
    ):  # fmt: skip
        assert part in text, part
    assert answer(approver, asked, "approve", **TYPED).status_code == 302
    asked.refresh_from_db()
    assert asked.values == {
        "title": "Ferry times", "copies": 2, "share": 0.25, "tests": False, "kind": "patch",
        "names": ["b", "c"], "more": {"y": 2}, "kept": 7,
    }  # fmt: skip
    assert asked.proposal == PROPOSED
    assert "Ferry times" in approver.get(path_of(asked)).content.decode()


@pytest.mark.parametrize("told", ["a\nb\n", "\na", "a\r\nb", "w" * 90])
def test_text_of_many_lines_is_approved_as_it_was_proposed(
    approver: Client, three: Workflow, told: str
) -> None:
    form = {"type": "object", "properties": {"told": {"type": "string"}}}
    asked = put(three, form=form, proposal={"told": told})
    text = html.unescape(approver.get(path_of(asked)).content.decode())
    shown = text.partition('name="in-told"')[2].partition(">\n")[2].partition("</textarea>")[0]
    answer(approver, asked, "approve", **{"in-told": shown.replace("\n", "\r\n")})
    asked.refresh_from_db()
    assert (asked.status, asked.values) == ("approved", {"told": told})


@pytest.mark.parametrize(
    ("typed", "field", "words"),
    [
        ({"in-title": ""}, "in-title", "Give it a value."),
        ({"in-title": "F"}, "in-title", "is too short"),
        ({"in-copies": "10"}, "in-copies", "greater than the maximum"),
        ({"in-copies": "many"}, "in-copies", "Enter a whole number."),
        ({"in-kind": "zip"}, "in-kind", "zip is not one of"),
        ({"in-more": "{"}, "in-more", "This is no JSON"),
        ({"in-more": "[1]"}, "in-more", "is not of type"),
    ],
)
@pytest.mark.parametrize("headers", [{}, PART], ids=["plain", "htmx"])
def test_a_wrong_value_is_said_at_its_field(
    approver: Client, three: Workflow, typed: dict[str, str], field: str, words: str, headers: Any
) -> None:
    asked = put(three, form=FORM, proposal=PROPOSED)
    wrong = answer(approver, asked, "approve", **(TYPED | typed), headers=headers)
    assert wrong.status_code == 422
    hint = re.search(rf'id="id_{field}-hint">([^<]*)<', wrong.content.decode())
    assert hint
    assert words in html.unescape(hint[1])
    asked.refresh_from_db()
    assert asked.status == "open"
    # Who rejects is not asked to mend the settings first.
    assert answer(approver, asked, "reject", comment="no", **(TYPED | typed)).status_code == 302


def test_what_was_typed_goes_through_the_second_question(approver: Client, three: Workflow) -> None:
    files = [{"path": name, "diff": DIFF} for name in ("a", "b", "c")]
    asked = put(three, form=FORM, proposal=PROPOSED, risk="high", payload={"files": files})
    form = {"decision": "approve", "digest": asked.digest, "comment": "", "seen": ["0", "2"]}
    text = approver.post(path_of(asked, "answer"), form | TYPED).content.decode()
    assert "1 of 3 files is not marked seen." in text
    assert "You changed 7 settings." in text
    found = re.findall(r'<input type="hidden" name="([^"]*)" value="([^"]*)">', text)
    sent = {name: html.unescape(value) for name, value in found if name != "csrfmiddlewaretoken"}
    assert approver.post(path_of(asked, "answer"), sent).status_code == 302
    asked.refresh_from_db()
    assert asked.values["names"] == ["b", "c"]


@pytest.mark.django_db
def test_the_ledger_refuses_values_that_do_not_fit(three: Workflow) -> None:
    asked = put(three, form=FORM, proposal=PROPOSED)
    decide = functools.partial(
        approvals.decide_approval, asked.id, decision="approve", actor=Actor("user", "9"),
        digest=asked.digest,
    )  # fmt: skip
    with pytest.raises(InvalidInput) as refused:
        decide(values={"title": "x"})
    assert refused.value.field == "values.title"
    decide()  # the proposal stands, and fits


def test_the_queue_offers_the_undo(approver: Client, three: Workflow) -> None:
    first, other = put(three), put(three)
    answer(approver, first, "approve")
    text = approver.get("/approvals/").content.decode()
    assert f'action="{path_of(first, "undo")}"' in text
    part = approver.post(path_of(first, "undo"), {"open": str(other.id)}, headers=PART)
    assert part.content.decode().lstrip().startswith('<div class="qrows" id="approval-queue"')
    assert 'aria-current="true"' in part.content.decode()
    first.refresh_from_db()
    assert first.status == "open"
    # Too late: the queue says what is true now.
    late = approver.post(path_of(first, "undo"), {"open": ""}, headers=PART)
    assert late.status_code == 200
    assert "<form" not in late.content.decode()


def test_a_poll_of_the_queue_keeps_what_is_chosen(approver: Client, three: Workflow) -> None:
    asked = put(three)
    text = approver.get(path_of(asked)).content.decode()
    path = re.search(r'hx-get="(/approvals/\?open=[^"]*)"', text)
    assert path
    tag = read_tag(text, "approval-queue")
    put(three)
    poll = approver.get(path[1], headers=PART | {"HX-PTag": tag})
    assert f'id="queue-{asked.id}"' in poll.content.decode()
    assert 'aria-current="true"' in poll.content.decode()
