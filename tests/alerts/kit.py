"""Those who are told: an HTTP receiver and a mail server on loopback, each as bad as is asked."""

from __future__ import annotations

import contextlib
import dataclasses
import email
import email.message
import email.policy
import json
import socket
import threading
import time
from collections.abc import Callable
from typing import Any, Self

from ledger import clock
from ledger.alerts import channels, deliveries, rules
from ledger.alerts.deliveries import Outcome
from ledger.alerts.rules import RuleDraft
from ledger.models import AlertRule
from tests.factories import OPERATOR

LOOPBACK = "127.0.0.0/8"


@dataclasses.dataclass(frozen=True)
class Got:
    """One request."""

    path: str
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> dict[str, Any]:
        """The body."""
        return dict(json.loads(self.body))


class Server:
    """A thread for each connection, on a free port of loopback. Leaving the block ends it."""

    def __init__(self) -> None:
        self.listening = socket.create_server(("127.0.0.1", 0))
        self.port = self.listening.getsockname()[1]
        self.over = threading.Event()

    def __enter__(self) -> Self:
        threading.Thread(target=self._accept, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self.over.set()
        with contextlib.suppress(OSError):
            self.listening.shutdown(socket.SHUT_RDWR)
        self.listening.close()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                line, _ = self.listening.accept()
                threading.Thread(target=self._serve, args=(line,), daemon=True).start()

    def _serve(self, line: socket.socket) -> None:
        with contextlib.suppress(OSError), line:
            self.serve(line)

    def serve(self, line: socket.socket) -> None:
        """One connection to its end."""
        raise NotImplementedError


OK = b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n"


class Receiver(Server):
    """Behaves as its path says: /ok /500 /404 /hang /drip /huge /loop /close /flap."""

    def __init__(self) -> None:
        super().__init__()
        self.got: list[Got] = []
        self.sent = 0
        self.holds = threading.Event()
        """/held answers once this is set."""

    def url(self, path: str) -> str:
        """Where it listens."""
        return f"http://127.0.0.1:{self.port}/{path}"

    def at(self, path: str) -> list[Got]:
        """The requests to one path."""
        return [one for one in list(self.got) if one.path == f"/{path}"]

    def serve(self, line: socket.socket) -> None:
        """Read one request whole, note it, behave."""
        file = line.makefile("rb")
        path = file.readline().split()[1].decode()
        headers = {}
        while text := file.readline().strip().decode():
            name, _, value = text.partition(": ")
            headers[name.lower()] = value
        body = file.read(int(headers["content-length"]))
        self.got.append(Got(path, headers, body))
        self.behave(line, path.strip("/"))

    def behave(self, line: socket.socket, path: str) -> None:
        """Answer, or what it does instead."""
        if path == "hang":
            self.over.wait(60)
        elif path == "held":
            self.holds.wait(60)
            line.sendall(OK)
        elif path == "drip":
            for byte in b"HTTP/1.1 200 OK\r\n" + b"x: y\r\n" * 1000:
                line.sendall(bytes([byte]))
                if self.over.wait(0.2):
                    return
        elif path == "huge":
            line.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 1073741824\r\n\r\n")
            for _ in range(1024):
                self.sent += line.send(b"x" * (1 << 20))
        elif path == "loop":
            line.sendall(f"HTTP/1.1 301 Moved\r\nLocation: {self.url('loop')}\r\n\r\n".encode())
        elif path == "flap" and len(self.at("flap")) % 2:
            line.sendall(b"HTTP/1.1 503 Away\r\n\r\n")
        elif path in {"500", "404"}:
            line.sendall(f"HTTP/1.1 {path} No\r\n\r\n<script>alert(1)</script>".encode())
        elif path != "close":
            line.sendall(OK)


class MailServer(Server):
    """Takes every mail."""

    def __init__(self) -> None:
        super().__init__()
        self.mails: list[email.message.EmailMessage] = []
        self.recipients: list[str] = []

    def serve(self, line: socket.socket) -> None:
        """The few words of SMTP that a client needs."""
        file = line.makefile("rb")
        line.sendall(b"220 here\r\n")
        while command := file.readline():
            word = command[:4].upper()
            if word == b"RCPT":
                self.recipients.append(command.decode().partition("<")[2].partition(">")[0])
            if word == b"DATA":
                line.sendall(b"354 go on\r\n")
                parts = []
                while (part := file.readline()) not in {b".\r\n", b""}:
                    parts.append(part.removeprefix(b"."))
                parsed: Any = email.message_from_bytes(b"".join(parts), policy=email.policy.default)
                self.mails.append(parsed)
            line.sendall(b"221 bye\r\n" if word == b"QUIT" else b"250 yes\r\n")
            if word == b"QUIT":
                return


def make_rule(target: str, *kinds: str, channel: str = "webhook", **fields: Any) -> AlertRule:
    """A rule for these kinds, by default for those that gave up."""
    name = fields.pop("name", "on call")
    draft = RuleDraft(name, list(kinds or ["dead"]), channel, target, **fields)
    return rules.make_rule(draft, OPERATOR)[0]


def send_due(limit: int = 16) -> list[tuple[AlertRule, Outcome]]:
    """Take what is due, send it in this process, settle it."""
    told = []
    for job in deliveries.take_due(limit):
        outcome = channels.send_job(job)
        assert deliveries.settle_delivery(job, outcome)
        told.append((AlertRule.objects.get(pk=job.rule_id), outcome))
    return told


def pass_backoff() -> None:
    """Move the database's clock past every backoff."""
    clock.offset += deliveries.MAX_BACKOFF + 1


def wait_until[T](look: Callable[[], T], what: str, seconds: float = 30) -> T:
    """What `look` returns once it is true."""
    until = time.monotonic() + seconds
    while not (found := look()):
        assert time.monotonic() < until, f"after {seconds:g} s still not: {what}"
        time.sleep(0.02)
    return found
