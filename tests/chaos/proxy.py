"""The line between the product and its database: it can stall, drop, vanish, and cut after a
commit."""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import logging
import socket
import struct
import threading
from collections import Counter
from collections.abc import Callable, Coroutine
from typing import Any, Self

from tests.chaos import wire

CHUNK = 65_536
SO_ATTACH_FILTER = 26  # Linux
logging.getLogger("asyncio").setLevel(logging.ERROR)  # it warns of each write to a dropped session


class Link:
    """One session that passes through."""

    def __init__(self, client: asyncio.StreamWriter, server: asyncio.StreamWriter) -> None:
        self.client = client
        self.server = server
        self.talk = wire.Conversation()
        self.cutting: str | None = None
        """The label of the statement whose reply is held back."""
        self.held: list[bytes] = []

    def vanish(self) -> None:
        """Let the kernel drop every packet that comes for us, so that it acknowledges none."""
        nothing = ctypes.create_string_buffer(struct.pack("HBBI", 0x06, 0, 0, 0))  # BPF: return 0
        program = struct.pack("HP", 1, ctypes.addressof(nothing))
        for side in (self.client, self.server):
            side.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, SO_ATTACH_FILTER, program)

    def abort(self) -> None:
        """End both sides at once."""
        self.client.transport.abort()
        self.server.transport.abort()


class Proxy:
    """Runs in a thread of its own. `port` is where the product connects."""

    def __init__(self, server_port: int) -> None:
        self.server_port = server_port
        self.port = 0
        self.cuts: Counter[str] = Counter()
        """How often a reply was swallowed, by what had been committed."""
        self._armed: str | None = None
        self._links: set[Link] = set()
        self._ready = threading.Event()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, name="proxy", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        self._ready.wait(10)
        return self

    def __exit__(self, *exc: object) -> None:
        self._call(self._close)
        self._thread.join(10)

    # --- What the schedule asks for, from any thread ----------------------------------------------

    def stall(self) -> None:
        """Pass nothing on until `flow`."""
        self._call(self._flowing.clear)

    def flow(self) -> None:
        """Pass everything on."""
        self._call(self._flowing.set)

    def drop(self) -> None:
        """End every session."""
        self._call(lambda: [link.abort() for link in list(self._links)])

    def vanish(self) -> None:
        """From now on no session of now hears anything from its other side, as behind a firewall
        that has forgotten it: no end, no answer, not even the kernel's. New ones pass."""
        self._call(lambda: [link.vanish() for link in list(self._links)])

    def arm(self, label: str) -> None:
        """Swallow the reply to the next commit of that label (any, if empty), and hang up."""
        self._armed = label

    def disarm(self) -> None:
        """Swallow nothing."""
        self._armed = None

    def is_armed(self) -> bool:
        """Whether the last `arm` has met nothing yet."""
        return self._armed is not None

    def _call(self, act: Callable[[], Any]) -> None:
        with contextlib.suppress(RuntimeError):  # the loop is closed
            self._loop.call_soon_threadsafe(act)

    # --- The loop ---------------------------------------------------------------------------------

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        self._flowing = asyncio.Event()
        self._flowing.set()
        self._listener = self._loop.run_until_complete(
            asyncio.start_server(self._serve, "127.0.0.1", 0)
        )
        self.port = self._listener.sockets[0].getsockname()[1]
        self._ready.set()
        self._loop.run_forever()
        self._loop.close()

    def _close(self) -> None:
        self._listener.close()
        for link in list(self._links):
            link.abort()
        self._loop.call_later(0.1, self._loop.stop)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            answers, server = await asyncio.open_connection("127.0.0.1", self.server_port)
        except OSError:
            writer.transport.abort()
            return
        link = Link(writer, server)
        self._links.add(link)
        try:
            await _until_one_ends(
                self._pass_requests(link, reader), self._pass_replies(link, answers)
            )
        finally:
            self._links.discard(link)
            link.abort()

    async def _pass_requests(self, link: Link, reader: asyncio.StreamReader) -> None:
        buffer, typed = bytearray(), False
        while data := await reader.read(CHUNK):
            await self._flowing.wait()
            buffer += data
            if not typed:
                for message in wire.split_messages(buffer, typed=False):
                    link.server.write(message)
                    typed = True
            if typed:
                for message in wire.split_messages(buffer):
                    self._note_request(link, message)
                    link.server.write(message)
            await link.server.drain()

    def _note_request(self, link: Link, message: bytes) -> None:
        label = link.talk.read_request(message)
        if label and self._armed in {label, ""} and link.cutting is None:
            link.cutting, self._armed = label, None

    async def _pass_replies(self, link: Link, reader: asyncio.StreamReader) -> None:
        buffer = bytearray()
        while data := await reader.read(CHUNK):
            await self._flowing.wait()
            buffer += data
            for message in wire.split_messages(buffer):
                done = link.talk.read_reply(message)
                if link.cutting is None:
                    link.client.write(message)
                    continue
                link.held.append(message)
                if done and not self._give_up_cut(link):
                    return
            await link.client.drain()

    def _give_up_cut(self, link: Link) -> bool:
        """At the end of a reply: True when nothing was committed, and it is passed on after all."""
        label, link.cutting = link.cutting, None
        assert label is not None
        held, link.held = link.held, []
        committed = label in {wire.COMMIT, "write", "submit"} or wire.has_row(held)
        if committed and not wire.is_refused(held):
            self.cuts[label] += 1
            return False
        link.client.writelines(held)
        if self._armed is None:
            self._armed = label
        return True


async def _until_one_ends(*pumps: Coroutine[Any, Any, None]) -> None:
    tasks = [asyncio.ensure_future(pump) for pump in pumps]
    _, pending = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    for task in pending:
        task.cancel()
    for task in tasks:
        with contextlib.suppress(asyncio.CancelledError, OSError):
            await task
