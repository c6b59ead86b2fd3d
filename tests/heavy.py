"""`python -m tests.heavy BYTES`: an artifact of that size through one process, by a step and by
REST; says as JSON what it took: seconds of each way, and the most memory it ever had."""

from __future__ import annotations

import hashlib
import io
import json
import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

CHUNK = 1 << 20


class Body(io.RawIOBase):
    """So many bytes, made as they are read; each copy differs from the others by its seed."""

    def __init__(self, size: int, seed: int) -> None:
        self.left, self.block, self.count = size, os.urandom(CHUNK - 16), 0
        self.seed, self.digest = seed, hashlib.sha256()

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        head = self.seed.to_bytes(8, "big") + self.count.to_bytes(8, "big")
        chunk = (head + self.block)[: min(len(buffer), self.left)]
        buffer[: len(chunk)] = chunk
        self.left, self.count = self.left - len(chunk), self.count + 1
        self.digest.update(chunk)
        return len(chunk)


def read_peak() -> int:
    """The most resident memory so far, in MB."""
    status = Path("/proc/self/status").read_text()
    return int(status.partition("VmHWM:")[2].split()[0]) // 1024


def ask(method: str, path: str, token: str, body: Any = None, **headers: str) -> tuple[int, Any]:
    """The status and the pieces of the answer of the site itself, as a server would ask it."""
    from harness_site.wsgi import application

    said: list[str] = []
    environ: dict[str, Any] = {
        "REQUEST_METHOD": method, "PATH_INFO": path.partition("?")[0],
        "QUERY_STRING": path.partition("?")[2], "SERVER_NAME": "localhost", "SERVER_PORT": "8000",
        "HTTP_HOST": "localhost:8000", "HTTP_AUTHORIZATION": f"Bearer {token}",
        "wsgi.url_scheme": "http", "wsgi.input": body or io.BytesIO(), "wsgi.errors": sys.stderr,
        "CONTENT_TYPE": "application/octet-stream", **headers,
    }  # fmt: skip
    answer = application(environ, lambda status, fields, *_: said.append(status))
    return int(said[0].split()[0]), answer


def hash_pieces(pieces: Any) -> tuple[str, int]:
    digest, size = hashlib.sha256(), 0
    for piece in pieces:
        digest.update(piece)
        size += len(piece)
    pieces.close()
    return digest.hexdigest(), size


def run_ways(size: int) -> Iterator[tuple[str, float]]:
    """Each way, and its seconds."""
    from ledger.access import SCOPES
    from ledger.testing import run
    from ledger.tokens import make_token
    from ledger.workflows import Workflow

    flow = Workflow("heavy")
    source = Body(size, 1)
    took: dict[str, float] = {}

    @flow.step
    def keep(ctx: Any) -> dict[str, Any]:
        began = time.monotonic()
        saved = ctx.save_artifact("heavy", iter(lambda: source.read(CHUNK), b""))
        took["save"] = time.monotonic() - began
        return {"sha256": saved.blob_id}

    @flow.step
    def look(ctx: Any) -> dict[str, Any]:
        began = time.monotonic()
        with ctx.open_artifact("heavy") as file:
            same = hashlib.file_digest(file, "sha256").hexdigest() == source.digest.hexdigest()
        took["open"] = time.monotonic() - began
        return {"same": same}

    ended = run(flow)
    assert ended.result == {"same": True}, ended.task
    yield from took.items()
    token = make_token("heavy", SCOPES, created_by="cli:test")[1]
    began, body = time.monotonic(), Body(size, 2)
    status, answer = ask("POST", "/api/v1/artifacts?name=up", token, body, CONTENT_LENGTH=str(size))
    told = json.loads(b"".join(answer))
    assert (status, told["sha256"]) == (201, body.digest.hexdigest()), told
    yield "upload", time.monotonic() - began
    path, began = f"/api/v1/artifacts/{told['id']}/content", time.monotonic()
    status, answer = ask("GET", path, token)
    assert (status, *hash_pieces(answer)) == (200, body.digest.hexdigest(), size)
    yield "download", time.monotonic() - began
    for name in ("range", "range again"):
        began = time.monotonic()
        status, answer = ask("GET", path, token, HTTP_RANGE="bytes=-10")
        assert (status, hash_pieces(answer)[1]) == (206, 10)
        yield name, time.monotonic() - began


def main() -> None:
    import django

    django.setup()
    size = int(sys.argv[1])
    from harness_site import wsgi  # noqa: F401  before what is measured

    before = read_peak()
    told = {"before": before, **{name: round(took, 2) for name, took in run_ways(size)}}
    sys.stdout.write(json.dumps(told | {"peak": read_peak()}))


if __name__ == "__main__":
    main()
