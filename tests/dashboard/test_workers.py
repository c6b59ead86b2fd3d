"""The workers page: who beats, who drains, who is gone, and what each holds."""

from __future__ import annotations

import re

import pytest
from django.test import Client

from ledger import clock, states
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
    clock.offset = -3600.0
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
