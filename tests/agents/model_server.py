"""An OpenAI-compatible model on loopback whose turns are written by the test, with its faults.

    with ModelServer(script) as server:
        OpenAIChatModel("gpt-4o-mini", provider=OpenAIProvider(base_url=server.url, api_key="k"))

`script` is given each request's body and says what the model answers: a Reply, or a Fault. Every
call is kept in `calls` under a request id, whatever becomes of it, so a test can count what was
paid. It answers whole; slow tokens are a body that comes in small pieces.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import socket
import threading
import time
from collections.abc import Callable, Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Self

PAID = "paid"
TOKENS_IN, TOKENS_OUT = 100, 20


@dataclasses.dataclass(frozen=True)
class Reply:
    """What the model says: text, or calls of tools as (name, arguments); raw text arguments are
    sent as they are, well-formed or not. `slow` is the seconds between two pieces of the answer;
    `before` and `after` are called around its sending, when it is paid already; `change` is given
    the whole of it and makes it what no provider should send."""

    text: str = ""
    thinking: str = ""
    calls: Sequence[tuple[str, Any]] = ()
    tokens: tuple[int, int] = (TOKENS_IN, TOKENS_OUT)
    slow: float = 0.0
    before: Callable[[Call], object] | None = None
    after: Callable[[Call], object] | None = None
    change: Callable[[dict[str, Any]], object] | None = None


@dataclasses.dataclass(frozen=True)
class Fault:
    """An error instead of an answer: an HTTP status with headers, or with `cut` half of an answer
    and the end of the connection."""

    status: int = 500
    headers: dict[str, str] = dataclasses.field(default_factory=dict)
    message: str = "scripted"
    cut: bool = False


@dataclasses.dataclass
class Call:
    """One request that arrived. `outcome` is PAID once the model has answered, else the fault."""

    id: str
    body: dict[str, Any]
    worker: int = 0
    """The process that asks, by the header X-Worker, where it says so."""
    outcome: str = "in flight"

    @property
    def turn(self) -> int:
        """How many answers of the model the request carries."""
        return count_answers(self.body)


def count_answers(body: dict[str, Any]) -> int:
    """How many answers of the model a request carries: the turn that it asks for."""
    return sum(one["role"] == "assistant" for one in body["messages"])


def read_results(body: dict[str, Any]) -> list[str]:
    """What the tools of a request have returned, in order."""
    return [str(one["content"]) for one in body["messages"] if one["role"] == "tool"]


type Script = Callable[[dict[str, Any]], Reply | Fault]


class ModelServer:
    """Serves `script` in threads until its block ends."""

    def __init__(self, script: Script, port: int = 0) -> None:
        self.script = script
        self.calls: list[Call] = []
        self._lock = threading.Lock()
        handler = type("Handler", (_Handler,), {"owner": self})
        self._http = ThreadingHTTPServer(("127.0.0.1", port), handler)
        self._http.daemon_threads = True
        self._thread = threading.Thread(target=self._http.serve_forever, args=(0.05,))
        self.url = f"http://127.0.0.1:{self._http.server_port}/v1"

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._http.shutdown()
        self._http.server_close()
        self._thread.join()

    @property
    def paid(self) -> list[Call]:
        """The calls that the model has answered, and bills."""
        return [one for one in list(self.calls) if one.outcome == PAID]

    def take(self, body: dict[str, Any], worker: int) -> Call:
        """Put a request on record."""
        with self._lock:
            call = Call(f"req-{len(self.calls) + 1}", body, worker)
            self.calls.append(call)
            return call


class _Handler(BaseHTTPRequestHandler):
    owner: ModelServer
    protocol_version = "HTTP/1.1"
    timeout = 30

    def log_message(self, *_: object) -> None:
        """Say nothing."""

    def do_POST(self) -> None:
        """One request for an answer, by somebody who may be killed before it comes."""
        with contextlib.suppress(ConnectionError):
            self._serve()

    def _serve(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        call = self.owner.take(body, int(self.headers.get("X-Worker", 0)))
        said = self.owner.script(body)
        if isinstance(said, Reply):
            call.outcome = PAID  # before it is sent: a provider bills what nobody receives as well
            if said.before is not None:
                said.before(call)
            self._answer(call, said)
            if said.after is not None:
                said.after(call)
        elif said.cut:
            call.outcome = "cut"
            self._cut(call)
        else:
            call.outcome = str(said.status)
            problem = {"error": {"message": said.message, "type": "scripted", "code": None}}
            self._send(call, said.status, json.dumps(problem).encode(), **said.headers)

    def _answer(self, call: Call, said: Reply) -> None:
        content = json.dumps(_write_whole(call, said)).encode()
        if not said.slow:
            return self._send(call, 200, content)
        self._begin(call, 200, {"Content-Length": str(len(content))})
        for start in range(0, len(content), 16):
            self.wfile.write(content[start : start + 16])
            time.sleep(said.slow)

    def _cut(self, call: Call) -> None:
        whole = json.dumps(_write_whole(call, Reply("half of an ans"))).encode()
        self._begin(call, 200, {"Content-Length": str(len(whole) * 2)})
        self.wfile.write(whole[: len(whole) // 2])
        self.wfile.flush()
        self.connection.shutdown(socket.SHUT_RDWR)
        self.close_connection = True

    def _send(self, call: Call, status: int, content: bytes, **headers: str) -> None:
        self._begin(call, status, {"Content-Length": str(len(content)), **headers})
        self.wfile.write(content)

    def _begin(self, call: Call, status: int, headers: dict[str, str]) -> None:
        self.send_response(status)
        for name, value in {"Content-Type": "application/json", "x-request-id": call.id,
                            **headers}.items():  # fmt: skip
            self.send_header(name, value)
        self.end_headers()


def _write_whole(call: Call, said: Reply) -> dict[str, Any]:
    whole = {
        "id": call.id, "object": "chat.completion", "created": 1_700_000_000,
        "model": call.body["model"],
        "choices": [{"index": 0, "message": {"role": "assistant", **_write_message(call, said)},
                     "finish_reason": "tool_calls" if said.calls else "stop"}],
        "usage": _write_usage(said),
    }  # fmt: skip
    if said.change is not None:
        said.change(whole)
    return whole


def _write_usage(said: Reply) -> dict[str, int]:
    given, made = said.tokens
    return {"prompt_tokens": given, "completion_tokens": made, "total_tokens": given + made}


def _write_message(call: Call, said: Reply) -> dict[str, Any]:
    texts = [
        (name, args if isinstance(args, str) else json.dumps(args)) for name, args in said.calls
    ]
    calls = [
        {"index": n, "id": f"{call.id}-{n}", "type": "function",
         "function": {"name": name, "arguments": text}}
        for n, (name, text) in enumerate(texts)
    ]  # fmt: skip
    thought = {"reasoning_content": said.thinking} if said.thinking else {}
    return {"content": said.text or None} | thought | ({"tool_calls": calls} if calls else {})
