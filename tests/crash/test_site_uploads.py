"""The web server is killed between and inside the pieces of an upload: the client goes on where it
stood, and what it gets is what it sent."""

from __future__ import annotations

import hashlib
import http.client
import json
import os
import signal
import socket
import urllib.parse
from pathlib import Path
from typing import Any

import psutil
import pytest

from ledger import artifacts
from ledger.models import Artifact, UploadPart
from ledger.tokens import make_token
from tests.commands.test_wsgi import is_up, start_web
from tests.crash.cluster_kit import wait_for

pytestmark = [pytest.mark.both_databases, pytest.mark.django_db(transaction=True)]
DATA = hashlib.shake_256(b"seed").digest(5_000_000)
FIRST, SENT = 1_500_000, 3_600_000


class Client:
    """Somebody with a token; of an upload it knows its path alone."""

    def __init__(self, address: str) -> None:
        self.host = urllib.parse.urlsplit(address).netloc
        token = make_token("up", ["read", "submit"], created_by="cli:test")[1]
        self.headers = {"Authorization": f"Bearer {token}"}

    def ask(
        self, method: str, path: str, body: Any = None, **more: str
    ) -> tuple[dict[str, Any], Any]:
        link = http.client.HTTPConnection(self.host, timeout=60)
        link.request(method, path, body, self.headers | more)
        answer = link.getresponse()
        told = answer.read()
        link.close()
        assert answer.status in {200, 201}, told
        return json.loads(told or b"{}"), answer.headers

    def find_offset(self, path: str) -> int:
        return int(self.ask("HEAD", path)[1]["Upload-Offset"])

    def send(self, path: str, offset: int, data: bytes) -> dict[str, Any]:
        kind = {"Content-Type": "application/octet-stream", "Upload-Offset": str(offset)}
        return self.ask("PATCH", path, data, **kind)[0]

    def begin_piece(self, path: str, offset: int, size: int, data: bytes) -> socket.socket:
        """Less of a piece than it says."""
        host, port = self.host.split(":")
        line = socket.create_connection((host, int(port)), 60)
        head = self.headers | {"Host": self.host, "Upload-Offset": str(offset),
                               "Content-Type": "application/octet-stream",
                               "Content-Length": str(size)}  # fmt: skip
        told = "".join(f"{name}: {value}\r\n" for name, value in head.items())
        line.sendall(f"PATCH {path} HTTP/1.1\r\n{told}\r\n".encode() + data)
        return line


def test_a_web_server_that_is_killed_costs_at_most_the_piece_in_hand(
    site_env: dict[str, str], settings: Any, tmp_path: Path
) -> None:
    settings.LONGWATCH_ARTIFACTS = site_env["LONGWATCH_ARTIFACTS"] = str(tmp_path / "artifacts")
    web, address = start_web(site_env, tmp_path / "web.log")
    try:
        wait_for("the web answers", lambda: is_up(address), 60)
        client = Client(address)
        said = {"name": "large", "size": len(DATA), "sha256": hashlib.sha256(DATA).hexdigest()}
        path = client.ask("POST", "/api/v1/uploads", json.dumps(said),
                          **{"Content-Type": "application/json"})[1]["Location"]  # fmt: skip
        assert client.send(path, 0, DATA[:FIRST])["offset"] == FIRST

        kill_worker(web.pid)  # between two pieces
        wait_for("the web answers", lambda: is_up(address), 60)
        assert client.find_offset(path) == FIRST

        line = client.begin_piece(path, FIRST, len(DATA) - FIRST, DATA[FIRST:SENT])
        wait_for("a piece comes in", lambda: measure_draft(tmp_path / "artifacts") >= 1 << 20, 60)
        kill_worker(web.pid)  # inside of one
        line.close()
        wait_for("the web answers", lambda: is_up(address), 60)
        assert client.find_offset(path) == FIRST
        assert UploadPart.objects.count() == 1

        made = client.send(path, FIRST, DATA[FIRST:])["artifact"]
        assert (made["sha256"], made["size"]) == (said["sha256"], len(DATA))
        with artifacts.open_content(Artifact.objects.select_related("blob").get()) as file:
            assert file.read() == DATA
    finally:
        for process in [*psutil.Process(web.pid).children(), web]:
            process.kill()
        web.wait()


def kill_worker(main: int) -> None:
    """As power, the kernel or an operator would; the main process starts another one."""
    (worker,) = psutil.Process(main).children()
    os.kill(worker.pid, signal.SIGKILL)
    wait_for("it is gone", lambda: not worker.is_running(), 60)


def measure_draft(store: Path) -> int:
    """The bytes so far of what is being written."""
    return sum(path.stat().st_size for path in (store / ".incoming").glob("*"))
