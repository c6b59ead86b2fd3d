"""Append-only files of JSON lines, outside the product: what the ledger can't flatter."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import Any

type Line = dict[str, Any]


class Journal:
    """One file that any number of processes append to and one reads as it grows.

    A line is one write. One that a SIGKILL cut in two stands alone, because every line begins
    with a line break; it is skipped and counted in `torn`.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.torn = 0
        self._offset = 0
        self._rest = b""

    def write(self, **fields: Any) -> None:
        """Append one line, with the time."""
        text = json.dumps({"at": time.time(), **fields}, separators=(",", ":"))
        handle = os.open(self.path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
        try:
            os.write(handle, b"\n" + text.encode() + b"\n")
        finally:
            os.close(handle)

    def read_new(self) -> list[Line]:
        """The lines since the last call."""
        if not self.path.exists():
            return []
        with self.path.open("rb") as file:
            file.seek(self._offset)
            data = self._rest + file.read()
            self._offset = file.tell()
        *whole, self._rest = data.split(b"\n")
        found = []
        for text in filter(None, whole):
            try:
                found.append(json.loads(text))
            except ValueError:
                self.torn += 1
        return found

    def read_all(self) -> list[Line]:
        """Every line from the first."""
        return Journal(self.path).read_new()


class Folder:
    """Where a run keeps its files: `root` is LONGWATCH_CHAOS_DIR in every process."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.sink = Journal(root / "sink")
        """A line per attempt: what workers did."""
        self.client = Journal(root / "client")
        """What the client asked for and was told."""
        self.quiet = root / "quiet"
        """Exists once nothing new is to be submitted."""

    @classmethod
    def find(cls) -> Folder:
        """The folder of the run that this process is part of."""
        return cls(Path(os.environ["LONGWATCH_CHAOS_DIR"]))

    def stub(self, task: object) -> Journal:
        """The money stub's own list of what this task was charged."""
        (self.root / "stub").mkdir(exist_ok=True)
        return Journal(self.root / "stub" / str(task))
