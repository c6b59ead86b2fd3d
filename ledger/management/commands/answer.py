"""`manage.py answer APPROVAL approve|reject|send_back`: decide from a terminal."""

from __future__ import annotations

import io
import sys
from typing import Any
from uuid import UUID

from django.core.management.base import CommandError, CommandParser
from rich.console import Console
from rich.markdown import Markdown

from ledger import canonical, client, queries
from ledger.errors import NotFound
from ledger.management.terminal import LedgerCommand, drop_controls, find_actor, read_object
from ledger.models import Approval

LONGEST_BODY = 2_000
MAX_ASKED = 3


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
        decision, comment = options["decision"], options["comment"]
        digest = options["digest"] or request.digest
        self.show_request(request)
        if decision != "approve" and not comment.strip() and sys.stdin.isatty():
            comment = _ask_why(decision)
        values = read_object(options["values"], "--values") if options["values"] else None
        client.answer(
            request.pk,
            decision,
            actor=find_actor(),
            digest=digest,
            values=values,
            comment=comment,
        )
        self.stdout.write(queries.find_approval(request.pk).status)

    def show_request(self, request: Approval) -> None:
        """What is to be decided, in short; the page has all of it."""
        by = "the workflow's floor" if request.risk_by == "workflow" else f"step {request.step}"
        risk = f"risk {request.risk}, set by {by}"
        self.hint(f"{request.subject} ({risk}; task {request.task_id})")
        if request.body:
            self.hint(set_markdown(request.body[:LONGEST_BODY]))
        shown = queries.show_approval(request)
        for what in ("artifacts", "diff"):
            for one in shown[what]:
                self.hint(f"{what}: {one['name']}, {one['size']} bytes, artifact {one['id']}")
        if request.proposal is not None:
            proposal = canonical.dump_json(request.proposal)
            self.hint(f"proposal: {proposal[:LONGEST_BODY]}")
        if shown["assignees"]:
            self.hint(f"for {', '.join(shown['assignees'])}")


def set_markdown(text: str) -> str:
    """Markdown as plain lines, without its marks and escapes; nothing in it reaches a terminal as
    a control character."""
    console = Console(file=io.StringIO(), width=100, color_system=None, force_terminal=False)
    with console.capture() as taken:
        console.print(Markdown(drop_controls(text), hyperlinks=False))
    return "\n".join(line.rstrip() for line in taken.get().splitlines()).strip("\n")


def _ask_why(decision: str) -> str:
    """The comment, from who sits at the terminal: a no without a reason helps nobody."""
    word = "reject" if decision == "reject" else "send back"
    for _ in range(MAX_ASKED):
        if comment := input(f"Say what should change, or why you {word} it: ").strip():
            return comment
    raise CommandError(f"Nothing was answered. Say why you {word} it, or give --comment.")


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
