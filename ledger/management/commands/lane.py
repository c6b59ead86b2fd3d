"""`manage.py lane list | show | set | pause | resume | run-one`."""

from __future__ import annotations

import json
from argparse import SUPPRESS
from typing import Any

from django.core.management.base import CommandError, CommandParser

from ledger.management.terminal import LedgerCommand, find_actor
from ledger.models.lane import PERIODS
from ledger.queries import lanes as read
from ledger.queries.paging import MAX_LIMIT
from ledger.transitions.lanes import SETTINGS, run_one, set_lane

NONE = "none"


def read_bound(text: str) -> int | None:
    """A whole number, or `none` for no bound."""
    return None if text == NONE else int(text)


def read_money(text: str) -> str | None:
    """A decimal amount as text, or `none` for no bound."""
    return None if text == NONE else text


class Command(LedgerCommand):
    """list, show, set, pause, resume, run-one."""

    help = "Show lanes, set their shares, bounds and budgets, pause them."

    def add_arguments(self, parser: CommandParser) -> None:
        """One sub-command each."""
        commands = parser.add_subparsers(dest="action", required=True, metavar="ACTION")
        commands.add_parser("list", help="lanes that something was set for, or that have work")
        for action, text in (
            ("show", "all of one lane, as JSON"),
            ("set", "shares, bounds and budgets"),
            ("pause", "nothing starts in it; units that run end"),
            ("resume", "end the pause"),
            ("run-one", "let the task that ranks first through the pause"),
        ):
            one = commands.add_parser(action, help=text)
            one.add_argument("name")
            if action != "show":
                one.add_argument("--reason", default="")
            if action == "set":
                self._add_settings(one)

    def _add_settings(self, parser: Any) -> None:
        def add(name: str, kind: Any, text: str = "", **more: Any) -> None:
            # What is not given is left as it is, and None is a value.
            parser.add_argument(name, type=kind, default=SUPPRESS, help=text, **more)

        add("--weight", int, "turns beside the other lanes, 1 by default")
        add("--cap", read_bound, "running tasks", metavar="N|none")
        add("--rate", read_bound, "units that start per --per", metavar="N|none")
        add("--per", str, choices=list(PERIODS))
        add("--burst", int, "units that may start at once, 1 by default")
        for name in ("--cost-day", "--cost-month"):
            add(name, read_money, metavar="AMOUNT|none")
        for name in ("--tokens-day", "--tokens-month"):
            add(name, read_bound, metavar="N|none")

    def handle(self, *args: Any, **options: Any) -> None:
        """Run the sub-command."""
        action, name = options["action"], options.get("name", "")
        told: dict[str, Any] = {"actor": find_actor(), "reason": options.get("reason", "")}
        if action == "list":
            for lane in read.list_lanes(MAX_LIMIT).items:
                self.stdout.write(describe_lane(lane))
            return
        if action == "set":
            settings = {one: options[one] for one in SETTINGS if one in options}
            if not settings:
                raise CommandError("Say what to set; `lane set --help` has the list.")
            set_lane(name, settings, **told)
        elif action == "run-one":
            self.stdout.write(str(run_one(name, **told)))
            return
        elif action != "show":
            set_lane(name, {}, paused=action == "pause", **told)
        lane = read.find_lane(name)
        self.stdout.write(
            json.dumps(lane, indent=2, default=str) if action == "show" else describe_lane(lane)
        )


def describe_lane(lane: dict[str, Any]) -> str:
    """One line: the name, what it has in hand, what is set."""
    parts = [f"{lane['running']} running", f"{lane['queued']} queued", f"weight {lane['weight']}"]
    if lane["cap"] is not None:
        parts.append(f"cap {lane['cap']}")
    if lane["rate"] is not None:
        parts.append(f"{lane['rate']} units a {lane['per']}, burst {lane['burst']}")
    parts += [lane["closed"]] if lane["closed"] else []
    return f"{lane['name']}  {', '.join(parts)}"
