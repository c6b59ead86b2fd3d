"""A payment service on loopback that counts its charges, and kills who asks for them."""

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
    """POST /charges under an Idempotency-Key, GET /charges/KEY; it takes the same key twice.

    Every second payer is killed, up to `kills`: before the charge is made, after it, or up to 10 ms
    after the answer, while the result is being stored.
    """

    daemon_threads = True

    def __init__(self, kills: int, seed: int) -> None:
        super().__init__(("127.0.0.1", 0), _Teller)
        self.rng = random.Random(seed)
        self.lock = threading.Lock()
        self.left = kills
        self.killed: Counter[str] = Counter()
        self.charges: list[str] = []
        self.url = f"http://127.0.0.1:{self.server_port}"

    def __enter__(self) -> Bank:
        threading.Thread(target=self.serve_forever, daemon=True).start()
        return self

    def __exit__(self, *args: object) -> None:
        self.shutdown()
        self.server_close()

    def choose_moment(self) -> str:
        """When this payer is killed; empty if it lives."""
        with self.lock:
            if not self.left or self.rng.random() < 0.5:
                return ""
            self.left -= 1
            return self.rng.choice((BEFORE, AFTER, ANSWERED))

    def kill(self, pid: int, moment: str) -> None:
        """End the payer."""
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
            self.killed[moment] += 1


class _Teller(BaseHTTPRequestHandler):
    server: Bank

    def do_POST(self) -> None:
        pid = json.loads(self.rfile.read(int(self.headers["Content-Length"])))["pid"]
        moment = self.server.choose_moment()
        if moment == BEFORE:
            return self.server.kill(pid, moment)
        with self.server.lock:
            self.server.charges.append(self.headers["Idempotency-Key"])
            number = len(self.server.charges)
        if moment == AFTER:
            return self.server.kill(pid, moment)
        self.answer(200, {"number": number})
        if moment:
            time.sleep(self.server.rng.random() * 0.01)
            self.server.kill(pid, moment)

    def do_GET(self) -> None:
        key = unquote(self.path.removeprefix("/charges/"))
        with self.server.lock:
            found = self.server.charges.index(key) + 1 if key in self.server.charges else 0
        self.answer(200 if found else 404, {"number": found})

    def answer(self, status: int, body: Any) -> None:
        self.send_response(status)
        self.end_headers()
        self.wfile.write(json.dumps(body).encode())
        self.wfile.flush()

    def log_message(self, format: str, *args: Any) -> None:
        pass
