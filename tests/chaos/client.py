"""`python -m tests.chaos.client SEED BACKLOG`: submits, answers, pokes; tells what it saw finish.

A process of its own that may be killed at any instant: what it means to do is in its journal before
it does it, so that its successor submits again under the same key what it has no answer for.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable
from typing import Any

from tests.chaos.journal import Folder, Line
from tests.chaos.plans import Plan, make_plan

LOOK_SECONDS = 0.1
PATIENCE_SECONDS = 0.3
"""After a try that the database did not answer."""


class Client:
    """One life of the client process."""

    def __init__(self, seed: int, backlog: int) -> None:
        self.seed = seed
        self.backlog = backlog
        self.folder = Folder.find()
        self.tasks: dict[int, str] = {}
        self.wanted: list[int] = []
        """Plans that are announced and not answered yet."""
        self.pokes: list[tuple[float, int, str]] = []
        self.finished: set[str] = set()
        self.next = 0
        for line in self.folder.client.read_new():
            self.take_in(line)

    def take_in(self, line: Line) -> None:
        """Remember what this or an earlier life has written."""
        what, number = line["what"], line.get("number", -1)
        if what == "want":
            self.wanted.append(number)
            self.next = max(self.next, number + 1)
        elif what == "got" and number in self.wanted:
            self.wanted.remove(number)
            self.tasks[number] = line["task"]
            plan = make_plan(self.seed, number)
            self.pokes += [(line["at"] + after, number, action) for after, action in plan.pokes]
        elif what == "poked":
            self.pokes = [p for p in self.pokes if p[1:] != (number, line["action"])]
        elif what == "finished":
            self.finished.add(line["task"])

    def write(self, **fields: Any) -> None:
        """Journal it, then remember it."""
        self.folder.client.write(**fields)
        for line in self.folder.client.read_new():
            self.take_in(line)

    def run(self) -> None:
        """Until nothing is to be submitted and all is finished."""
        while not self.is_done():
            for act in (self.submit_next, self.answer_open, self.poke_due, self.observe_finished):
                try_once(act)
            time.sleep(LOOK_SECONDS)

    def is_done(self) -> bool:
        quiet = self.folder.quiet.exists()
        return quiet and not self.wanted and len(self.finished) == len(self.tasks)

    def submit_next(self) -> None:
        """Keep `backlog` tasks unfinished; first those whose answer is missing."""
        for number in list(self.wanted):
            self.submit(make_plan(self.seed, number))
        while (
            len(self.tasks) - len(self.finished) < self.backlog and not self.folder.quiet.exists()
        ):
            self.write(what="want", number=self.next)
            self.submit(make_plan(self.seed, self.wanted[-1]))

    def submit(self, plan: Plan) -> None:
        from ledger import client

        task = client.submit(
            plan.workflow, plan.input, plan.key, lane=plan.lane, priority=plan.priority
        )
        self.write(what="got", number=plan.number, task=str(task))

    def answer_open(self) -> None:
        """Answer every open question at once, as its payload wishes."""
        from ledger import client
        from ledger.events import Actor
        from ledger.models import Approval

        for request in Approval.objects.filter(status="open")[:20]:
            refused(client.answer, request.pk, request.payload["wish"], digest=request.digest,
                    actor=Actor("user", "bot"))  # fmt: skip

    def poke_due(self) -> None:
        """What the operator does to a task; at quiet all that is left, so that none waits."""
        now = float("inf") if self.folder.quiet.exists() else time.time()
        for at, number, action in sorted(self.pokes):
            if at > now:
                return
            outcome = refused(self.poke, self.tasks[number], action)
            self.write(what="poked", number=number, action=action, outcome=outcome)

    def poke(self, task: str, action: str) -> None:
        from ledger.events import Actor
        from ledger.transitions import operators

        act: dict[str, Callable[..., Any]] = {
            "cancel": operators.cancel_task, "pause": operators.pause_task,
            "resume": operators.resume_task, "retry": operators.retry_task,
        }  # fmt: skip
        actor = Actor("user", "operator")
        if action == "restart":
            operators.restart_task(task, to_step=0, note="once more", actor=actor)
        else:
            act[action](task, actor=actor)

    def observe_finished(self) -> None:
        """Write down every end that was seen: it must still be so when all is over."""
        from ledger.models import Task

        open_tasks = set(self.tasks.values()) - self.finished
        rows = Task.objects.filter(pk__in=open_tasks, finished_at__isnull=False)
        for pk, status in rows.values_list("pk", "status"):
            self.write(what="finished", task=str(pk), status=status)


def refused(act: Callable[..., Any], *args: Any, **options: Any) -> str:
    """Do it; the ledger's refusal is an answer like any other."""
    from ledger.errors import LedgerError

    try:
        act(*args, **options)
        return "done"
    except LedgerError as error:
        return error.code


def try_once(act: Callable[[], None]) -> None:
    """A database that does not answer is asked again later, on a new connection."""
    from django.db import DatabaseError, InterfaceError, connections

    try:
        act()
    except (DatabaseError, InterfaceError):
        connections.close_all()
        time.sleep(PATIENCE_SECONDS)


def main() -> None:
    """Set Django up and run."""
    import django

    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "harness_site.settings")
    django.setup()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    Client(int(sys.argv[1]), int(sys.argv[2])).run()


if __name__ == "__main__":
    main()
