"""`manage.py token create NAME`: a token for the API, shown once."""

from __future__ import annotations

import datetime as dt
from argparse import ArgumentTypeError
from typing import Any
from uuid import UUID

from django.contrib.auth import get_user_model
from django.core.management.base import CommandError, CommandParser

from ledger.access import TOKEN_SCOPES
from ledger.management.terminal import LedgerCommand, find_actor
from ledger.models import ApiToken
from ledger.tokens import make_token, revoke_token, rotate_token


def read_hours(text: str) -> dt.timedelta:
    """`24h` or `2d` as a span of time."""
    number, unit = text[:-1], text[-1:]
    if not (number.isascii() and number.isdigit() and len(number) < 6 and unit in {"h", "d"}):
        raise ArgumentTypeError(f"{text!r} is no span of time; write 24h or 2d")
    return dt.timedelta(hours=int(number)) if unit == "h" else dt.timedelta(days=int(number))


def find_owner(name: str | None) -> str:
    """`user:3` of a person's name; empty for none. Raises CommandError."""
    if not name:
        return ""
    users: Any = get_user_model()
    key = users._default_manager.filter(**{users.USERNAME_FIELD: name}).values_list("pk").first()
    if key is None:
        raise CommandError(f"There is no person {name}.")
    return f"user:{key[0]}"


def describe_rights(row: ApiToken) -> str:
    """Scopes, lanes, and whether contents, in one word."""
    lanes = "" if row.lanes is None else f"@{','.join(row.lanes)}"
    return ",".join(row.scopes) + lanes + ("" if row.payload else ",no-payload")


class Command(LedgerCommand):
    """create, list, rotate, revoke."""

    help = (
        "Make, list, rotate and revoke API tokens. "
        "`create` and `rotate` print the token as the last word on stdout."
    )

    def add_arguments(self, parser: CommandParser) -> None:
        """One sub-command each."""
        commands = parser.add_subparsers(dest="action", required=True, metavar="ACTION")
        create = commands.add_parser("create", help="make a token and show it, once")
        create.add_argument("name", help="who will use it")
        create.add_argument(
            "--scope", default="read", metavar="SCOPE,SCOPE", help=f"of {', '.join(TOKEN_SCOPES)}"
        )
        create.add_argument("--days", type=int, help="until it expires; by default never")
        create.add_argument(
            "--lane", metavar="LANE,LANE", help="it sees and does nothing outside of these"
        )
        create.add_argument(
            "--no-payload", action="store_true", help="it is shown statuses and times, no contents"
        )
        create.add_argument(
            "--owner", metavar="USERNAME", help="the person it works for: neither answers "
            "what the other submitted",
        )  # fmt: skip
        rotate = commands.add_parser("rotate", help="make another in its place and show it, once")
        rotate.add_argument("token", metavar="NAME/ID", help="a valid token")
        rotate.add_argument(
            "--overlap", default="24h", type=read_hours, metavar="24h",
            help="how long the old one is good as well: hours (24h) or days (2d)",
        )  # fmt: skip
        rotate.add_argument("--days", type=int, help="until the new one expires; else as the old")
        commands.add_parser("list", help="all tokens, without their text")
        revoke = commands.add_parser("revoke", help="end a token for good")
        revoke.add_argument("id", type=UUID, help="see list")

    def handle(self, *args: Any, **options: Any) -> None:
        """Run the sub-command."""
        getattr(self, f"_{options['action']}")(options)

    def _create(self, options: dict[str, Any]) -> None:
        scopes = [scope.strip() for scope in options["scope"].split(",") if scope.strip()]
        row, text = make_token(
            options["name"],
            scopes,
            created_by=str(find_actor()),
            days=options["days"],
            lanes=None if options["lane"] is None else options["lane"].split(","),
            payload=not options["no_payload"],
            owner=find_owner(options["owner"]),
        )
        self._show_new(row, text)

    def _show_new(self, row: ApiToken, text: str) -> None:
        until = f", valid until {row.expires_at:%Y-%m-%d %H:%M} UTC" if row.expires_at else ""
        self.hint(f"Token {row.pk} for {row.name}: {describe_rights(row)}{until}.")
        self.hint("Keep it now; it is not shown again.")
        self.stdout.write(text)

    def _rotate(self, options: dict[str, Any]) -> None:
        row, text = rotate_token(
            options["token"], by=str(find_actor()), overlap=options["overlap"],
            days=options["days"],
        )  # fmt: skip
        self.hint(f"The old one is good for another {options['overlap']}.")
        self._show_new(row, text)

    def _list(self, options: dict[str, Any]) -> None:
        for row in ApiToken.objects.all()[:500]:
            ends = f"{row.expires_at:%Y-%m-%d}" if row.expires_at else "never"
            state = "revoked" if row.revoked_at else f"expires {ends}"
            used = f"{row.last_used_at:%Y-%m-%d %H:%M}" if row.last_used_at else "never"
            rights = describe_rights(row)
            self.stdout.write(f"{row.pk}  {rights}  {state}  last used {used}  {row.name}")

    def _revoke(self, options: dict[str, Any]) -> None:
        if not revoke_token(options["id"], by=str(find_actor())):
            raise CommandError(f"There is no valid token {options['id']}.")
        self.stdout.write(f"{options['id']} is revoked")
