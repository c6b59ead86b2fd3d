"""The log of one attempt as text: lines from everywhere, cleaned, masked, and bounded.

A line is `HH:MM:SS SOURCE text`, in UTC; SOURCE is a level of logging, or OUT for what was printed.
What belongs to the line above is set in, so no text can pass for a line of ours. Of a log that
grows beyond its bound beginning and end are kept, and what is missing between them is counted.
"""

from __future__ import annotations

import collections
import re
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Final

from ledger import secrets
from ledger.conf import load

LOG_TYPE: Final = "text/vnd.longwatch.log"
"""The media type of artifacts that are logs."""

MAX_LINE: Final = 2_000
MAX_TAIL: Final = 16_384
"""Bytes of a log that stands in a row."""
MAX_LINES: Final = 200
"""Its lines."""
MAX_RING: Final = 65_536
"""Bytes of the end that can be followed while the unit runs."""
MAX_HELD: Final = 65_536
"""Bytes of a printed line that are looked at."""

_sink: Callable[[bytes], None] | None = None

_GAP: Final = re.compile(r"^… ([\d,]+) bytes left out …\n", re.MULTILINE)
_ANSI: Final = re.compile(
    r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)?|[PX^_][^\x1b]*(?:\x1b\\)?"
    r"|[ -/]*[0-~])|\x9b[0-?]*[ -/]*[@-~]"
)
_HIDDEN: Final = {
    **{code: f"\\x{code:02x}" for code in (*range(9), *range(10, 32), *range(0x7F, 0xA0))},
    **{
        code: f"\\u{code:04x}"
        for code in (0x61C, 0x200E, 0x200F, *range(0x2028, 0x202F), *range(0x2066, 0x206A))
    },
}
"""Controls of terminals and of the direction of writing, and what would end a line."""


def lead_output(sink: Callable[[bytes], None]) -> None:
    """Say where `write_output` leads to in this process."""
    global _sink
    _sink = sink


def write_output(data: bytes) -> None:
    """Append what a command printed to the log of the attempt whose step runs in this process."""
    if _sink is not None:
        _sink(data)


def clean_line(text: str) -> str:
    """One line as it can be shown anywhere: no controls, no secrets, at most about MAX_LINE."""
    if not (text.isascii() and text.isprintable()):
        text = _ANSI.sub("", text).rstrip("\r").rpartition("\r")[2]
        text = secrets.mask_text(text).translate(_HIDDEN)
    else:
        text = secrets.mask_text(text)
    return shorten_line(text)


def shorten_line(text: str) -> str:
    """Beginning and end of a long line."""
    half = MAX_LINE // 2
    return text if len(text) <= MAX_LINE else f"{text[:half]} … {text[-half:]}"


class Lines:
    """Cuts what a process writes into lines, whichever pieces it comes in."""

    def __init__(self) -> None:
        self._held = b""
        self._over = 0
        self._broken = False

    def feed(self, data: bytes) -> Iterator[str]:
        """The lines that `data` completes."""
        *whole, rest = data.split(b"\n")
        for piece in whole:
            self._hold(piece)
            yield from self.finish(always=True)
        self._hold(rest)

    def skip(self) -> None:
        """Something is missing here: nothing is known of the line that it ends in."""
        self._held, self._over, self._broken = b"", 0, True

    def finish(self, *, always: bool = False) -> Iterator[str]:
        """The line that nothing has ended, if there is one."""
        held, over, broken = self._held, self._over, self._broken
        self._held, self._over, self._broken = b"", 0, False
        if broken or not (held or always):
            return
        text = held.decode("utf-8", "replace")
        if not over:
            yield clean_line(text)
            return
        # A secret that was cut in two would not be known any more.
        shown = clean_line(secrets.mask_start(text))[: MAX_LINE // 2]
        yield f"{shown} … {len(held) + over:,} bytes in one line"

    def _hold(self, piece: bytes) -> None:
        room = MAX_HELD - len(self._held)
        self._held += piece[:room]
        self._over += max(0, len(piece) - room)


class UnitLog:
    """What was logged and printed in one attempt. From any thread."""

    def __init__(self) -> None:
        self.size = 0
        """Bytes that were written, those left out too: a position in the log."""
        self.followed = 0
        """Up to where others can read it already."""
        self._lock = threading.RLock()
        self._most = 0
        self._head: list[bytes] = []
        self._tail: collections.deque[bytes] = collections.deque()
        self._head_size = self._tail_size = 0
        self._printed: dict[str, Lines] = {}

    def add(self, at: float | None, source: str, texts: Iterable[str]) -> None:
        """Append a line for each of `texts`, which may have lines of their own; `at` is POSIX time,
        None is now."""
        start = f"{time.strftime('%H:%M:%S', time.gmtime(at))} {source} "
        with self._lock:
            for text in texts:
                if "\n" in text:
                    text = "\n    ".join(text.splitlines())
                self._append(f"{start}{text}\n".encode("utf-8", "backslashreplace"))

    def add_output(self, data: bytes, source: str = "OUT") -> list[str]:
        """Append what a process wrote, in any pieces; the lines, as they were appended."""
        with self._lock:
            texts = list(self._printed.setdefault(source, Lines()).feed(data))
            self.add(None, source, texts)
        return texts

    def end_output(self) -> list[str]:
        """Append the lines that nothing has ended."""
        with self._lock:
            ended = {source: list(lines.finish()) for source, lines in self._printed.items()}
            for source, texts in ended.items():
                self.add(None, source, texts)
        return [text for texts in ended.values() for text in texts]

    def skip_output(self, count: int) -> None:
        """So many printed bytes are left out here, and what is kept of the end before them."""
        with self._lock:
            self._printed.setdefault("OUT", Lines()).skip()
            self._tail.clear()
            self._tail_size = 0
            self.size += count

    @property
    def overflows(self) -> bool:
        """True once something was left out."""
        return self.size > self._head_size + self._tail_size

    def _append(self, line: bytes) -> None:
        most = self._most = self._most or load().log_bytes
        begins = not self._tail and not self.overflows
        self.size += len(line)
        if begins and self._head_size + len(line) <= most // 4:
            self._head.append(line)
            self._head_size += len(line)
            return
        self._tail.append(line)
        self._tail_size += len(line)
        while self._tail_size > most - most // 4:
            self._tail_size -= len(self._tail.popleft())

    def read_tail(self) -> str:
        """The end, as it stands in a row."""
        return self._read_end(MAX_TAIL, MAX_LINES)[0]

    def read_ring(self) -> tuple[str, int]:
        """The end, as it is followed, and the position of its own end."""
        return self._read_end(MAX_RING, MAX_RING)

    def _read_end(self, most: int, lines: int) -> tuple[str, int]:
        kept: list[bytes] = []
        with self._lock:
            for part in (self._tail, [] if self.overflows else self._head):
                for line in reversed(part):
                    most -= len(line)
                    if most < 0 or len(kept) == lines:
                        return _join(kept), self.size
                    kept.append(line)
            return _join(kept), self.size

    def is_long(self) -> bool:
        """Whether a row does not hold all of it."""
        count = len(self._head) + len(self._tail)
        return self.size > MAX_TAIL or count > MAX_LINES

    def read_whole(self) -> str:
        """Beginning and end, and between them how much is missing."""
        with self._lock:
            gap = self.size - self._head_size - self._tail_size
            told = [f"… {gap:,} bytes left out …\n".encode()] if gap else []
            return b"".join([*self._head, *told, *self._tail]).decode()


def _join(backwards: list[bytes]) -> str:
    return b"".join(reversed(backwards)).decode().removesuffix("\n")


def read_after(text: str, after: int, start: int, most: int | None = None) -> tuple[str, int]:
    """What comes after the position `after` of a log, and the position where that ends.

    `text` is a stored log, or its end from the position `start` on; what it left out is told, and
    counts as if it were there. Whole lines, at most `most` bytes of them.
    """
    text = text if not text or text.endswith("\n") else text + "\n"
    parts = [(start, text.encode())]
    if gap := _GAP.search(text):
        head, tail = text[: gap.start()].encode(), text[gap.end() :].encode()
        parts = [(0, head), (len(head) + int(gap[1].replace(",", "")), tail)]
    shown: list[bytes] = []
    at = after
    for begin, data in parts:
        if at >= begin + len(data):
            continue
        if at < begin:
            shown.append(f"… {begin - at:,} bytes left out …\n".encode())
            at = begin
        piece = data[at - begin :]
        if most is not None and len(piece) > most:
            piece = piece[: piece.rfind(b"\n", 0, most) + 1] or piece[:most]
        shown.append(piece)
        at += len(piece)
        if at < begin + len(data):
            break
    return b"".join(shown).decode(errors="replace"), at
