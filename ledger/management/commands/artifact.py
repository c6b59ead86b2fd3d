"""`manage.py artifact`: put a file for an input, get one that a task made, list them."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from uuid import UUID

from django.core.management.base import CommandParser

from ledger import queries
from ledger.alerts.messages import flatten_text
from ledger.errors import InvalidInput
from ledger.ids import read_id
from ledger.management.storing import get_file, put_file
from ledger.management.terminal import LedgerCommand, find_actor


class Command(LedgerCommand):
    """Of this site's own store. From another machine, take /api/v1/uploads."""

    help = "Put a file for an input (prints its id), get an artifact by its id, list a task's."

    def add_arguments(self, parser: CommandParser) -> None:
        """One of three actions."""
        actions = parser.add_subparsers(dest="action", required=True)
        put = actions.add_parser("put", help="upload FILE; stdout is the id alone")
        put.add_argument("file", metavar="FILE", type=Path)
        put.add_argument("--name", default="", help="what it is called (default: the file's name)")
        get = actions.add_parser("get", help="write an artifact's bytes, verified")
        get.add_argument("id", metavar="ID")
        get.add_argument("-o", "--output", type=Path, help="the file (default: stdout)")
        listed = actions.add_parser("list", help="a task's artifacts, newest first")
        listed.add_argument("task", metavar="TASK")

    def handle(self, *args: Any, **options: Any) -> None:
        """Do it."""
        if options["action"] == "put":
            path = options["file"]
            self.stdout.write(str(put_file(path, options["name"] or path.name, find_actor()).pk))
        elif options["action"] == "get":
            get_file(queries.find_artifact(_read_id(options["id"])), options["output"])
        else:
            self._list(_read_id(options["task"]))

    def _list(self, task_id: UUID) -> None:
        queries.find_task(task_id)
        cursor: str | None = ""
        while cursor is not None:
            page = queries.list_artifacts(task_id, limit=500, cursor=cursor)
            for one in page.items:
                facts = f"{one['id']}  {one['state']:7}  {one['size']:>12}  v{one['version']}"
                self.stdout.write(f"{facts}  {flatten_text(one['name'])}")
            cursor = page.next_cursor


def _read_id(text: str) -> UUID:
    found = read_id(text)
    if found is None:
        raise InvalidInput("id", f"{text!r:.60} is no id.")
    return found
