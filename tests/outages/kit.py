"""The whole product on a database that a test may take away, and a client that only asks."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any, NamedTuple, Self

from django.db import connection

from tests.commands.conftest import Product
from tests.conftest import ROOT
from tests.crash.cluster_kit import wait_for

LEASES = {
    "LONGWATCH_WORKFLOWS": "tests.crash.flows",
    "LONGWATCH_LEASE_SECONDS": "6",
    "LONGWATCH_HEARTBEAT_SECONDS": "1",
}
RECOVERY = 30.0
"""Seconds after an outage within which all is well again, by itself."""


class Answer(NamedTuple):
    """What the web said."""

    status: int
    headers: dict[str, str]
    text: str

    @property
    def json(self) -> Any:
        """The body of an API answer."""
        return json.loads(self.text)


class Load:
    """Does `act` `rate` times a second in a thread of its own, until the block ends. Late, it makes
    up for it: a load that waits for what it measures would hide how slow that is."""

    rate = 10.0

    def __init__(self) -> None:
        self.count = 0
        self.slowest = 0.0
        self.errors: list[BaseException] = []
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self._over.set()
        self._thread.join(60)

    def act(self) -> None:
        """What is done. An error ends the load, and fails who waits for more."""
        raise NotImplementedError

    def _run(self) -> None:
        try:
            due = time.monotonic()
            while not self._over.wait(max(0.0, due - time.monotonic())):
                due += 1 / self.rate
                began = time.monotonic()
                self.act()
                self.slowest = max(self.slowest, time.monotonic() - began)
                self.count += 1
        except BaseException as error:
            self.errors.append(error)
        finally:
            connection.close()

    def wait_for_more(self, count: int = 5) -> None:
        """It goes on, and nobody saw an error."""
        most = self.count + count
        wait_for("the load goes on", lambda: self.errors or self.count >= most, 60)
        assert self.errors == []


class Client:
    """A caller of the API and of the pages, by plain HTTP. Tokens are made before the outage."""

    def __init__(self, url: str, token: str = "", cookie: str = "") -> None:
        self.url = url
        self.headers = {"Authorization": f"Bearer {token}"} if token else {}
        self.headers |= {"Cookie": cookie} if cookie else {}

    def ask(self, path: str, body: Any = None, **headers: str) -> Answer:
        """GET, or POST of `body` as JSON."""
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        request = urllib.request.Request(
            self.url + path,
            None if body is None else json.dumps(body).encode(),
            {"Content-Type": "application/json"} | self.headers | named,
        )
        try:
            with urllib.request.urlopen(request, timeout=60) as answer:
                return Answer(answer.status, dict(answer.headers), answer.read().decode())
        except urllib.error.HTTPError as error:
            with error:
                return Answer(error.code, dict(error.headers), error.read().decode())

    def submit(self, sink: Path, key: str, **pace: Any) -> Answer:
        """A task of `paced` whose attempts write to the sink."""
        body = {"workflow": "paced", "input": {"sink": str(sink), **pace}}
        return self.ask("/api/v1/tasks", body, Idempotency_Key=key)

    def read_reasons(self) -> list[str]:
        """What /healthz complains of."""
        answer = self.ask("/healthz")
        assert (answer.status == 503) == bool(answer.json["reasons"])
        return list(answer.json["reasons"])

    def wait_until_healthy(self, seconds: float = RECOVERY) -> None:
        """Wait until /healthz is green."""
        wait_for("all is well", lambda: not self.read_reasons(), seconds)

    def wait_for_status(self, task: str, status: str, seconds: float = RECOVERY) -> dict[str, Any]:
        """The task, once it is there."""

        def look() -> Any:
            answer = self.ask(f"/api/v1/tasks/{task}")
            return answer.status == 200 and answer.json["status"] == status and answer.json

        return dict(wait_for(f"the task is {status}", look, seconds))


def sign_in(product: Product, link: str) -> str:
    """The session cookie of who follows the login link."""
    opener = urllib.request.build_opener(_Stay)
    try:
        opener.open(link, timeout=20).close()
    except urllib.error.HTTPError as answer:
        with answer:
            cookies = answer.headers.get_all("Set-Cookie") or []
    found = re.search(r"longwatch_session_\w+=\w+", " ".join(cookies))
    assert found, cookies
    return found[0]


def make_token(env: dict[str, str], root: Path = ROOT) -> str:
    """A token that may do everything, made by the code in that folder."""
    command = "token create outage --scope read,submit,operate,approve"
    done = subprocess.run(
        [sys.executable, "manage.py", *command.split()],
        cwd=root, env=env, capture_output=True, text=True, timeout=60, check=True,
    )  # fmt: skip
    return done.stdout.split()[-1]


class _Stay(urllib.request.HTTPRedirectHandler):
    """Follows no redirect."""

    def redirect_request(self, *args: Any, **kwargs: Any) -> None:
        return None


def count_attempts(sink: Path, task: str, step: str = "work") -> int:
    """How often the task's step was begun, by the sink's own lines."""
    return sum(line.split()[:2] == [task, step] for line in sink.read_text().splitlines())


def assert_uncharged(task: dict[str, Any]) -> None:
    """It is on its first attempt of its first round, and no worker was taken for lost."""
    assert (task["attempts"], task["reclaims"], task["round"]) == (0, 0, 0), task


END_SESSIONS = """SELECT pg_terminate_backend(pid) FROM pg_stat_activity
    WHERE application_name = 'longwatch'"""
"""Ends every session of the product; a row for each."""
