"""What a person does to many tasks at once; tests/e2e/test_actions.py drives it in three ways."""

from __future__ import annotations

from collections.abc import Callable

from ledger.bulk.doing import do_pending
from ledger.bulk.making import make_operation
from ledger.bulk.selecting import Selection
from ledger.models import Approval, BulkOperation, Task
from ledger.workflows import Workflow
from tests.e2e.approval_scripts import put
from tests.e2e.hands import Mouse
from tests.factories import CLIENT, make_workflow, submit

SELECT_ALL = "/bulk/new/?action=cancel&all=1&lane=default"


def begin(hands: Mouse, three: Workflow) -> None:
    for _ in range(26):
        submit(three)
    hands.page.goto(SELECT_ALL)
    hands.write("Reason", "wrong input")
    hands.write("Type 26 to confirm", "26")
    hands.press("Cancel 26 tasks")
    hands.find("Cancel 26 tasks", "heading").wait_for()
    hands.page.get_by_text("No worker beats, so nothing is done").wait_for()
    while do_pending():
        pass
    if not hands.script:
        hands.page.reload()
    hands.page.get_by_text("26 of 26").wait_for()
    operation = BulkOperation.objects.get()
    assert (operation.reason, operation.status) == ("wrong input", "done")
    assert Task.objects.filter(status="cancelled").count() == 26
    hands.press("Back to the list", "link")
    hands.find("Tasks", "heading").wait_for()
    assert "lane=default" in hands.page.url


def stop(hands: Mouse, three: Workflow) -> None:
    submit(three)
    operation, _ = make_operation("pause", Selection(), actor=CLIENT)
    hands.page.goto(f"/bulk/{operation.pk}/")
    hands.press("Stop")
    hands.page.get_by_text("stopped by").wait_for()
    operation.refresh_from_db()
    assert operation.status == "stopped"
    assert Task.objects.get().status == "queued"


def answer_together(hands: Mouse, three: Workflow) -> None:
    rows = [put(three, f"Ferry {number}") for number in range(3)]
    put(make_workflow("five"), "Tides")
    hands.page.goto("/approvals/")
    hands.press("Answer several at once", "link")
    hands.tick("Go on? Ferry 0")
    hands.tick("Go on? Ferry 2")
    hands.press("Approve… of three, a")
    hands.find("Approve 2 questions", "heading").wait_for()
    hands.write("Comment", "seen both")
    hands.press("Approve 2 questions")
    hands.page.get_by_text("each as it was shown").wait_for()
    while do_pending():
        pass
    states = dict(Approval.objects.values_list("pk", "status"))
    assert [states[row.pk] for row in rows] == ["approved", "open", "approved"]
    assert list(states.values()).count("open") == 2
    hands.press("Back to the list", "link")
    hands.page.wait_for_url("**/approvals/")


SCRIPTS: dict[str, Callable[[Mouse, Workflow], None]] = {
    "bulk.begin": begin, "bulk.stop": stop, "together.begin": answer_together,
}  # fmt: skip
