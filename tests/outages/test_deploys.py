"""Old and new workers side by side, and workflows that are no more."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Any

import pytest
from django.test import Client
from django.urls import reverse

from ledger import queries, states
from ledger.models import StepOutput, Task
from ledger.tokens import make_token
from ledger.workflows import registered
from tests.crash.cluster_kit import SIGTERM, wait_for
from tests.crash.site_kit import SiteCluster, assert_whole, wait_for_status
from tests.dashboard.conftest import make_user
from tests.dashboard.fleet import make_worker
from tests.factories import make_in, make_workflow, submit
from tests.outages.flows import newcomer

pytestmark = [pytest.mark.both_databases, pytest.mark.django_db(transaction=True)]

BOTH = "tests.crash.flows,tests.outages.flows"


@pytest.mark.case(26)
def test_an_old_worker_leaves_alone_what_it_does_not_know(
    site_env: dict[str, str], tmp_path: Path
) -> None:
    with SiteCluster(tmp_path, site_env) as old:
        with registered(newcomer):
            unknown = [submit(newcomer) for _ in range(10)]
        known = [old.submit(seconds=0.02, turns=1) for _ in range(10)]
        for task in known:
            wait_for_status(task, "completed")
        for task in unknown:
            task.refresh_from_db()
            assert (task.status, task.fence, task.attempts) == ("queued", 0, 0)
        why = queries.show_task(unknown[0].pk)["claimable"]
        assert why == {"ok": False, "why": "no worker for this workflow"}
        with SiteCluster(tmp_path, site_env, LONGWATCH_WORKFLOWS=BOTH) as new:
            for task in unknown:
                wait_for_status(task, "completed")
            workers = StepOutput.objects.filter(task__in=unknown).values_list("worker", flat=True)
            assert {int(owner.split(":")[1]) for owner in workers} <= set(new.list_pids("worker"))


@pytest.mark.case(26)
def test_a_rolling_restart_under_load_charges_nobody(
    site_env: dict[str, str], tmp_path: Path
) -> None:
    """Twice the next one starts beside the last one, which then drains."""
    with contextlib.ExitStack() as stack:
        last = stack.enter_context(SiteCluster(tmp_path, site_env))
        tasks = [last.submit(seconds=0.2, turns=8) for _ in range(8)]
        for _ in range(2):
            begun = len(last.read_sink())
            wait_for("work goes on", lambda n=begun, at=last: len(at.read_sink()) > n + 6)
            following = stack.enter_context(SiteCluster(tmp_path, site_env))
            last.signal(SIGTERM)
            assert last.wait_for_exit() == 0
            last = following
        for task in tasks:
            wait_for_status(task, "completed")
        noted = last.read_sink()
    for task in tasks:
        assert_whole(task, 8)
        assert list(task.events.values_list("kind", flat=True)) == ["submitted", "completed"]
        assert (task.attempts, task.reclaims, task.releases) == (0, 0, 0)
    assert len(noted) == len(tasks) * 10, "no unit ran twice"


# --- A workflow that was removed ------------------------------------------------------------------


@pytest.fixture
def orphans() -> dict[str, Task]:
    """A task in every status, of a workflow whose code is gone; a worker beats that lacks it."""
    made = {}
    for status in states.STATUSES:
        gone = make_workflow(f"gone_{status}")
        with registered(gone):
            made[status] = make_in(status, gone)
    make_worker(newcomer, owner="host:9:other")
    return made


@pytest.mark.case(26)
def test_tasks_of_a_removed_workflow_are_shown_everywhere(orphans: dict[str, Task]) -> None:
    browser = Client()
    browser.force_login(make_user("superuser"))
    _, token = make_token("t", ["read", "operate"], created_by="cli:test")
    head = {"Authorization": f"Bearer {token}"}
    page = browser.get(reverse("dashboard:task", args=[orphans["queued"].pk]))
    assert "no worker for this workflow" in page.content.decode().lower()
    for path in ("/", "/tasks/", "/stalled/", "/workers/", "/workflows/", "/approvals/"):
        assert browser.get(path).status_code == 200, path
    assert browser.get(reverse("admin:longwatch_ledger_task_changelist")).status_code == 200
    for status, task in orphans.items():
        for path in (
            reverse("dashboard:task", args=[task.pk]),
            reverse("dashboard:outputs", args=[task.pk]),
            reverse("dashboard:events", args=[task.pk]),
            reverse("dashboard:act", args=[task.pk, "restart"]),
            reverse("dashboard:act", args=[task.pk, "cancel"]),
            reverse("dashboard:act", args=[task.pk, "limits"]),
            reverse("admin:longwatch_ledger_task_change", args=[task.pk]),
        ):
            assert browser.get(path).status_code == 200, (status, path)
        for part in ("", "/outputs", "/events", "/artifacts", "/spend"):
            answer = browser.get(f"/api/v1/tasks/{task.pk}{part}", headers=head)
            assert answer.status_code == 200, (status, part, answer.content)
    request = orphans["waiting"].approvals.get()
    assert browser.get(reverse("dashboard:approval", args=[request.pk])).status_code == 200


@pytest.mark.case(26)
@pytest.mark.parametrize("way", ["api", "page"])
def test_tasks_of_a_removed_workflow_can_be_cancelled(orphans: dict[str, Task], way: str) -> None:
    browser = Client()
    browser.force_login(make_user("superuser"))
    _, token = make_token("t", ["read", "operate"], created_by="cli:test")
    for status, task in orphans.items():
        if way == "api":
            answer: Any = browser.post(
                f"/api/v1/tasks/{task.pk}/cancel", "{}", content_type="application/json",
                headers={"Authorization": f"Bearer {token}"},
            )  # fmt: skip
            assert answer.status_code == (409 if status == "completed" else 200), status
        elif status not in states.FINAL:
            path = reverse("dashboard:act", args=[task.pk, "cancel"])
            form = browser.get(path).context["form"]
            data = {"reason": "its code is gone"}
            data |= {name: form[name].value() for name in ("revision", "seen")}
            assert browser.post(path, data).status_code == 302, status
        task.refresh_from_db()
        if status == "running":
            assert task.cancel_requested, "its worker may still have the code in memory"
        else:
            assert task.status == ("completed" if status == "completed" else "cancelled"), status


@pytest.mark.case(26)
def test_a_task_whose_code_was_changed_says_so_on_its_page() -> None:
    browser = Client()
    browser.force_login(make_user("viewer"))
    flow, changed = make_workflow("three"), make_workflow("three", steps=4)
    with registered(flow):
        task = submit(flow)
    page = reverse("dashboard:task", args=[task.pk])
    make_worker(flow)
    assert "code changed" not in browser.get(page).content.decode()
    make_worker(changed)
    assert "code changed under version 1" in browser.get(page).content.decode()
