"""Every page in both themes: readable by everybody (axe), and never wider than the screen."""

from __future__ import annotations

from typing import Any
from urllib.parse import urlencode

import pytest
from axe_playwright_python.sync_playwright import Axe
from django.test import RequestFactory
from django.views import defaults

from dashboard.listing import COLUMNS
from ledger import artifacts, sql, states
from ledger.alerts import routing
from ledger.alerts.deliveries import DEAD as DELIVERY_DEAD
from ledger.bulk.making import make_operation
from ledger.bulk.selecting import Selection
from ledger.models import AlertDelivery, AlertRule, Approval, Effect, Task
from ledger.tokens import make_token
from ledger.transitions import holder
from ledger.transitions.approvals import decide_approval
from ledger.transitions.lanes import set_lane
from ledger.transitions.views import ViewDraft, save_view
from ledger.workflows import Workflow
from tests.alerts.kit import make_rule
from tests.dashboard.fleet import make_worker
from tests.e2e.conftest import OpenPage
from tests.factories import (
    LEASE,
    OPERATOR,
    OWNER,
    ask,
    claim,
    make_effect,
    make_in,
    make_unit,
    spawn,
    submit,
)
from tests.held import make_context
from tests.ledger.stages import run_out

pytestmark = pytest.mark.browser

COMBINATIONS = [("light", 1440), ("dark", 390), ("dark", 1440), ("light", 390)]
SHARES = 3
"""The pages are looked at in so many tests, so that none takes long."""

AXE = Axe().axe_script
SETTLE = """() => document.getAnimations().forEach(
    (one) => one instanceof CSSTransition && one.finish())"""
"""A colour on its way from one theme to the other is no colour of the page."""

RULES = {
    "resultTypes": ["violations"],  # what passed is not sent, which halves the time
    "runOnly": {
        "type": "tag",
        "values": ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa", "best-practice"],
    },
}
DIFF = "@@ -1,2 +1,2 @@\n import re\n-import os\n+import " + "sys_" * 60 + "\n"
TESTS = {"before": {"ran": 283}, "after": {"ran": 282}, "kind": "unittest"}
SQUEEZED = """() => [...document.querySelectorAll('h1, .meta, .acts, table')].some(
    (one) => one.offsetHeight > 400 && one.offsetWidth < 120)"""
"""Something that stands in a column a letter wide."""

FORM = {
    "type": "object",
    "required": ["title"],
    "properties": {
        "title": {"type": "string"},
        "kind": {"enum": ["patch", "archive"]},
        "tests": {"type": "boolean"},
        "copies": {"type": "integer"},
        "names": {"type": "array", "items": {"type": "string"}},
        "more": {"type": "object"},
    },
}
LONG = "averylongwordwithoutanyspace" * 8
LEFT = [{"path": "pkg/compat.py", "why": LONG}]


@pytest.fixture
def pages(three: Workflow) -> list[str]:
    """Every page, with something on it, long words included."""
    task = submit(three, title=f"Modernise {LONG}"[:200], tags=["nightly"])
    held = claim(three)
    for held.turn in (1, 0):
        saved = artifacts.save_artifact(held, f"{LONG}.patch"[:200], f"{LONG}\n{held.turn}")
    texts = leave_texts(held, three)
    unit = make_unit(held, three, output='{"text":"' + LONG + '"}', log_tail=LONG)
    sql.checkpoint_unit(held, unit, lease_seconds=LEASE, groups=[])
    held = claim(three) if Task.objects.get(pk=task.pk).status == states.QUEUED else held
    make_in(states.COMPLETED, three)
    dead = submit(three)
    bad = holder.Attempt({"type": "Boom", "message": LONG, "step": "a"}, log_tail=LONG)
    holder.record_failure(claim(three), bad, retries=0, backoff=1)
    for name in ("pay", LONG[:100]):
        make_effect(dead, name, compensation=LONG[:100])
    Effect.objects.filter(name="pay").update(late=True, tries=3, marked_by="user:1", round=1)
    submit(three, title="Publish")
    names = [f"{LONG}/x.py", "y.py", *(f"tests/test_{number}.py" for number in range(7))]
    files = [{"path": name, "diff": DIFF} for name in names]
    held = claim(three)
    old, new = (artifacts.save_artifact(held, f"{n}{LONG}"[:200], f"{LONG}\n{n}") for n in "ab")
    asked = ask(
        held, three, artifacts=[old, new], diff=(old, new), remind=3600,
        assignees=["group:operator", f"group:{LONG}"], escalate=[(f"group:{LONG}", 3600)],
        body=f"# Read\n\n- {LONG}\n\n| a | b |\n|---|---|\n| 1 | {LONG} |",
        payload={"files": files, "more": LONG, "tests": TESTS, "left_alone": LEFT},
        risk="high", send_back_to="a",
        form=FORM, proposal={"title": LONG, "tests": True, "names": ["a", LONG]},
    )  # fmt: skip
    assert Approval.objects.filter(pk=asked.pk).exists()
    submit(three)
    limit = run_out(claim(three), three)
    rule = make_rule(f"https://{LONG[:60]}.example/{LONG}", name=LONG[:100])
    routing.route_outbox()
    make_in(states.DEAD, three)
    routing.route_outbox()
    AlertDelivery.objects.update(state=DELIVERY_DEAD, error=LONG)
    AlertRule.objects.update(failures=5)
    submit(three)
    answered = ask(claim(three), three, form={"type": "object"}, proposal={"a": LONG, "b": 1})
    decide_approval(answered.pk, decision="approve", actor=OPERATOR, digest=answered.digest,
                    comment=LONG, values={"a": f"{LONG}!", "c": 2}, undo_seconds=600)  # fmt: skip
    seq = Task.objects.get(pk=task.pk).outputs.get().seq
    parent = submit(three, title=LONG[:200], priority=100)
    spawn(claim(three), three, 3)
    of_task, of_file = f"/tasks/{task.id}/", f"/artifacts/{saved.id}/"
    return [*ask_together(three), *begin_bulk(), *leave_fleet(three),
        "/", "/?range=7d", "/stalled/", "/stalled/?kind=lost", "/workers/", "/workflows/",
        "/workflows/three/", "/workflows/modernise/", "/legend/", "/tasks/", "/audit/", "/lanes/",
        "/tasks/?q=nothing-like-this", of_task, f"/tasks/{dead.id}/", f"{of_task}outputs/{seq}/",
        f"{of_task}outputs/", f"{of_task}events/", f"{of_task}restart/", f"{of_task}limits/",
        f"{of_task}cancel/", f"{of_task}fork/", f"{of_task}edit/?unit={seq}", f"{of_task}change/",
        f"{of_task}signal/", f"{of_task}handoff/", "/tasks/demo/", f"/tasks/{parent.id}/",
        f"/tasks/{dead.id}/effect/", f"/tasks/{dead.id}/compensate/",
        *texts, f"{of_file}view/", f"{of_file}changes/", "/approvals/", f"/approvals/{asked.id}/",
        f"/approvals/{limit.id}/", "/since/", "/alerts/", "/alerts/new/", f"/alerts/{rule.id}/",
        f"/approvals/{asked.id}/files/0/", f"/approvals/{answered.id}/", "/settings/",
        f"/tasks/?status=dead&lane=default&tag=nightly&stalled=yes&q={LONG}", "/nowhere/",
    ]  # fmt: skip


def ask_together(three: Workflow) -> list[str]:
    """The pages of several questions at once."""
    pairs = []
    for risk in ("low", "high"):
        submit(three, title=LONG[:200], priority=100)
        row = ask(claim(three), three, risk=risk, body=LONG, form=FORM, proposal={"title": LONG})
        pairs.append(("asked", f"{row.pk}:{row.digest}"))
    chosen = urlencode(pairs)
    path = "/approvals/together/"
    return [path, *(f"{path}?action={name}&{chosen}" for name in ("approve", "reject"))]


def begin_bulk() -> list[str]:
    """The pages of many tasks at once."""
    row, _ = make_operation("tag", Selection(), actor=OPERATOR, reason=LONG,
                            arguments={"tags": [LONG[:50]]})  # fmt: skip
    many = f"/bulk/new/?all=1&q={LONG[:60]}&action="
    return ["/bulk/", f"/bulk/{row.pk}/", f"{many}cancel", f"{many}export",
            "/bulk/new/?all=1&action=restart", "/bulk/new/?action=cancel&all=1"]  # fmt: skip


def leave_fleet(three: Workflow) -> list[str]:
    """A worker that drains, and a token; the pages about them."""
    make_worker(three, told="drain_all", skew=-90.0, memory=115e6, host=LONG[:100])
    token, _ = make_token(LONG[:100], ["read"], created_by="cli:x", lanes=[LONG[:100]])
    told = [f"/workers/{OWNER}/{action}/" for action in ("drain", "declare-dead")]
    plain = ["/approvals/answers/", "/palette/"]
    return ["/tokens/", "/tokens/new/", f"/tokens/{token.pk}/revoke/", *told, *plain]


def leave_texts(held: sql.Claimed, three: Workflow) -> list[str]:
    """A hand-off, artifacts as a table and as prose; pages of those, logs, a lane, views."""
    set_lane(LONG[:90], {"cap": 1, "rate": 5, "cost_day": "9"}, paused=True, actor=OPERATOR)
    make_context(held, three).handoff()
    texts = {"sums.csv": f"a,{LONG}\n{LONG},1\n", "read.md": f"# {LONG}\n\n### b\n\n- {LONG}\n"}
    saved = [artifacts.save_artifact(held, *one) for one in texts.items()]
    of_task = f"/tasks/{held.task_id}/"
    tabs = [f"{of_task}?tab=input", f"{of_task}?tab=log", f"{of_task}compare/?step=a"]
    log = f"{of_task}log/"
    views = [f"/artifacts/{one.pk}/view/" for one in saved]
    save_view(LONG[:60], ViewDraft([("lane", LONG[:90])]), OPERATOR, shared=True)
    views += ["/tasks/views/", "/tasks/views/new/?lane=night"]
    views += [f"/tasks/?menu=columns&columns={','.join(COLUMNS)}"]
    return [*views, *tabs, log, f"{log}?level=error&q={LONG}", f"/lanes/set/?lane={LONG[:90]}"]


def find_faults(page: Any) -> list[str]:
    """What axe finds on the page as it stands, in both themes, wide and narrow."""
    if not page.evaluate("typeof axe === 'object'"):
        page.evaluate(AXE)
    before = page.viewport_size
    faults = []
    for theme, width in COMBINATIONS:
        page.emulate_media(color_scheme=theme)
        page.set_viewport_size({"width": width, "height": 900})
        page.evaluate(SETTLE)
        found = page.evaluate("options => axe.run(document, options)", RULES)["violations"]
        faults += [f"{theme} {width} {one['id']}: {one['nodes'][0]['html'][:160]}" for one in found]
    page.set_viewport_size(before)
    return faults


def name_faults(faults: dict[Any, list[str]]) -> dict[Any, list[str]]:
    """The places that have any."""
    return {place: found for place, found in faults.items() if found}


@pytest.mark.parametrize("share", range(SHARES))
def test_axe_finds_nothing_on_any_page(open_page: OpenPage, pages: list[str], share: int) -> None:
    faults = {}
    with open_page("admin") as page:
        page.expected.add(404)
        for path in pages[share::SHARES]:
            page.goto(path)
            faults[path] = find_faults(page)
    assert name_faults(faults) == {}


def test_axe_finds_nothing_in_a_request_and_its_dialog(
    open_page: OpenPage, pages: list[str]
) -> None:
    faults = {}
    with open_page("operator") as page:
        page.goto(next(path for path in pages if path.startswith("/approvals/0")))
        page.locator(".fold > summary").click()
        page.get_by_role("button", name="Approve…").click()
        page.wait_for_selector("#dialog[open]")
        faults["confirm"] = find_faults(page)
        page.keyboard.press("Escape")
        page.expected.add(422)
        page.get_by_label("copies").fill("many")
        page.get_by_role("button", name="Approve…").click()
        page.wait_for_selector("#settings .bad")
        faults["wrong setting"] = find_faults(page)
    assert name_faults(faults) == {}


def test_axe_finds_nothing_where_people_sign_in(open_page: OpenPage, three: Workflow) -> None:
    faults = {}
    with open_page("operator") as page:
        page.expected.add(422)
        page.goto("/")
        page.locator("form[action='/logout/'] button").first.evaluate("button => button.click()")
        page.wait_for_selector("#id_username")
        faults["login"] = find_faults(page)
        page.locator("#id_username").fill("operator")
        page.locator("#id_password").fill("wrong")
        page.get_by_role("button", name="Sign in").click()
        page.wait_for_selector("#wrong")
        faults["wrong password"] = find_faults(page)
    assert name_faults(faults) == {}


def test_axe_finds_nothing_on_the_page_that_can_not_be_made(
    open_page: OpenPage, three: Workflow
) -> None:
    body = defaults.server_error(RequestFactory().get("/")).content.decode()
    with open_page("viewer") as page:
        page.expected.add(500)
        page.route("**/broken/", lambda route: route.fulfill(
            status=500, content_type="text/html", body=body))  # fmt: skip
        page.goto("/broken/")
        page.get_by_role("heading", name="This page could not be made").wait_for()
        style = "getComputedStyle(document.querySelector('.lbox')).display"
        assert page.evaluate(style) == "grid"  # it found its stylesheet
        assert find_faults(page) == []
        page.set_viewport_size({"width": 320, "height": 800})
        assert page.evaluate("document.documentElement.scrollWidth") <= 320


def test_no_page_is_wider_than_the_screen(open_page: OpenPage, pages: list[str]) -> None:
    wide = {}
    with open_page("admin") as page:
        page.expected.add(404)
        for path in pages:
            page.goto(path)
            for width in (320, 390, 768, 1024, 1440):
                page.set_viewport_size({"width": width, "height": 800})
                found = page.evaluate("document.documentElement.scrollWidth")
                if found > width or page.evaluate(SQUEEZED):
                    wide[path, width] = found
    assert wide == {}
