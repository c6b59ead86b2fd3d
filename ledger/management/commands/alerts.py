"""`manage.py alerts`: the rules, what was given up, and to send it again."""

from __future__ import annotations

from typing import Any
from uuid import UUID

from django.core.management.base import CommandError, CommandParser

from ledger.alerts import rules
from ledger.alerts.messages import flatten_text
from ledger.management.terminal import LedgerCommand, find_actor
from ledger.models.alerts import DEAD


class Command(LedgerCommand):
    """list, dead, replay, test."""

    help = "Show the rules of alerts and what was given up, send it again, send a test."

    def add_arguments(self, parser: CommandParser) -> None:
        """One sub-command each."""
        commands = parser.add_subparsers(dest="action", required=True, metavar="ACTION")
        commands.add_parser("list", help="all rules")
        commands.add_parser("dead", help="the last deliveries that were given up")
        replay = commands.add_parser("replay", help="try again what a rule gave up")
        replay.add_argument("rule", type=UUID, help="its id, see list")
        replay.add_argument("--number", type=int, help="of one of them, see dead; else all")
        test = commands.add_parser("test", help="send a test by a rule")
        test.add_argument("rule", type=UUID, help="its id, see list")

    def handle(self, *args: Any, **options: Any) -> None:
        """Run the sub-command."""
        getattr(self, f"_{options['action']}")(options)

    def _list(self, options: dict[str, Any]) -> None:
        for rule in rules.list_rules():
            state = "on" if rule.enabled else "off"
            if rule.failures:
                state += f", {rule.failures} failures in a row"
            counts = f"{rule.waiting} wait, {rule.dead} given up"
            self.stdout.write(
                f"{rule.pk}  {state}  {counts}  {rules.hide_target(rule)}  {rule.name}"
            )

    def _dead(self, options: dict[str, Any]) -> None:
        for row in rules.list_deliveries(DEAD, 200):
            error = flatten_text(row.error)
            self.stdout.write(f"{row.rule_id}  {row.seq}  {row.outbox.kind}  {error}")

    def _replay(self, options: dict[str, Any]) -> None:
        count = rules.replay_dead(options["rule"], find_actor(), options["number"])
        if not count:
            raise CommandError("That rule has given up nothing of the kind.")
        self.stdout.write(f"{count} will be tried again")

    def _test(self, options: dict[str, Any]) -> None:
        self.stdout.write(str(rules.send_test(options["rule"], find_actor())))
        self.hint("The sender of a running cluster sends it; the page Alerts says what came of it.")
