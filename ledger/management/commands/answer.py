"""`manage.py answer APPROVAL approve|reject|send_back`: decide from a terminal."""

from __future__ import annotations

from typing import Any
from uuid import UUID

from django.core.management.base import CommandError, CommandParser

from ledger import canonical, client, queries
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
        self.show_request(request)
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

    def show_request(self, request: Approval) -> None:
        """What is to be decided, in short; the page has all of it."""
        by = "the workflow's floor" if request.risk_by == "workflow" else f"step {request.step}"
        risk = f"risk {request.risk}, set by {by}"
        self.hint(f"{request.subject} ({risk}; task {request.task_id})")
        if request.body:
            self.hint(request.body[:LONGEST_BODY])
        shown = queries.show_approval(request)
        for what in ("artifacts", "diff"):
            for one in shown[what]:
                self.hint(f"{what}: {one['name']}, {one['size']} bytes, artifact {one['id']}")
        if request.proposal is not None:
            proposal = canonical.dump_json(request.proposal)
            self.hint(f"proposal: {proposal[:LONGEST_BODY]}")
        if shown["assignees"]:
            self.hint(f"for {', '.join(shown['assignees'])}")


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
