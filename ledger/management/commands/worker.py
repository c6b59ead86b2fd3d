"""`manage.py worker ACTION`: who beats, and what people tell workers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from django.core.management.base import CommandError, CommandParser

from ledger import queries
from ledger.management.terminal import LedgerCommand, find_actor
from ledger.models import Worker
from ledger.transitions.workers import declare_dead, drain_worker, name_worker, undrain_worker

TELL: dict[str, tuple[Callable[..., int], str]] = {
    "drain": (drain_worker, "let it end its unit and claim nothing more"),
    "undrain": (undrain_worker, "let it claim again"),
}


class Command(LedgerCommand):
    """list, drain, undrain, declare-dead."""

    help = "List workers, drain them, take the leases of a dead one away."

    def add_arguments(self, parser: CommandParser) -> None:
        """One sub-command each."""
        commands = parser.add_subparsers(dest="action", required=True, metavar="ACTION")
        commands.add_parser("list", help="the last 200, last seen first")
        for name, (_, text) in TELL.items():
            tell = commands.add_parser(name, help=text)
            tell.add_argument("--cluster", action="store_true", help="all of its cluster")
            self._add_worker(tell)
        dead = commands.add_parser("declare-dead", help="take its leases away; it ends if it lives")
        dead.add_argument("--yes", action="store_true", help="its name need not be typed again")
        self._add_worker(dead)

    def _add_worker(self, parser: CommandParser) -> None:
        parser.add_argument("worker", help="host:pid, or its whole name; see list")
        parser.add_argument("--reason", default="", help="goes on record")

    def handle(self, *args: Any, **options: Any) -> None:
        """Run the sub-command."""
        if options["action"] == "list":
            return self._list()
        owner = find_owner(options["worker"])
        by: dict[str, Any] = {"actor": find_actor(), "reason": options["reason"]}
        if options["action"] == "declare-dead":
            if not options["yes"]:
                by["name"] = input(f"Type {name_worker(owner)} to declare it dead: ")
            count = declare_dead(owner, **by)
            self.stdout.write(f"{count} lease{'' if count == 1 else 's'} taken away")
            return None
        count = TELL[options["action"]][0](owner, cluster=options["cluster"], **by)
        self.stdout.write(f"{count} worker{'' if count == 1 else 's'} told")
        return None

    def _list(self) -> None:
        for row in queries.list_workers(200).items:
            state = "stopped" if row["stopped_at"] else "live" if row["live"] else "gone"
            if row["told"]:
                state += f", told {row['told'].replace('_', ' ')}"
            name, count = name_worker(row["owner"]), len(row["tasks"])
            held = f"holds {count} task{'' if count == 1 else 's'}"
            self.stdout.write(f"{name}  {state}  {held}  seen {row['seen_at']:%Y-%m-%d %H:%M:%S}")


def find_owner(wanted: str) -> str:
    """The worker of this name; of several `host:pid` the one seen last. Raises CommandError."""
    rows = Worker.objects.order_by("-seen_at").values_list("owner", flat=True)
    found = rows.filter(owner=wanted).first() or rows.filter(owner__startswith=f"{wanted}:").first()
    if found is None:
        raise CommandError(f"There is no worker {wanted}; see `manage.py worker list`.")
    return found
