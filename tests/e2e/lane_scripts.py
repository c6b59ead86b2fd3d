"""What a person does about lanes; tests/e2e/test_actions.py drives it in three ways."""

from __future__ import annotations

from collections.abc import Callable

from ledger import clock, states
from ledger.models import Lane, Task, Worker
from ledger.queries.fleet import describe_known
from ledger.transitions.lanes import set_lane
from ledger.workflows import Workflow
from tests.e2e.hands import Mouse
from tests.e2e.kit import wait_until
from tests.factories import CLIENT, OWNER, submit

SECONDS = 30.0
ODD = "teams/ä b?#%"


def set_settings(hands: Mouse, three: Workflow) -> None:
    submit(three, lane=ODD)
    hands.page.goto("/lanes/")
    hands.press(f"Set {ODD}", "link")
    hands.write("Weight", "3")
    hands.write("Money a day", "2.50")
    hands.press("Save lane")
    hands.page.get_by_text("$0.00 of $2.50 a day").wait_for()
    lane = Lane.objects.get()
    assert (lane.name, lane.weight, lane.cost_day, lane.cap) == (ODD, 3, 2_500_000_000, None)


def pause(hands: Mouse, three: Workflow) -> None:
    submit(three, lane=ODD)
    hands.page.goto("/lanes/")
    hands.press(f"Pause {ODD}")
    hands.find(f"Resume {ODD}").wait_for()
    wait_until(lambda: Lane.objects.get().paused, SECONDS)


def resume(hands: Mouse, three: Workflow) -> None:
    set_lane(ODD, {}, paused=True, actor=CLIENT)
    hands.page.goto("/lanes/")
    hands.press(f"Resume {ODD}")
    hands.find(f"Pause {ODD}").wait_for()
    wait_until(lambda: not Lane.objects.get().paused, SECONDS)


def run_one(hands: Mouse, three: Workflow) -> None:
    now, knows = clock.now(), describe_known()
    Worker.objects.bulk_create(
        [Worker(owner=OWNER, host="h", pid=1, started_at=now, seen_at=now, knows=knows)]
    )
    task = submit(three, lane=ODD, title="first of the lane")
    set_lane(ODD, {}, paused=True, actor=CLIENT)
    hands.page.goto("/lanes/")
    hands.press(f"Run one of {ODD}")
    hands.find("first of the lane", "heading").wait_for()
    assert Lane.objects.get().let_through == task.pk
    assert Task.objects.get().status == states.QUEUED


SCRIPTS: dict[str, Callable[[Mouse, Workflow], None]] = {
    "lane.set": set_settings, "lane.pause": pause, "lane.resume": resume, "lane.run-one": run_one,
}  # fmt: skip
