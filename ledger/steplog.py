"""What a step logs: passed on to the worker's own log, and its tail kept for the ledger.

The tail is bounded in lines, in a line's length and in all, and what is passed on in lines, so a
step that logs ten million lines costs the time of logging them, no memory and no disk. Secrets are
masked in both.
"""

from __future__ import annotations

import collections
import datetime as dt
import logging

from ledger import secrets
from ledger.canonical import clean_text

MAX_LINES = 200
MAX_LINE = 2_000
MAX_TAIL = 16_384
"""Characters of the whole tail."""

MAX_PASSED = 10_000
"""Lines of one attempt that the worker's log takes."""

site_log = logging.getLogger("longwatch.step")
"""Where records go on to; its level decides which."""

_traces = logging.Formatter()


def write_line(record: logging.LogRecord) -> str:
    """The record's text with its traceback, secrets masked, at most about MAX_LINE characters."""
    try:
        text = record.getMessage()
    except Exception as error:
        text = f"{record.msg!r} (its arguments do not fit: {error})"
    if record.exc_info:
        text += "\n" + _traces.formatException(record.exc_info)
    text = secrets.mask_text(text)
    if len(text) > MAX_LINE:
        half = MAX_LINE // 2
        text = f"{text[:half]} … {text[-half:]}"
    return text


class _Tail(logging.Handler):
    """Keeps the last lines and passes records on."""

    def __init__(self) -> None:
        super().__init__()
        self.lines: collections.deque[tuple[float, str, str]] = collections.deque(maxlen=MAX_LINES)
        self.passed = 0

    def emit(self, record: logging.LogRecord) -> None:
        """Keep the record as a line. Never raises: a step must not fail at its own log line."""
        text = write_line(record)
        self.lines.append((record.created, record.levelname, text))
        if self.passed <= MAX_PASSED and site_log.isEnabledFor(record.levelno):
            self.passed += 1
            if self.passed > MAX_PASSED:
                text = f"more than {MAX_PASSED} lines of one attempt: the rest is not passed on"
            record.msg, record.args, record.exc_info, record.exc_text = text, (), None, None
            site_log.handle(record)


class StepLog(logging.Logger):
    """A logger of one attempt: an ordinary Logger, outside the tree of named loggers."""

    def __init__(self) -> None:
        super().__init__("longwatch.step", logging.DEBUG)
        self.propagate = False
        self._tail = _Tail()
        self.addHandler(self._tail)

    def read_tail(self) -> str:
        """The last lines, each `HH:MM:SS LEVEL message` in UTC, as text that can be stored."""
        kept: list[str] = []
        size = 0
        for created, level, text in reversed(self._tail.lines):
            at = dt.datetime.fromtimestamp(created, dt.UTC)
            line = f"{at:%H:%M:%S} {level} {clean_text(text, 2 * MAX_LINE)}"
            size += len(line) + 1
            if size > MAX_TAIL:
                break
            kept.append(line)
        return "\n".join(reversed(kept))
