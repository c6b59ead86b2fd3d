"""The workers page: who beats, who drains, who is gone, and what each holds."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.test import Client
from django.urls import reverse

from ledger import clock, conf, states
from ledger.models import Reach, Worker
from ledger.transitions import sweeps
from ledger.workflows import Workflow
from tests.dashboard.conftest import PART
from tests.dashboard.fleet import make_worker
from tests.factories import OWNER, make_in, make_workflow

pytestmark = pytest.mark.both_databases


def read_rows(text: str) -> dict[str, str]:
    """The text of each worker's row."""
    rows = re.findall(r'<tr role="row" id="worker-([^"]+)">(.*?)</tr>', text, re.DOTALL)
    return {owner: " ".join(re.sub(r"<[^>]+>", " ", row).split()) for owner, row in rows}


def test_each_worker_is_shown_as_it_is(operator: Client, three: Workflow) -> None:
    task = make_in(states.RUNNING, three)
    other = make_workflow("other", version="9")
    now = clock.read()
    make_worker(three, other, units=1_234)
    make_worker(three, owner="idle:2:b")
    make_worker(three, owner="drains:3:b", draining=True)
    make_worker(owner="stopped:4:b", stopped_at=now)
    clock.offset = -300.0
    make_worker(owner="gone:5:b")
    clock.offset = 0.0
    text = operator.get("/workers/").content.decode()
    rows = read_rows(text)
    assert f'href="/tasks/{task.id}/"' in text
    assert "Live host" in rows[OWNER]
    assert "three a" in rows[OWNER]
    assert "1,234" in rows[OWNER]
    assert "other version 9" in rows[OWNER]
    assert "Live, idle" in rows["idle:2:b"]
    assert "Draining" in rows["drains:3:b"]
    assert "signed off" in rows["stopped:4:b"]
    assert "Gone" in rows["gone:5:b"]
    assert list(rows).index("gone:5:b") > list(rows).index("idle:2:b")
    assert "1 of 1 slot used" in text
    assert "Not known to every live worker: other version 9." in text


def test_no_worker_is_said_with_its_cure(operator: Client) -> None:
    assert b"manage.py qcluster" in operator.get("/workers/").content


def test_the_page_polls_every_15_seconds(operator: Client, three: Workflow) -> None:
    make_worker(three)
    text = operator.get("/workers/").content.decode()
    assert 'hx-trigger="every 15s"' in text
    tag = re.search(r'hx-ptag="([^"]*)"', text)
    assert tag
    headers = PART | {"HX-PTag": tag[1]}
    assert operator.get("/workers/", headers=headers).status_code == 304
    make_worker(three, draining=True)
    assert operator.get("/workers/", headers=headers).status_code == 200


def test_heartbeats_missed_leases_lost_and_clocks_that_are_off_are_said(
    operator: Client, three: Workflow
) -> None:
    beat = conf.load().heartbeat_seconds
    make_worker(three, owner="late:2:b", seen_at=clock.now(-2 * beat), skew=-90.0, memory=3e8)
    task = make_in(states.RUNNING, three)
    make_worker(three, cluster="host:9:aa", skew=0.2)
    sweeps.end_lease(task, clock.read(), "it burns")
    rows = read_rows(operator.get("/workers/").content.decode())
    assert "Late" in rows["late:2:b"]
    assert "1 heartbeat did not come" in rows["late:2:b"]
    assert "clock 1 m 30 s behind" in rows["late:2:b"]
    assert "300 MB" in rows["late:2:b"]
    assert "1 lost in 24 h" in rows[OWNER]
    assert "clock" not in rows[OWNER]


def test_who_is_long_gone_is_folded_away_and_found_by_a_search(
    operator: Client, three: Workflow
) -> None:
    make_worker(three)
    make_worker(owner="old-host:2:b", seen_at=clock.now(-3_600.0), stopped_at=clock.now(-3_600.0))
    make_worker(make_workflow("other"), owner="other:3:b", told="drain", draining=True)
    shown = operator.get("/workers/").content.decode()
    assert set(read_rows(shown)) == {OWNER, "other:3:b"}
    assert "1 gone for longer" in shown
    for query, found in (
        ("old=1", {OWNER, "other:3:b", "old-host:2:b"}), ("q=old-host+2", {"old-host:2:b"}),
        ("state=draining", {"other:3:b"}), ("state=stopped", {"old-host:2:b"}),
        ("workflow=three", {OWNER}), ("q=%25", set()), ("q=nobody", set()),
    ):  # fmt: skip
        assert set(read_rows(operator.get(f"/workers/?{query}").content.decode())) == found, query


def path_of(name: str, owner: str = OWNER) -> str:
    return reverse("dashboard:worker-act", args=[owner, name])


@pytest.mark.parametrize("headers", [{}, PART])
def test_a_worker_is_drained_let_go_on_and_declared_dead_by_its_page(
    operator: Client, three: Workflow, headers: dict[str, str]
) -> None:
    make_worker(three, cluster="host:9:aa")
    make_worker(three, owner="host:2:b", cluster="host:9:aa")
    task = make_in(states.RUNNING, three)
    back = "/workers/?q=host"
    assert (
        f"{path_of('drain')}?back=%2Fworkers%2F%3Fq%3Dhost" in operator.get(back).content.decode()
    )

    def send(name: str, **typed: str) -> None:
        form = operator.get(f"{path_of(name)}?back={back}", headers=headers).content.decode()
        assert f'name="back" value="{back}"' in form
        answer = operator.post(path_of(name), {"back": back, **typed}, headers=headers)
        assert (answer.status_code, answer.get("HX-Redirect", answer.get("Location"))) == (
            200 if headers else 302, back,
        )  # fmt: skip

    send("drain", scope="all", reason="new kernel")
    assert set(Worker.objects.values_list("told", flat=True)) == {"drain_all"}
    assert "2 drain" in operator.get(back).content.decode()
    send("undrain", scope="one")
    assert sorted(Worker.objects.values_list("told", flat=True)) == ["", "drain_all"]
    form = operator.get(path_of("declare-dead"), headers=headers).content.decode()
    assert f"fence {task.fence} is raised" in form
    wrong = operator.post(path_of("declare-dead"), {"typed": "host:2", "reason": "x"})
    assert wrong.status_code == 422
    assert "is not host:1; type that to go on." in wrong.content.decode()
    task.refresh_from_db()
    assert task.status == states.RUNNING
    send("declare-dead", typed="host:1", reason="on fire")
    task.refresh_from_db()
    assert (task.status, Worker.objects.get(pk=OWNER).told) == (states.QUEUED, "dead")
    text = operator.get(back).content.decode()
    assert "Declared dead" in text
    assert path_of("drain") not in text
    late = operator.post(path_of("drain"), {"scope": "one"}, headers=headers)
    assert late.status_code == 409
    assert "it was declared dead" in late.content.decode()


def test_who_may_not_tell_workers_is_shown_no_button_or_why(
    sign_in: Callable[..., Client], three: Workflow
) -> None:
    make_worker(three)
    assert "Drain…" not in sign_in("viewer", "vic").get("/workers/").content.decode()
    narrow = sign_in("operator", "ned")
    Reach.objects.create(user=User.objects.get(username="ned"), lanes=["night"])
    assert "It takes the sight of every lane" in narrow.get(path_of("drain")).content.decode()
    assert narrow.post(path_of("drain"), {"scope": "one"}).status_code == 403
    assert Worker.objects.get().told == ""


def test_the_page_takes_few_queries_however_many_workers(
    operator: Client, three: Workflow, django_assert_max_num_queries: Any
) -> None:
    for number in range(30):
        make_worker(three, owner=f"h{number % 3}:{number}:b", cluster=f"h{number % 3}:1:a")
    with django_assert_max_num_queries(12):
        operator.get("/workers/")
