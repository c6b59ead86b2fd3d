"""`manage.py token create NAME`: a token for the API, shown once."""

from __future__ import annotations

from typing import Any
from uuid import UUID

from django.core.management.base import CommandError, CommandParser

from ledger.access import SCOPES
from ledger.management.terminal import LedgerCommand, find_actor
from ledger.models import ApiToken
from ledger.tokens import make_token, revoke_token


class Command(LedgerCommand):
    """create, list, revoke."""

    help = "Make, list and revoke API tokens. `create` prints the token as the last word on stdout."

    def add_arguments(self, parser: CommandParser) -> None:
        """One sub-command each."""
        commands = parser.add_subparsers(dest="action", required=True, metavar="ACTION")
        create = commands.add_parser("create", help="make a token and show it, once")
        create.add_argument("name", help="who will use it")
        create.add_argument(
            "--scope", default="read", metavar="SCOPE,SCOPE", help=f"of {', '.join(SCOPES)}"
        )
        create.add_argument("--days", type=int, help="until it expires; by default never")
        commands.add_parser("list", help="all tokens, without their text")
        revoke = commands.add_parser("revoke", help="end a token for good")
        revoke.add_argument("id", type=UUID)

    def handle(self, *args: Any, **options: Any) -> None:
        """Run the sub-command."""
        getattr(self, f"_{options['action']}")(options)

    def _create(self, options: dict[str, Any]) -> None:
        scopes = [scope.strip() for scope in options["scope"].split(",") if scope.strip()]
        row, text = make_token(
            options["name"], scopes, created_by=str(find_actor()), days=options["days"]
        )
        until = f", valid until {row.expires_at:%Y-%m-%d %H:%M} UTC" if row.expires_at else ""
        self.hint(f"Token {row.pk} for {row.name}: {', '.join(row.scopes)}{until}.")
        self.hint("Keep it now; it is not shown again.")
        self.stdout.write(text)

    def _list(self, options: dict[str, Any]) -> None:
        for row in ApiToken.objects.all()[:500]:
            ends = f"{row.expires_at:%Y-%m-%d}" if row.expires_at else "never"
            state = "revoked" if row.revoked_at else f"expires {ends}"
            self.stdout.write(f"{row.pk}  {','.join(row.scopes)}  {state}  {row.name}")

    def _revoke(self, options: dict[str, Any]) -> None:
        if not revoke_token(options["id"], by=str(find_actor())):
            raise CommandError(f"There is no valid token {options['id']}.")
        self.stdout.write(f"{options['id']} is revoked")
