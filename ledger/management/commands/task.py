"""`manage.py task ACTION ID …`: what operators do to a task, from the terminal."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import Any
from uuid import UUID

from django.core.management.base import CommandParser

from ledger import queries
from ledger.management.terminal import LedgerCommand, find_actor, read_object
from ledger.models.effects import COMPENSATED, STATUSES
from ledger.transitions import deleting, operators
from ledger.transitions.effects import compensate_task, mark_effect
from ledger.transitions.forks import fork_task
from ledger.transitions.outputs import edit_output
from ledger.transitions.steering import steer_task, withdraw_message

PLAIN: dict[str, tuple[Callable[..., None], str]] = {
    "cancel": (operators.cancel_task, "end it: at once, or at the end of the unit that runs"),
    "stop": (operators.stop_task, "end the unit that runs, after a cancel that it does not heed"),
    "pause": (operators.pause_task, "hold it, or from the end of the unit that runs"),
    "resume": (operators.resume_task, "let it go on"),
    "retry": (operators.retry_task, "run the same unit now"),
    "compensate": (compensate_task, "undo the effects of a task that gave up or failed"),
}


class Command(LedgerCommand):
    """Prints the status after it; `fork` the id of the copy, `delete-demo` those of what is gone,
    `effects` a line for each."""

    help = "Act on a task: the actions of its page and of the API, by the same names."

    def add_arguments(self, parser: CommandParser) -> None:
        """One parser for each action."""
        self.actions = parser.add_subparsers(dest="action", metavar="ACTION", required=True)
        for name, (_, text) in PLAIN.items():
            self._add_action(name, text)
        repair = self._add_action("repair", "restart from a step; later outputs are superseded")
        repair.add_argument("step", help="by name or index")
        repair.add_argument("--note", default="", help="what the step is to know")
        repair.add_argument("--workflow-version", metavar="VERSION")
        limits = self._add_action("limits", "change bounds; what a limit had ended goes on")
        limits.add_argument("--units", type=int)
        limits.add_argument("--tokens", type=int)
        limits.add_argument("--cost", help="such as 12.50")
        limits.add_argument("--wall", type=float, metavar="SECONDS")
        limits.add_argument("--deadline-at", metavar="TIME", help="RFC 3339")
        fork = self._add_action("fork", "a new task with the outputs before a step")
        fork.add_argument("step", help="by name or index")
        fork.add_argument("--input", metavar="JSON", help="in place of its own; @FILE, @-")
        fork.add_argument("--workflow-version", metavar="VERSION")
        fork.add_argument("--key", help="the same key and copy give the same task again")
        change = self._add_action("change", "set title, lane, priority or tags; what runs goes on")
        change.add_argument("--title")
        change.add_argument("--lane")
        change.add_argument("--priority", type=int, help="-100 to 100")
        change.add_argument("--tag", metavar="TAG", action="append", help="replaces all tags")
        self._add_action("effects", "what it did to the world outside, and what is known of that")
        mark = self._add_action("mark", "say what came of an effect, or that it was undone")
        mark.add_argument("effect", type=int, help="its number, see effects")
        mark.add_argument("to", choices=STATUSES[1:])
        mark.add_argument(
            "--result", metavar="JSON", help="an object, what its step gets of it; @FILE, @-"
        )
        edit = self._add_action("edit", "put another output in a unit's place and go on from there")
        edit.add_argument("seq", type=int, help="the number of the output")
        edit.add_argument("output", metavar="JSON", help="an object; @FILE, @-")
        steer = self._add_action("steer", "tell its agent something at its next turn")
        steer.add_argument("text")
        withdraw = self._add_action("withdraw", "take back a message that was not told so far")
        withdraw.add_argument("message", type=int, help="its number, which steer prints")

        text = "delete the demo's finished tasks; says why others stay"
        demo = self.actions.add_parser("delete-demo", help=text, description=text)
        demo.add_argument("--reason", default="", help="goes on record")

    def _add_action(self, name: str, text: str) -> argparse.ArgumentParser:
        action: argparse.ArgumentParser = self.actions.add_parser(name, help=text, description=text)
        action.add_argument("task", type=UUID)
        action.add_argument("--reason", default="", help="goes on record")
        action.add_argument("--revision", type=int, help="refuse if the task has changed since")
        return action

    def handle(self, *args: Any, **options: Any) -> None:
        """Act, and say what has come of it."""
        name = options["action"]
        if name == "delete-demo":
            return self._delete_demo(options["reason"])
        task_id = options["task"]
        by = {"actor": find_actor(), "reason": options["reason"], "revision": options["revision"]}
        if name == "fork":
            return self._fork(task_id, options, by)
        if name == "effects":
            return self._list_effects(task_id)
        if name in PLAIN:
            PLAIN[name][0](task_id, **by)
        elif name == "repair":
            operators.restart_task(
                task_id, to_step=options["step"], note=options["note"],
                version=options["workflow_version"], **by,
            )  # fmt: skip
        elif name == "limits":
            names = ("units", "tokens", "cost", "wall", "deadline_at")
            given = {one: options[one] for one in names if options[one] is not None}
            operators.extend_limits(task_id, limits_given=given, **by)
        elif name == "change":
            labels = {one: options[one] for one in ("title", "lane", "priority")}
            operators.change_task(task_id, tags=options["tag"], **labels, **by)
        elif name == "mark":
            given = options["result"]
            result = None if given is None else read_object(given, "--result")
            mark_effect(task_id, options["effect"], to=options["to"], result=result, **by)
        elif name == "edit":
            output = read_object(options["output"], "output")
            edit_output(task_id, options["seq"], output=output, **by)
        elif name == "steer":
            self.stdout.write(str(steer_task(task_id, text=options["text"], **by)))
            return
        elif name == "withdraw":
            withdraw_message(task_id, options["message"], **by)
        self._show_status(task_id)

    def _fork(self, task_id: UUID, options: dict[str, Any], by: dict[str, Any]) -> None:
        given = options["input"]
        copy, _ = fork_task(
            task_id, from_step=options["step"], version=options["workflow_version"],
            input=None if given is None else read_object(given, "--input"), key=options["key"],
            **by,
        )  # fmt: skip
        self.stdout.write(str(copy.pk))
        self.hint(f"Watch it: manage.py watch {copy.pk}")

    def _list_effects(self, task_id: UUID) -> None:
        queries.read_revision(task_id)
        for one in queries.list_effects(task_id, limit=queries.MAX_LIMIT).items:
            where = f"{one['step']}, turn {one['turn']}"
            if (undo := one["compensation"]) and one["state"] != COMPENSATED:
                where += f"; {undo['name']} undoes it"
            self.stdout.write(f"{one['id']} {one['name']} {one['state']} ({where}) {one['key']}")

    def _delete_demo(self, reason: str) -> None:
        for one in deleting.delete_demo(actor=find_actor(), reason=reason):
            if one.why:
                self.hint(f"{one.id} stays: {one.why}.")
            else:
                self.stdout.write(str(one.id))
        self.hint("Files that nothing names any more: manage.py collect")

    def _show_status(self, task_id: UUID) -> None:
        task = queries.show_task(task_id)
        self.stdout.write(task["status"])
        wishes = [name for name in ("cancel", "pause") if task[f"{name}_requested"]]
        if task["ending"]:
            self.hint(f"It undoes its effects first, and then is {task['ending']['status']}.")
        if wishes:
            self.hint(f"It is asked to {wishes[0]}; that takes effect after its unit.")
