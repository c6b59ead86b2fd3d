"""A task as one file to keep or to send on: everything that its pages tell, as a ZIP.

It is written while it is sent, so that a task of any length takes a page of rows at a time; and it
has a bound, of which it says what lies behind it.
"""

from __future__ import annotations

import datetime as dt
import io
import json
import zipfile
from collections.abc import Callable, Iterator
from typing import Any
from uuid import UUID

from ledger import queries, transcripts
from ledger.calls import Call, answer_call
from ledger.errors import LedgerError
from ledger.handoff import build_handoff
from ledger.queries.paging import Page

MAX_BYTES = 64 * 1024 * 1024
"""Of all files before they are packed."""

PAGE = 100

type Reader = Callable[[str], Page[dict[str, Any]]]


class _Sink(io.RawIOBase):
    """What is written, until it is taken; like a pipe, it has no place to go back to."""

    def __init__(self) -> None:
        self.held = bytearray()

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        self.held += data
        return len(data)

    def take(self) -> bytes:
        """What was written since."""
        data, self.held = bytes(self.held), bytearray()
        return data


class Bundle:
    """One task's bundle, read as by who asked for it."""

    def __init__(self, task_id: UUID, call: Call) -> None:
        self.task_id, self.call = task_id, call
        self.room = MAX_BYTES
        self.told: list[str] = []

    def write(self) -> Iterator[bytes]:
        """The bytes of the ZIP, in order."""
        sink = _Sink()
        with zipfile.ZipFile(sink, "w", zipfile.ZIP_DEFLATED) as archive:
            for name, parts in self._list_files():
                with archive.open(name, "w") as entry:
                    for part in parts:
                        entry.write(part)
                        if data := sink.take():
                            yield data
        yield sink.take()

    def _list_files(self) -> Iterator[tuple[str, Iterator[bytes]]]:
        task = self.task_id
        yield "task.json", self._write_whole("task", self._tell_task)
        yield "handoff.md", self._write_whole("hand-off", self._tell_handoff)
        yield (
            "artifacts.jsonl",
            self._write_rows(
                "artifacts", lambda at: queries.list_artifacts(task, limit=PAGE, cursor=at)
            ),
        )
        yield (
            "events.jsonl",
            self._write_rows("events", lambda at: queries.list_events(task, limit=PAGE, cursor=at)),
        )
        yield (
            "outputs.jsonl",
            self._write_rows(
                "outputs",
                lambda at: queries.list_outputs(task, superseded=True, limit=PAGE, cursor=at),
            ),
        )
        yield (
            "transcript.jsonl",
            self._write_rows(
                "transcript",
                lambda at: transcripts.list_turns(
                    task, superseded=True, limit=PAGE // 5, cursor=at
                ),
            ),
        )
        yield "READ-ME.txt", iter([self._explain().encode()])

    def _tell_task(self) -> str:
        return dump(queries.show_task(self.task_id), indent=2)

    def _tell_handoff(self) -> str:
        queries.require_payload()
        return build_handoff(self.task_id).markdown

    def _write_whole(self, what: str, make: Callable[[], str]) -> Iterator[bytes]:
        try:
            with answer_call(self.call):
                text = make()
        except LedgerError as error:
            self.told.append(f"The {what} is left out: {error}")
            return
        yield self._take_room(text)

    def _write_rows(self, what: str, read: Reader) -> Iterator[bytes]:
        """A row a line, page by page, while there is room."""
        cursor: str | None = ""
        while cursor is not None:
            try:
                with answer_call(self.call):
                    page = read(cursor)
            except LedgerError as error:
                self.told.append(f"The {what} is left out: {error}")
                return
            for row in page.items:
                line = dump(row) + "\n"
                if len(line.encode(errors="replace")) > self.room:
                    self.room = 0
                    self.told.append(
                        f"Not all of the {what} is here: a bundle holds {MAX_BYTES:,} bytes. The "
                        f"rest: GET /api/v1/tasks/{self.task_id}/{what}"
                        + (f"?cursor={cursor}" if cursor else "")
                    )
                    return
                yield self._take_room(line)
            cursor = page.next_cursor

    def _take_room(self, text: str) -> bytes:
        data = text.encode(errors="replace")
        self.room -= len(data)
        return data

    def _explain(self) -> str:
        try:
            with answer_call(self.call):
                queries.read_revision(self.task_id)
        except LedgerError as error:
            self.told.append(f"It was deleted meanwhile, so any of it may be missing: {error}")
        left = "".join(f"- {one}\n" for one in self.told) or "- Nothing.\n"
        return (
            f"Task {self.task_id}\n\n"
            "task.json         the task as it is now\n"
            "handoff.md        what the next unit is told\n"
            "artifacts.jsonl   its artifacts with their SHA-256; their bytes are downloads\n"
            "events.jsonl      everything that happened, each attempt with the end of its log\n"
            "outputs.jsonl     the outputs of its units, superseded ones too\n"
            "transcript.jsonl  what its agents said and did, turn by turn\n\n"
            f"Times are UTC. Left out:\n{left}"
        )


def dump(value: Any, indent: int | None = None) -> str:
    """JSON as the API has it."""
    return json.dumps(value, ensure_ascii=False, indent=indent, default=_write_value)


def _write_value(value: Any) -> str:
    if isinstance(value, dt.datetime):
        return value.astimezone(dt.UTC).isoformat()
    return str(value)
