"""How a log record is written: one line that no text from outside can double, no secret in it."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from ledger.secrets import mask_text

if TYPE_CHECKING:
    from types import TracebackType

type ExcInfo = (
    tuple[type[BaseException], BaseException, TracebackType | None] | tuple[None, None, None]
)


class LineFormatter(logging.Formatter):
    """Escapes a message's line breaks; a traceback is set in, so it can't pass as a record.

    Secrets that this process handed to steps are masked, whichever logger they were told.
    """

    def format(self, record: logging.LogRecord) -> str:
        """The record with its traceback, masked."""
        return mask_text(super().format(record))

    def formatMessage(self, record: logging.LogRecord) -> str:
        """The record's own line."""
        record.message = record.message.replace("\r", "\\r").replace("\n", "\\n")
        return super().formatMessage(record)

    def formatException(self, ei: ExcInfo) -> str:
        """The traceback, each line set in by four spaces."""
        return "\n".join(f"    {line}" for line in super().formatException(ei).splitlines())
