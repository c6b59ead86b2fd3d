"""A TCP proxy before PostgreSQL that cuts a connection around a chosen statement.

`proxy.cut(marker, forward=True)`: the next request that contains `marker` reaches the server, which
carries it out, and its answer is lost. With `forward=False` the request itself is lost.
"""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Callable
from typing import Self


class Proxy:
    """Listens on a loopback port of its own, `port`; one thread a connection and direction."""

    def __init__(self, host: str, port: int) -> None:
        self.target = (host, port)
        self.cuts = 0
        self.alter: Callable[[bytes], bytes] = bytes
        """What becomes of the server's words on their way."""
        self._marker: bytes | None = None
        self._forward = True
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = int(self._listener.getsockname()[1])
        self._open: list[socket.socket] = []

    def __enter__(self) -> Self:
        threading.Thread(target=self._accept, daemon=True).start()
        return self

    def __exit__(self, *exc: object) -> None:
        self._listener.close()
        for one in self._open:
            _close(one)

    def cut(self, marker: bytes, *, forward: bool) -> None:
        """Cut the connection that next sends `marker`, once."""
        self._marker, self._forward = marker, forward

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return  # closed: the test is over
            server = socket.create_connection(self.target)
            self._open += [client, server]
            pair = _Pair(client, server)
            threading.Thread(target=self._send, args=[pair], daemon=True).start()
            threading.Thread(target=self._answer, args=[pair], daemon=True).start()

    def _send(self, pair: _Pair) -> None:
        """Client to server, looking for the marker."""
        with contextlib.suppress(OSError):
            while data := pair.client.recv(1 << 16):
                if self._marker is None or self._marker not in data:
                    pair.server.sendall(data)
                    continue
                self._marker = None
                self.cuts += 1
                if self._forward:
                    pair.swallowing.set()
                    pair.server.sendall(data)
                    pair.answered.wait(30)
                break
        pair.close()

    def _answer(self, pair: _Pair) -> None:
        """Server to client, until an answer is to be swallowed: then it is carried out."""
        with contextlib.suppress(OSError):
            while data := pair.server.recv(1 << 16):
                if pair.swallowing.is_set():
                    pair.answered.set()
                    return
                pair.client.sendall(self.alter(data))
        pair.close()


class _Pair:
    def __init__(self, client: socket.socket, server: socket.socket) -> None:
        self.client, self.server = client, server
        self.swallowing, self.answered = threading.Event(), threading.Event()

    def close(self) -> None:
        _close(self.client)
        _close(self.server)


def _close(one: socket.socket) -> None:
    with contextlib.suppress(OSError):
        one.shutdown(socket.SHUT_RDWR)
    one.close()
