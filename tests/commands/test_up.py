"""`manage.py up`: the whole product from one command, and all of it gone after one signal."""

from __future__ import annotations

import json
import signal
import socket
import threading
import time
import urllib.request
from collections.abc import Callable
from pathlib import Path

import pytest
from django.contrib.auth.models import User

from ledger.models import Task, Worker
from tests.commands.conftest import Manage, Product

pytestmark = [pytest.mark.both_databases, pytest.mark.timeout(300)]

type Start = Callable[..., Product]


def test_up_serves_works_and_drains(start: Start, manage: Manage) -> None:
    product = start("--workers", "1", "--no-demo")
    link = product.wait_until_ready()
    assert User.objects.get().is_superuser
    assert not Task.objects.exists()

    assert product.fetch("/readyz")[0] == 200
    product.wait_for(lambda: product.fetch("/healthz")[0] == 200, "no worker beats")
    assert product.fetch("/api/v1/tasks")[0] == 401
    with urllib.request.urlopen(link, timeout=20) as answer:
        assert answer.status == 200

    ended = manage("submit", "report", "--input", '{"subject": "tea"}', "--wait")
    assert ended.returncode == 0, ended.stderr
    assert Task.objects.get(pk=ended.stdout.strip()).status == "completed"

    watched = manage("watch", ended.stdout.strip())
    assert watched.returncode == 0
    assert watched.stdout.splitlines()[-1] == "completed"
    assert "\x1b" not in watched.stdout
    assert " repaired " in watched.stdout

    checked = manage("ledger_check")
    assert checked.returncode == 0, checked.stdout
    assert all(line.startswith("ok ") for line in checked.stdout.splitlines())
    assert not Task.objects.filter(workflow="longwatch.check").exists()

    healthy = manage("doctor")
    assert healthy.returncode == 0, healthy.stdout

    assert product.stop() == 0, product.read_log()
    assert product.list_left_over() == []
    assert not Task.objects.filter(status="running").exists()


def test_a_long_poll_neither_starves_the_web_nor_holds_up_a_stop(
    start: Start, manage: Manage
) -> None:
    product = start("--workers", "1", "--no-demo")
    product.wait_until_ready()
    token = manage("token", "create", "poll", "--scope", "read,submit").stdout.split()[-1]
    head = {"Authorization": f"Bearer {token}", "Content-Type": "application/json"}
    body = {"workflow": "report", "input": {"subject": "x"}, "not_before": "2035-01-01T00:00:00Z"}
    request = urllib.request.Request(
        f"{product.url}/api/v1/tasks", json.dumps(body).encode(), head, method="POST"
    )
    with urllib.request.urlopen(request, timeout=20) as answer:
        task = json.load(answer)
    path = f"/api/v1/tasks/{task['id']}?wait=60&revision={task['revision']}"
    ended: list[float] = []

    def poll() -> None:
        waiting = urllib.request.Request(product.url + path, headers=head)
        with urllib.request.urlopen(waiting, timeout=80) as answer:
            answer.read()
        ended.append(time.monotonic())

    # Eight threads, so four wait, and of twelve the other eight are answered at once.
    polls = [threading.Thread(target=poll) for _ in range(12)]
    for thread in polls:
        thread.start()
    product.wait_for(lambda: len(ended) >= 8, "more than half of the threads wait")
    began = time.monotonic()
    assert product.fetch("/readyz")[0] == 200
    assert time.monotonic() - began < 5
    assert len(ended) == 8
    began = time.monotonic()
    assert product.stop() == 0, product.read_log()
    assert time.monotonic() - began < 20
    for thread in polls:
        thread.join(20)
    assert len(ended) == 12


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_to_the_whole_group_is_one_stop(start: Start, number: int) -> None:
    product = start("--workers", "1", "--no-demo")
    product.wait_until_ready()
    product.wait_for(lambda: Worker.objects.exists(), "no worker")
    assert product.stop(group=True, number=number) == 0, product.read_log()
    assert product.list_left_over() == []


def test_the_demo_goes_into_an_empty_ledger_once(start: Start, manage: Manage) -> None:
    product = start("--workers", "1", LONGWATCH_SLICE_SECONDS="0")
    product.wait_until_ready()
    submitted = set(Task.objects.values_list("workflow", "submitted_by"))
    assert submitted == {("report", "cli:demo"), ("modernise", "cli:demo")}
    assert product.stop() == 0, product.read_log()
    again = start("--workers", "1")
    again.wait_until_ready()
    assert Task.objects.count() == 2
    assert User.objects.count() == 1
    assert again.stop() == 0, again.read_log()


@pytest.mark.sqlite
def test_what_can_t_start_says_why_in_one_line(manage: Manage, tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        busy = manage("up", "--port", str(port))
    assert busy.returncode == 1
    lines = busy.stderr.strip().splitlines()
    assert len(lines) == 1
    assert f"Port {port} is in use" in lines[0]
    assert f"PORT={port + 1}" in lines[0]

    for arguments in (("--port", "0"), ("--port", "70000"), ("--workers", "0")):
        refused = manage("up", *arguments)
        assert refused.returncode == 1
        assert len(refused.stderr.strip().splitlines()) == 1

    blocked = tmp_path / "file"
    blocked.write_text("")
    unwritable = manage("up", LONGWATCH_VAR=str(blocked / "var"))
    assert unwritable.returncode != 0
    assert len(unwritable.stderr.strip().splitlines()) == 1
    assert "LONGWATCH_VAR" in unwritable.stderr

    away = manage("up", LONGWATCH_DATABASE_URL="postgresql://nobody@127.0.0.1:1/none")
    assert away.returncode == 1
    assert "The database does not answer" in away.stderr
    assert "Traceback" not in away.stderr
