"""What a worker and the process of an isolated step say to each other: JSON and open files.

A message is its length in eight bytes and its text; an open file travels beside the length. JSON
and never pickle: what comes out of the step's process is data, whoever wrote it.
"""

from __future__ import annotations

import dataclasses
import datetime as dt
import json
import os
import socket
import struct
from typing import Any, Final

from ledger import canonical, outcomes
from ledger.errors import Unserialisable
from ledger.outcomes import Again, AskApproval, Finish, Outcome, Repair, Sleep, Spawn, WaitFor

MAX_BYTES: Final = 256 * 1024**2
"""Of one message; larger values go through an artifact."""

_LENGTH: Final = struct.Struct(">Q")
_KINDS: Final[dict[str, type[Any]]] = {
    kind.__name__: kind
    for kind in (outcomes.Advance, Again, AskApproval, Finish, Repair, Sleep, Spawn, WaitFor)
}


class Wire:
    """One end of the connection. `receive` raises EOFError when the other end is gone."""

    def __init__(self, end: socket.socket) -> None:
        self.end = end

    def send(self, message: dict[str, Any], file: int | None = None) -> None:
        """Send a message, and with it an open file. Raises Unserialisable for a huge one."""
        text = json.dumps(message).encode()
        if len(text) > MAX_BYTES:
            why = f"is larger than {MAX_BYTES >> 20} MiB; keep it with ctx.save_artifact()"
            raise Unserialisable("output", why)
        files = [] if file is None else [file]
        socket.send_fds(self.end, [_LENGTH.pack(len(text))], files)
        self.end.sendall(text)

    def receive(self) -> tuple[dict[str, Any], int | None]:
        """The next message, and the descriptor of the file that came with it."""
        length, files, _, _ = socket.recv_fds(self.end, _LENGTH.size, 1)
        file = files[0] if files else None
        try:
            length += self._read(_LENGTH.size - len(length))
            (size,) = _LENGTH.unpack(length)
            if size > MAX_BYTES:
                raise ValueError(f"a message of {size} bytes")
            message = json.loads(self._read(size))
            if not isinstance(message, dict):
                raise ValueError("a message is an object")
        except BaseException:
            if file is not None:
                os.close(file)
            raise
        return message, file

    def _read(self, size: int) -> bytes:
        whole = bytearray(size)
        view, done = memoryview(whole), 0
        while done < size:
            if not (got := self.end.recv_into(view[done:])):
                raise EOFError("the other end is closed")
            done += got
        return bytes(whole)


def encode_outcome(outcome: Outcome) -> dict[str, Any]:
    """An outcome as JSON. Raises Unserialisable, naming the part, as the worker would."""
    fields = {f.name: getattr(outcome, f.name) for f in dataclasses.fields(outcome)}  # type: ignore[arg-type]
    if isinstance(outcome, Spawn):
        fields["children"] = [dataclasses.asdict(child) for child in outcome.tasks]
    for name, value in fields.items():
        if isinstance(value, dt.datetime):
            fields[name] = value.isoformat()
        else:
            canonical.check_json(value, "output" if name == "data" else name)
    return {"kind": type(outcome).__name__, "fields": fields}


def decode_outcome(told: dict[str, Any]) -> Outcome:
    """The outcome that `encode_outcome` wrote. Raises ValueError for what is none."""
    kind, fields = _KINDS.get(told.get("kind", "")), dict(told.get("fields") or {})
    if kind is None:
        raise ValueError("the step's process told of an unknown outcome")
    if kind is Repair:
        repair = Repair(fields["to"], fields.get("feedback"))
        repair.data.update(fields.get("data") or {})
        return repair
    if kind is Sleep and fields.get("until"):
        fields["until"] = dt.datetime.fromisoformat(fields["until"])
    outcome: Outcome = kind(**fields)
    return outcome
