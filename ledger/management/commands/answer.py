"""`manage.py answer APPROVAL approve|reject|send_back`: decide from a terminal."""

from __future__ import annotations

from typing import Any
from uuid import UUID

from django.core.management.base import CommandError, CommandParser

from ledger import client, queries
from ledger.errors import NotFound
from ledger.management.terminal import LedgerCommand, find_actor, read_object
from ledger.models import Approval

LONGEST_BODY = 2_000


class Command(LedgerCommand):
    """Shows the question on stderr and answers for exactly what it showed."""

    help = "Answer an approval, given by its own id or by the id of the task that waits for it."

    def add_arguments(self, parser: CommandParser) -> None:
        """The approval and the decision."""
        parser.add_argument("approval", type=UUID)
        parser.add_argument("decision", choices=["approve", "reject", "send_back"])
        parser.add_argument("--comment", default="")
        parser.add_argument("--values", metavar="JSON", help="the form's values; @FILE, @-")
        parser.add_argument("--digest", help="refuse unless the request is the one of this digest")

    def handle(self, *args: Any, **options: Any) -> None:
        """Decide; it takes effect at once."""
        request = _find_request(options["approval"])
        digest = options["digest"] or request.digest
        self.hint(f"{request.subject} (risk {request.risk}, task {request.task_id})")
        if request.body:
            self.hint(request.body[:LONGEST_BODY])
        values = read_object(options["values"], "--values") if options["values"] else None
        client.answer(
            request.pk,
            options["decision"],
            actor=find_actor(),
            digest=digest,
            values=values,
            comment=options["comment"],
        )
        self.stdout.write(queries.find_approval(request.pk).status)


def _find_request(key: UUID) -> Approval:
    try:
        return queries.find_approval(key)
    except NotFound:
        page = queries.list_approvals(task_id=key, status="open")
        if not page.items:
            raise CommandError(
                f"There is no approval {key}, and no task {key} waits for one."
            ) from None
        return queries.find_approval(UUID(page.items[0]["id"]))
