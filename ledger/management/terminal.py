"""What the commands share: who types, JSON from the command line, refusals in one line."""

from __future__ import annotations

import getpass
import os
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

from django.core.management.base import BaseCommand, CommandError
from django.db import DatabaseError, InterfaceError

from ledger import states
from ledger.api.parsing import parse_object, parse_value
from ledger.canonical import clean_text
from ledger.errors import InvalidInput, LedgerError
from ledger.events import Actor

EXIT_CODES = {states.COMPLETED: 0, states.FAILED: 3, states.DEAD: 4, states.CANCELLED: 5}
"""How `submit --wait` and `watch` end, by the status of the finished task."""


_CONTROLS = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")


def drop_controls(text: str) -> str:
    """`text` without what a terminal would obey, a mark in each place."""
    return _CONTROLS.sub("\N{REPLACEMENT CHARACTER}", text)


class LedgerCommand(BaseCommand):
    """A command whose refusals are one line that names the cure, never a traceback."""

    requires_system_checks: list[str] | Literal["__all__"] = []

    def execute(self, *args: Any, **options: Any) -> str | None:
        """Run `handle`; CommandError for what the ledger or the database refuses."""
        try:
            return super().execute(*args, **options)
        except LedgerError as error:
            raise CommandError(str(error)) from error
        except (DatabaseError, InterfaceError) as error:
            raise CommandError(explain_database_error(error)) from error

    def hint(self, text: str) -> None:
        """A line for people, on stderr: stdout is for what a script reads."""
        self.stderr.write(text)


def explain_database_error(error: Exception) -> str:
    """What is wrong with the database and what to do about it."""
    text = " ".join(clean_text(error, 300).split())
    if "no such table" in text or ("relation" in text and "does not exist" in text):
        return "The database has no ledger yet. Run `manage.py migrate`."
    if "already exists" in text or "duplicate column" in text:
        return (
            f"The tables are of a version of Longwatch that this one does not know: {text}\n"
            "Use that version, restore the backup taken before it, or take another database "
            "(LONGWATCH_DATABASE_URL; without one, LONGWATCH_VAR)."
        )
    return (
        f"The database does not answer: {text}\n"
        "Start it, or set LONGWATCH_DATABASE_URL; `manage.py doctor` looks closer."
    )


def find_actor() -> Actor:
    """`cli:NAME` of the account that runs this process."""
    try:
        name = getpass.getuser()
    except (KeyError, OSError):  # a container's numeric user has no name
        name = str(os.getuid())
    return Actor("cli", name[:190])


def read_object(text: str, option: str) -> dict[str, Any]:
    """A JSON object from `text`, from the file of `@FILE`, or from stdin for `@-`.

    Raises InvalidInput naming the option.
    """
    return dict(_read_json(text, option, parse_object))


def read_value(text: str, option: str) -> Any:
    """The same of any JSON value."""
    return _read_json(text, option, parse_value)


def _read_json(text: str, option: str, parse: Callable[[bytes], Any]) -> Any:
    if text.startswith("@"):
        try:
            raw = sys.stdin.buffer.read() if text == "@-" else Path(text[1:]).read_bytes()
        except OSError as error:
            raise InvalidInput(option, f"{text[1:]} can't be read: {error.strerror}.") from None
    else:
        raw = text.encode("utf-8", "surrogateescape")
    try:
        return parse(raw)
    except InvalidInput as error:
        where = option if error.field == "body" else f"{option} {error.field}"
        raise InvalidInput(where, error.reason) from None
