"""A payment service on loopback that counts charges and refunds, and kills who asks for them."""

from __future__ import annotations

import contextlib
import json
import os
import random
import signal
import threading
import time
from collections import Counter
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import unquote

BEFORE, AFTER, ANSWERED = "before", "after", "answered"


class Bank(ThreadingHTTPServer):
    """POST /charges or /refunds under an Idempotency-Key, GET /charges/KEY or /refunds/KEY; it
    takes the same key twice.

    Every second caller is killed, up to `charges` and `refunds` of them: before the deed, after it,
    or up to 10 ms after the answer, while the result is being stored.
    """

    daemon_threads = True

    def __init__(self, seed: int, *, charges: int, refunds: int) -> None:
        super().__init__(("127.0.0.1", 0), _Teller)
        self.rng = random.Random(seed)
        self.lock = threading.Lock()
        self.left = {"charges": charges, "refunds": refunds}
        self.killed: Counter[tuple[str, str]] = Counter()
        self.books: dict[str, list[str]] = {"charges": [], "refunds": []}
        self.url = f"http://127.0.0.1:{self.server_port}"

    def __enter__(self) -> Bank:
        threading.Thread(target=self.serve_forever, daemon=True).start()
        return self

    def __exit__(self, *args: object) -> None:
        self.shutdown()
        self.server_close()

    def choose_moment(self, book: str) -> str:
        """When this caller is killed; empty if it lives."""
        with self.lock:
            if not self.left[book] or self.rng.random() < 0.5:
                return ""
            self.left[book] -= 1
            return (BEFORE, AFTER, ANSWERED)[self.left[book] % 3]

    def kill(self, pid: int, book: str, moment: str) -> None:
        """End the caller."""
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
            self.killed[book, moment] += 1


class _Teller(BaseHTTPRequestHandler):
    server: Bank

    def do_POST(self) -> None:
        pid = json.loads(self.rfile.read(int(self.headers["Content-Length"])))["pid"]
        book = self.path.removeprefix("/")
        moment = self.server.choose_moment(book)
        if moment == BEFORE:
            return self.server.kill(pid, book, moment)
        with self.server.lock:
            self.server.books[book].append(self.headers["Idempotency-Key"])
            number = len(self.server.books[book])
        if moment == AFTER:
            return self.server.kill(pid, book, moment)
        self.answer(200, {"number": number})
        if moment:
            time.sleep(self.server.rng.random() * 0.01)
            self.server.kill(pid, book, moment)

    def do_GET(self) -> None:
        _, name, key = self.path.split("/", 2)
        book = self.server.books[name]
        with self.server.lock:
            found = book.index(unquote(key)) + 1 if unquote(key) in book else 0
        self.answer(200 if found else 404, {"number": found})

    def answer(self, status: int, body: Any) -> None:
        self.send_response(status)
        self.end_headers()
        self.wfile.write(json.dumps(body).encode())
        self.wfile.flush()

    def log_message(self, format: str, *args: Any) -> None:
        pass
