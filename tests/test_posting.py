"""`post_json` against services that answer as no good one does: nothing that they say spreads the
key, stands for an answer that it is not, or can't be stored."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any, ClassVar
from urllib.error import HTTPError, URLError

import pytest

from ledger import canonical
from ledger.workflows import post_json


class Service(BaseHTTPRequestHandler):
    """Answers with what the test has laid out for the path."""

    seen: ClassVar[list[tuple[str, str, str | None]]] = []
    answers: ClassVar[dict[str, tuple[int, dict[str, str], bytes]]] = {}

    def do_POST(self) -> None:
        self.seen.append((self.command, self.path, self.headers["Authorization"]))
        self.rfile.read(int(self.headers["Content-Length"] or 0))
        status, headers, body = self.answers.get(self.path, (200, {}, b"{}"))
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)

    do_GET = do_PUT = do_POST

    def log_message(self, format: str, *args: Any) -> None:
        pass


@pytest.fixture
def service() -> Iterator[str]:
    Service.seen.clear()
    Service.answers.clear()
    with HTTPServer(("127.0.0.1", 0), Service) as server:
        thread = threading.Thread(target=server.serve_forever, args=[0.02])
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
@pytest.mark.parametrize("method", ["POST", "GET"])
def test_a_redirect_is_no_answer_and_takes_the_key_to_no_other_host(
    service: str, status: int, method: str
) -> None:
    other = service.replace("127.0.0.1", "localhost") + "/thief"
    Service.answers["/pay"] = (status, {"Location": other}, b"")
    with pytest.raises(HTTPError) as caught:
        post_json(f"{service}/pay", {}, key="k", method=method, headers={"Authorization": "s3cret"})
    caught.value.close()
    assert caught.value.code == status
    assert Service.seen == [(method, "/pay", "s3cret")]


def test_half_an_answer_is_none(service: str) -> None:
    Service.answers["/short"] = (200, {"Content-Length": "40"}, b'{"number": 4')
    Service.answers["/chunked"] = (200, {"Transfer-Encoding": "chunked"}, b'20\r\n{"number": 4')
    Service.answers["/nothing"] = (200, {"Content-Length": "nine"}, b'{"number": 4}')
    Service.protocol_version = "HTTP/1.1"
    try:
        for path in ("/short", "/chunked"):
            Service.answers[path][1]["Connection"] = "close"
            with pytest.raises(URLError):
                post_json(f"{service}{path}", {}, key="k", timeout=10)
    finally:
        Service.protocol_version = "HTTP/1.0"
    assert post_json(f"{service}/nothing", {}, key="k") == {"number": 4}


@pytest.mark.parametrize(
    ("kind", "body"),
    [
        ("application/json; charset=klingon", b'"fine"'),
        ("application/json; charset=undefined", b'"fine"'),
        ("application/json", b'{"a": NaN}'),
        ("application/json", b'"a\\u0000b"'),
        ("application/json", b'"\\ud800"'),
        ("application/json", b"[" * 100_000),
        ("application/json", b"1" * 5_000),
        ("text/plain", b"a\0b\xff"),
    ],
)
def test_whatever_is_answered_can_be_stored(service: str, kind: str, body: bytes) -> None:
    Service.answers["/pay"] = (200, {"Content-Type": kind}, body)
    answer = post_json(f"{service}/pay", {}, key="k")
    canonical.check_json(answer)
    if b"fine" in body:
        assert answer == "fine"
    assert json.dumps(answer) != "{}"
