"""What a person does about workers, tokens and workflows, in the three ways of test_actions.py."""

from __future__ import annotations

from collections.abc import Callable

from ledger import states
from ledger.models import ApiToken, Task, Worker
from ledger.tokens import find_token, make_token
from ledger.workflows import Workflow
from tests.dashboard.fleet import make_worker
from tests.e2e.hands import Mouse
from tests.e2e.kit import wait_until
from tests.factories import OWNER, make_in

SECONDS = 30.0


def read_told() -> str:
    return Worker.objects.get(pk=OWNER).told


def drain(hands: Mouse, three: Workflow) -> None:
    make_worker(three, cluster="host:9:aa")
    hands.page.goto("/workers/")
    hands.press("Drain… host:1")
    hands.write("Reason", "new kernel")
    hands.press("Drain")
    wait_until(lambda: read_told() == "drain", SECONDS)
    hands.page.get_by_text("host:1 drains.").wait_for()


def undrain(hands: Mouse, three: Workflow) -> None:
    make_worker(three, cluster="host:9:aa", told="drain_all", draining=True)
    hands.page.goto("/workers/")
    hands.press("Undrain… host:1")
    hands.press("Undrain")
    wait_until(lambda: read_told() == "", SECONDS)


def declare_dead(hands: Mouse, three: Workflow) -> None:
    make_worker(three)
    task = make_in(states.RUNNING, three)
    hands.page.goto("/workers/")
    hands.press("Declare dead… host:1")
    hands.write("Type host:1 to go on", "host:1")
    hands.press("Declare dead")
    wait_until(lambda: read_told() == "dead", SECONDS)
    task.refresh_from_db()
    assert task.status == states.QUEUED


def find_worker(hands: Mouse, three: Workflow) -> None:
    make_worker(three)
    make_worker(three, owner="other:2:b")
    hands.page.goto("/workers/")
    hands.write("Part of a host", "other")
    hands.press("Filter")
    hands.page.wait_for_url("**/workers/?q=other*")
    assert hands.page.get_by_text("host:1").count() == 0


def make_one(hands: Mouse, three: Workflow) -> None:
    hands.page.goto("/tokens/")
    hands.press("New token", "link")
    hands.write("Name", "nightly")
    hands.press("Make token")
    shown = hands.page.locator("#secret")
    shown.wait_for()
    assert find_token(shown.inner_text().strip()) is not None
    hands.press("I have stored it")
    hands.find("nightly", "rowheader").or_(hands.page.get_by_text("nightly")).first.wait_for()


def rotate(hands: Mouse, three: Workflow) -> None:
    make_token("nightly", ["read"], created_by="cli:x")
    hands.page.goto("/tokens/")
    hands.press("Rotate… nightly")
    hands.write("Hours that both are good", "1")
    hands.press("Rotate token")
    hands.page.locator("#secret").wait_for()
    assert ApiToken.objects.count() == 2


def revoke(hands: Mouse, three: Workflow) -> None:
    make_token("nightly", ["read"], created_by="cli:x")
    hands.page.goto("/tokens/")
    hands.press("Revoke… nightly")
    hands.write("Type nightly to go on", "nightly")
    hands.press("Revoke token")
    wait_until(lambda: ApiToken.objects.filter(revoked_at__isnull=False).exists(), SECONDS)


def check_only(hands: Mouse, three: Workflow) -> None:
    hands.page.goto(f"/workflows/{three.name}/")
    hands.write("Input", '{"subject": "ferries"}')
    hands.press("Check only")
    hands.page.locator("#checked").wait_for()
    assert not Task.objects.exists()


SCRIPTS: dict[str, Callable[[Mouse, Workflow], None]] = {
    "worker.drain": drain, "worker.undrain": undrain, "worker.declare-dead": declare_dead,
    "workers.filter": find_worker, "token.make": make_one, "token.rotate": rotate,
    "token.revoke": revoke, "workflow.check": check_only,
}  # fmt: skip
