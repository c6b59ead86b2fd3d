"""The tools that ask hosts: which they reach, and what a host can't make them do."""

from __future__ import annotations

import contextlib
import json
import socket
import ssl
import subprocess
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from ledger.agents import Host, http_tools
from ledger.agents.kits.fetching import NotSent, find_target, is_public, send_request
from ledger.models import Approval, Event
from ledger.testing import LOST
from tests.agents.sessions import play

pytestmark = [pytest.mark.both_databases, pytest.mark.django_db]


class Site(ThreadingHTTPServer):
    """A host on loopback that remembers what it was asked."""

    daemon_threads = True

    def __init__(self, address: str = "127.0.0.1") -> None:
        super().__init__((address, 0), _Handler)
        self.seen: list[tuple[str, str, dict[str, str], str]] = []
        self.cuts = 0
        self.leads = ""

    @property
    def port(self) -> int:
        """Where it listens."""
        return int(self.server_address[1])


class _Handler(BaseHTTPRequestHandler):
    server: Site

    def log_message(self, *_: object) -> None:
        """Say nothing."""

    def do_GET(self) -> None:
        """Whatever the path asks for, as long as somebody listens."""
        with contextlib.suppress(OSError):
            self._answer()

    def _answer(self) -> None:
        size = int(self.headers.get("Content-Length", 0))
        body = self.rfile.read(size).decode()
        self.server.seen.append((self.command, self.path, dict(self.headers), body))
        if self.server.cuts:
            self.server.cuts -= 1
            return self.connection.shutdown(socket.SHUT_RDWR)
        if self.path == "/slow":
            self.wfile.write(b"HTTP/1.1 200 OK\r\n")
            while True:
                self.wfile.write(b"X-Slow: 1\r\n"[:1])
                time.sleep(0.05)
        if self.path.startswith("/to"):
            self.send_response(302)
            self.send_header("Location", self.server.leads)
            return self.end_headers()
        content = {"/bytes": b"\x89PNG\0", "/large": b"tea " * 2**20}.get(
            self.path, json.dumps({"path": self.path, "body": body}).encode()
        )
        self.send_response(404 if self.path == "/none" else 200)
        self.send_header("Content-Type", "application/json; charset=utf-8")
        self.end_headers()
        self.wfile.write(content)

    do_POST = do_DELETE = do_GET


@contextlib.contextmanager
def serve(address: str = "127.0.0.1") -> Iterator[Site]:
    """The site, while the block runs."""
    with Site(address) as site:
        thread = threading.Thread(target=site.serve_forever, kwargs={"poll_interval": 0.02})
        thread.start()
        try:
            yield site
        finally:
            site.shutdown()
            thread.join()


def declare(site: Site, name: str = "127.0.0.1", **options: Any) -> Host:
    return Host(name, scheme="http", port=site.port, **{"private": True, **options})


def get(url: str) -> tuple[str, dict[str, Any]]:
    return "http_get", {"url": url}


def test_what_is_in_scope_is_fetched_within_bounds_and_what_is_not_is_denied(
    monkeypatch: Any,
) -> None:
    monkeypatch.setenv("LONGWATCH_SECRET_TEA", "sencha-1234")
    with serve() as site, serve() as other:
        base = f"http://127.0.0.1:{site.port}"
        site.leads = f"http://127.0.0.1:{other.port}/there"
        other.leads = "http://169.254.169.254/latest/meta-data"
        kit = http_tools(
            [declare(site, headers={"Authorization": "Bearer {TEA}"}), declare(other)], timeout=5
        )
        told, ended = play(
            [
                get(f"{base}/a b?q=ä#part"), get(f"{base}/none"), get(f"{base}/bytes"),
                get(f"{base}/large"), get(f"{base}/to"),
                get(f"http://127.0.0.1:{other.port}/to"),
                get(f"http://user@127.0.0.1:{site.port}/"), get("http://127.0.0.1:1/"),
                get("file:///etc/passwd"), get(f"https://127.0.0.1:{site.port}/"),
                get(f"http://127.0.0.1.evil.org:{site.port}/"), get(f"http://2130706433:{site.port}/"),
            ],
            kits=[kit],
        )  # fmt: skip
    assert told[0].startswith("[200 OK]\nContent-Type: application/json; charset=utf-8\n\n{")
    assert '"path": "/a%20b?q=%C3%A4"' in told[0]
    assert told[1].startswith("[404 Not Found]")
    assert told[2].endswith("[5 bytes that are no text]")
    assert told[3].endswith("[cut; in all 2,097,152 bytes and more]")
    assert len(told[3]) < 41_000
    assert '"/there"' in told[4], "a redirect in scope is followed"
    assert "GET 'http://169.254.169.254/latest/meta-data' is out of scope" in told[5]
    cure = f"what may be asked is: GET {base}, GET http://127.0.0.1:{other.port}"
    assert all(cure in one for one in told[6:]), told[6:]
    assert f"may ask: GET {base}, " in kit.about
    assert Event.objects.filter(task=ended.id, kind="tool_denied").count() == 6
    assert {one[2].get("Authorization") for one in site.seen} == {"Bearer sencha-1234"}
    assert {one[2].get("Authorization") for one in other.seen} == {None}, "no other host's secret"
    assert "sencha" not in str(ended.outputs)


def test_a_writing_request_has_its_key_and_is_made_once_or_asked_about() -> None:
    with serve() as site:
        url = f"http://127.0.0.1:{site.port}/pay"
        send = ("http_send", {"method": "POST", "url": url, "body": '{"tea": 1}'})
        wrong = ("http_send", {"method": "DELETE", "url": url})
        host = declare(site, methods=["GET", "POST"])
        told, ended = play([send, wrong], kits=[http_tools([host])], faults={"look": [LOST]})
        assert any('"body": "{\\"tea\\": 1}"' in one for one in told)
        assert any("DELETE" in one and "is out of scope" in one for one in told)
        (method, _, headers, body), *more = site.seen
        assert (method, body, more) == ("POST", '{"tea": 1}', []), "made once"
        assert headers["Idempotency-Key"].startswith(f"{ended.id}:look:0:0:tool.http_send.")
        site.cuts, site.seen = 1, []
        answers = {"look": {"decision": "approve", "values": {"happened": "done"}}}
        told, _ = play([send], kits=[http_tools([host])], answers=answers)
        assert (len(site.seen), Approval.objects.count()) == (1, 1), "nobody knows, so people say"
        site.cuts, site.seen = 1, []
        told, _ = play([send], kits=[http_tools([host], idempotent=True)])
        first, second = [one[2]["Idempotency-Key"] for one in site.seen]
        assert first == second
        assert Approval.objects.count() == 1


def test_a_name_is_looked_up_once_and_what_it_leads_to_is_checked(monkeypatch: Any) -> None:
    looked: list[str] = []

    def answer_differently(name: str, port: int, **_: Any) -> Any:
        """The first time the honest address, then another."""
        looked.append(name)
        address = "127.0.0.1" if len(looked) == 1 else "127.0.0.2"
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (address, port))]

    with serve() as site:
        public = declare(site, "example.org", private=False)
        honest = declare(site, "example.org")
        target = find_target([honest], "GET", f"http://EXAMPLE.org:{site.port}/")
        monkeypatch.setattr(socket, "getaddrinfo", answer_differently)
        assert send_request(target, "GET", {}, None, 5).status == 200
        assert looked == ["example.org"]
        assert site.seen[0][2]["Host"] == f"example.org:{site.port}"
        looked.clear()
        target = find_target([public], "GET", f"http://example.org:{site.port}/")
        with pytest.raises(NotSent, match="which is no public address"):
            send_request(target, "GET", {}, None, 5)
        assert len(site.seen) == 1


@pytest.mark.parametrize(
    ("address", "public"),
    [
        ("93.184.216.34", True), ("2606:4700::1111", True), ("127.0.0.1", False),
        ("10.1.2.3", False), ("169.254.169.254", False), ("100.64.0.1", False), ("0.0.0.0", False),
        ("::1", False), ("fe80::1%eth0", False), ("fd00::1", False), ("224.0.0.1", False),
        ("::ffff:127.0.0.1", False), ("64:ff9b::7f00:1", False), ("2002:7f00:1::", False),
    ],
)  # fmt: skip
def test_only_addresses_of_the_open_network_are_public(address: str, public: bool) -> None:
    assert is_public(address) is public


def test_a_host_that_speaks_slowly_is_ended_in_time() -> None:
    with serve() as site:
        target = find_target([declare(site)], "GET", f"http://127.0.0.1:{site.port}/slow")
        began = time.monotonic()
        with pytest.raises(OSError, match="it took over"):
            send_request(target, "GET", {}, None, 0.5)
        assert time.monotonic() - began < 10


def test_a_certificate_is_checked_against_the_declared_name(
    tmp_path: Path, monkeypatch: Any
) -> None:
    key, cert = tmp_path / "key", tmp_path / "cert"
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-subj", "/CN=localhost",
         "-addext", "subjectAltName=DNS:localhost", "-keyout", key, "-out", cert, "-days", "2"],
        check=True, capture_output=True,
    )  # fmt: skip
    with serve() as site:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(cert, key)
        site.socket = context.wrap_socket(site.socket, server_side=True)
        host = Host("localhost", port=site.port, private=True)
        target = find_target([host], "GET", f"https://localhost:{site.port}/")
        with pytest.raises(NotSent, match="certificate verify failed"):
            send_request(target, "GET", {}, None, 5)
        monkeypatch.setenv("SSL_CERT_FILE", str(cert))
        assert send_request(target, "GET", {}, None, 5).status == 200


def test_hosts_that_cant_be_are_refused_when_they_are_declared() -> None:
    for wrong in ("https://example.org", "Example.org", "a/b", "", "*"):
        with pytest.raises(ValueError, match="no name of a host"):
            http_tools([wrong])
    with pytest.raises(ValueError, match="methods"):
        Host("example.org", methods=["TRACE"])
    with pytest.raises(ValueError, match="can't be sent"):
        Host("example.org", headers={"X": "a\r\nb"})
    assert [tool.name for tool in http_tools(["example.org"]).tools] == ["http_get"]
    wild = Host("*.example.org")
    assert wild.fits("a.example.org")
    assert not wild.fits("example.org")
    assert not wild.fits("badexample.org")
