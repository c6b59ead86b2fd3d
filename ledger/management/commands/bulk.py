"""`manage.py bulk list | show | start | stop`: one action on many tasks, or answer to questions."""

from __future__ import annotations

import json
from typing import Any
from uuid import UUID

from django.core.management.base import CommandError, CommandParser

from ledger import queries
from ledger.bulk.actions import BULK_ACTIONS, find_action
from ledger.bulk.answers import ANSWERS, Asked, look_at
from ledger.bulk.making import make_answers, make_operation, stop_operation
from ledger.bulk.selecting import Selection, preview, read_ids
from ledger.management.terminal import LedgerCommand, drop_controls, find_actor
from ledger.models.bulk import OUTCOMES
from ledger.queries.bulk import list_items, list_operations, show_operation
from ledger.queries.paging import MAX_LIMIT

TEXTS = ("to_step", "note", "workflow_version", "cost", "deadline_at", "comment")
NUMBERS = {"units": int, "tokens": int, "wall": float, "priority": int}


class Command(LedgerCommand):
    """`start` prints the id of the operation; workers do it."""

    help = "Do one thing to many tasks, see what came of each, stop it."

    def add_arguments(self, parser: CommandParser) -> None:
        """One sub-command each."""
        commands = parser.add_subparsers(dest="command", required=True, metavar="ACTION")
        commands.add_parser("list", help="the operations, newest first")
        show = commands.add_parser("show", help="one as JSON, or a line for each task")
        show.add_argument("id", type=UUID)
        show.add_argument("--outcome", choices=OUTCOMES, help="the tasks with this result")
        stop = commands.add_parser("stop", help="begin nothing more; what is done stays done")
        stop.add_argument("id", type=UUID)
        stop.add_argument("--reason", default="")
        self._add_start(commands.add_parser("start", help="begin one"))

    def _add_start(self, start: Any) -> None:
        start.add_argument("action", choices=[*BULK_ACTIONS, *ANSWERS])
        start.add_argument("--task", action="append", metavar="ID", help="one of them; repeat it")
        start.add_argument(
            "--filter", action="append", metavar="KEY=VALUE",
            help="all that match, as the list's filter: status=dead, lane=night, not_tag=kept",
        )  # fmt: skip
        start.add_argument(
            "--approval", action="append", metavar="ID", help="a question, of approve and reject"
        )
        start.add_argument("--dry-run", action="store_true", help="say what it would be done to")
        start.add_argument("--reason", default="")
        start.add_argument("--tag", action="append", dest="tags", help="of tag and untag")
        for name in TEXTS:
            start.add_argument(f"--{name.replace('_', '-')}")
        for name, kind in NUMBERS.items():
            start.add_argument(f"--{name}", type=kind)

    def handle(self, *args: Any, **options: Any) -> None:
        """Run the sub-command."""
        getattr(self, f"_{options['command']}")(options)

    def _list(self, options: dict[str, Any]) -> None:
        for one in list_operations(limit=MAX_LIMIT).items:
            self.stdout.write(describe_operation(one))

    def _show(self, options: dict[str, Any]) -> None:
        if options["outcome"] is None:
            self.stdout.write(json.dumps(show_operation(options["id"]), indent=2, default=str))
            return
        cursor: str | None = ""
        while cursor is not None:
            page = list_items(
                options["id"], outcome=options["outcome"], limit=MAX_LIMIT, cursor=cursor
            )
            for item in page.items:
                key = item["approval"] or item["task"]
                self.stdout.write(f"{key}  {item['outcome']}  {item['why']}".rstrip())
            cursor = page.next_cursor

    def _stop(self, options: dict[str, Any]) -> None:
        row = stop_operation(options["id"], actor=find_actor(), reason=options["reason"])
        self.stdout.write(row.status)

    def _start(self, options: dict[str, Any]) -> None:
        arguments = {
            name: options[name] for name in (*TEXTS, *NUMBERS, "tags") if options[name] is not None
        }
        start = self._start_answers if options["action"] in ANSWERS else self._start_tasks
        start(options, arguments)

    def _start_tasks(self, options: dict[str, Any], arguments: dict[str, Any]) -> None:
        if (options["task"] is None) == (options["filter"] is None) or options["approval"]:
            raise CommandError("Give either --task, once for each, or --filter.")
        action = find_action(options["action"])
        action.read(arguments)
        selection = (
            Selection(ids=read_ids(options["task"]))
            if options["filter"] is None
            else Selection(pairs=tuple(map(read_pair, options["filter"])))
        )
        found = preview(action, selection)
        self.hint(f"{action.name}: {found.applies:,} of {found.total:,} tasks")
        for why, number in found.count_reasons().items():
            self.hint(f"left out: {number:,}. {why}")
        if options["dry_run"]:
            return
        row, _ = make_operation(
            action.name, selection, actor=find_actor(), arguments=arguments,
            reason=options["reason"], seen=found.seen,
        )  # fmt: skip
        self._tell(row.pk)

    def _start_answers(self, options: dict[str, Any], arguments: dict[str, Any]) -> None:
        if not options["approval"] or options["task"] or options["filter"]:
            raise CommandError("Give --approval, once for each question.")
        name, actor = options["action"], find_actor()
        given = ANSWERS[name].read(arguments)
        rows = [queries.find_approval(key) for key in read_ids(options["approval"])]
        asked = [Asked(row.pk, row.digest) for row in rows]
        for one in look_at(name, asked, actor):
            said = f"left out: {one.why}" if one.why else name
            self.hint(drop_controls(f"{one.row.pk}  {one.row.subject}  {said}"))
        if options["dry_run"]:
            return
        row, _ = make_answers(name, asked, actor=actor, comment=given.get("comment", ""))
        self._tell(row.pk)

    def _tell(self, key: UUID) -> None:
        self.stdout.write(str(key))
        if not queries.list_live_workers().exists():
            self.hint("No worker beats. It is stored, and done once one does.")


def read_pair(text: str) -> tuple[str, str]:
    """`status=dead` as (key, value); raises CommandError."""
    key, equals, value = text.partition("=")
    if not equals or not value:
        raise CommandError(f"--filter takes KEY=VALUE, not {text!r:.80}.")
    return key, value


def describe_operation(one: dict[str, Any]) -> str:
    """One line: id, status, what, how many, who."""
    counts = one["counts"]
    parts = [f"{counts['done']} of {one['total']} done"]
    parts += [f"{counts[name]} {name}" for name in ("refused", "skipped") if counts[name]]
    return f"{one['id']}  {one['status']}  {one['action']}  {', '.join(parts)}  {one['actor']}"
