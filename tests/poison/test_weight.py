"""However much tasks hold, a list weighs little, and a page shows the beginning of it."""

from __future__ import annotations

import json
import time
import tracemalloc
from collections.abc import Iterator

import pytest
from django.contrib.auth import get_user_model
from django.test import Client

from ledger.models import Task
from ledger.runner import Engine, run_attempt
from ledger.transitions.submit import submit_task
from ledger.workflows import Workflow, registered
from tests.factories import CLIENT, OWNER

pytestmark = [pytest.mark.django_db, pytest.mark.case(44)]

TASKS = 60
LARGE = 60_000
"""Just below what makes an output an artifact; the input is bounded at 256 KiB."""

heavy = Workflow("heavy")
heavy.step(lambda ctx: {f"part{ctx.turn}": "o" * LARGE, "large": "x" * 2_000_000}, name="only")


@pytest.fixture
def tasks(
    settings: pytest.FixtureRequest, tmp_path: pytest.TempPathFactory
) -> Iterator[list[Task]]:
    """Tasks with all that a row may hold, and an output of 2 MB each."""
    settings.LONGWATCH_ARTIFACTS = str(tmp_path / "artifacts")
    with registered(heavy):
        given = [
            submit_task(workflow=heavy, input={"text": "i" * 250_000, "n": n}, actor=CLIENT)[0]
            for n in range(TASKS)
        ]
        engine = Engine(OWNER)
        while (held := engine.claim()) is not None:
            while held is not None:
                held = run_attempt(engine, held)
        yield given


@pytest.fixture
def client(db: None) -> Client:
    """A superuser's browser."""
    client = Client()
    client.force_login(get_user_model().objects.create_superuser("root", password="x"))
    return client


def test_lists_and_pages_of_heavy_tasks_weigh_little(client: Client, tasks: list[Task]) -> None:
    task = tasks[0]
    task.refresh_from_db()
    assert (task.status, len(json.dumps(task.input)) > 250_000) == ("completed", True)
    lists = ["/", "/tasks/", "/tasks/?q=heavy", "/workers/", "/api/v1/tasks?workflow=heavy",
             "/admin/longwatch_ledger/task/", "/admin/longwatch_ledger/stepoutput/"]  # fmt: skip
    pages = [f"/tasks/{task.id}/", f"/tasks/{task.id}/outputs/", f"/tasks/{task.id}/events/"]
    for address in [*lists, *pages]:
        client.get(address)  # templates are read once
        tracemalloc.start()
        begun = time.process_time()
        answer = client.get(address)
        seconds = time.process_time() - begun
        _, most = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        assert answer.status_code == 200, address
        assert len(answer.content) < 500_000, (address, len(answer.content))
        assert seconds < 1, (address, seconds)
        assert most < 4_000_000, (address, most, "all rows would be over 18 MB")
    see_a_way_to_all_of_it(client, task)


def see_a_way_to_all_of_it(client: Client, task: Task) -> None:
    """What is larger than a page is cut, and is an artifact."""
    shown = client.get(f"/api/v1/tasks/{task.id}").json()
    assert set(shown["progress"]["large"]) == {"$artifact"}
    found = client.get(f"/api/v1/artifacts/{shown['progress']['large']['$artifact']}/content")
    assert len(b"".join(found.streaming_content)) == 2_000_002
    change = client.get(f"/admin/longwatch_ledger/task/{task.id}/change/")
    assert change.status_code == 200
    assert len(change.content) < 1_000_000
