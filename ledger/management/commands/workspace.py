"""`manage.py workspace ACTION TASK …`: a task's files, as one of its units left them."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any
from uuid import UUID

from django.core.management.base import CommandError, CommandParser

from ledger.management.terminal import LedgerCommand
from ledger.workspaces.checkout import check_out, compare_trees, find_workspace
from ledger.workspaces.trees import Entry, read_manifest, total_size

TELL_SECONDS = 2.0
UNIT = "the seq of an output, STEP:TURN, or STEP for its latest turn"


class Command(LedgerCommand):
    """Writes them to a folder, lists them, or says what changed between two units."""

    help = "Write a task's files to a folder, list them, or compare two units' files."

    def add_arguments(self, parser: CommandParser) -> None:
        """The three actions."""
        actions = parser.add_subparsers(dest="action", metavar="ACTION", required=True)
        checkout = actions.add_parser("checkout", help="write them to a new or an empty folder")
        checkout.add_argument("task", type=UUID)
        checkout.add_argument("folder", type=Path, metavar="DIR")
        listing = actions.add_parser("list", help="mode, size and path of each")
        listing.add_argument("task", type=UUID)
        for action in (checkout, listing):
            action.add_argument("--at", metavar="UNIT", help=f"{UNIT} (default: the last that is)")
        diff = actions.add_parser("diff", help="A added, D deleted, M changed")
        diff.add_argument("task", type=UUID)
        diff.add_argument("--from", metavar="UNIT", required=True, dest="old", help=UNIT)
        diff.add_argument("--to", metavar="UNIT", dest="new", help=f"{UNIT} (default: the last)")

    def handle(self, *args: Any, **options: Any) -> None:
        """Do it."""
        if options["action"] == "diff":
            sides = [find_workspace(options["task"], options[side]) for side in ("old", "new")]
            for kind, path in compare_trees(*map(read_manifest, sides)):
                self.stdout.write(f"{kind} {_show(path)}")
            return
        digest = find_workspace(options["task"], options["at"])
        if options["action"] == "list":
            for path, entry in read_manifest(digest).items():
                self.stdout.write(_describe(path, entry))
            return
        self._check_out(digest, options["folder"])

    def _check_out(self, digest: str, folder: Path) -> None:
        done, told = 0, time.monotonic()

        def tick() -> None:
            nonlocal done, told
            done += 1
            if time.monotonic() > told + TELL_SECONDS:
                told = time.monotonic()
                self.hint(f"{done} files written")

        try:
            tree = check_out(digest, folder, tick)
        except OSError as error:
            raise CommandError(f"{folder}: {error.strerror or error}.") from error
        files = sum(entry.kind != "dir" for entry in tree.values())
        self.stdout.write(f"{files} files, {total_size(tree)} bytes in {folder}")


def _describe(path: str, entry: Entry) -> str:
    if entry.kind == "link":
        return f"l--- {0:>12} {_show(path)} -> {_show(entry.target)}"
    size = entry.size if entry.kind == "file" else 0
    slash = "/" if entry.kind == "dir" else ""
    return f"{'d' if slash else '-'}{entry.mode:03o} {size:>12} {_show(path)}{slash}"


def _show(path: str) -> str:
    """The path on one line: control characters, which may steer a terminal, are written out."""
    return "".join(c if c.isprintable() else ascii(c)[1:-1] for c in path)
