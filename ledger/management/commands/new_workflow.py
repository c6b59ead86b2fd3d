"""`manage.py new_workflow NAME`: a workflow to begin from, and a test that runs it."""

from __future__ import annotations

import keyword
import re
from pathlib import Path
from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser

from ledger import workflows

_NAME = re.compile(r"[a-z][a-z0-9_]{0,59}")

WORKFLOW = '''"""The workflow {name}."""

from pydantic import BaseModel

from ledger.evaluators import Predicate
from ledger.workflows import Workflow


class Input(BaseModel):
    """What a submitter gives."""

    subject: str


workflow = Workflow("{name}", version="1", input=Input, max_repairs=2)


@workflow.step
def draft(ctx):
    """Stored when it returns: what it returns is its output, and a part of ctx.progress."""
    return {{"draft": f"About {{ctx.input.subject}}."}}


def has_end(output):
    """What it finds is ctx.feedback of the next draft, at most max_repairs times."""
    return None if output["draft"].endswith(".") else "The last sentence has no end."


workflow.evaluate("verify", [Predicate(has_end)], of="draft")


@workflow.step
def publish(ctx):
    """May run twice if its worker is lost: hand ctx.idempotency_key(...) to other services."""
    ctx.save_artifact("draft.txt", ctx.progress["draft"])
    return {{"characters": len(ctx.progress["draft"])}}
'''

TEST = '''"""Runs {name} to its end, on the real ledger and a test database."""

from django.test import TestCase

from ledger.testing import LOST, run
from workflows.{name} import workflow


class Test{camel}(TestCase):
    def test_it_publishes_a_draft(self):
        ended = run(workflow, {{"subject": "tea"}})
        self.assertEqual(ended.status, "completed")
        self.assertEqual(ended.result, {{"characters": 10}})
        self.assertEqual(ended.read_artifact("draft.txt"), b"About tea.")

    def test_a_lost_worker_changes_nothing(self):
        ended = run(workflow, {{"subject": "tea"}}, faults={{"verify": LOST}})
        self.assertEqual(ended.units, [("draft", 0), ("verify", 0), ("publish", 0)])
'''


AGENT = '''"""The workflow {name}: an agent that looks up by itself and asks before it orders."""

from pydantic_ai import Agent
from pydantic_ai.models.openai import OpenAIChatModel
from pydantic_ai.providers.openai import OpenAIProvider

from ledger.agents import Tool, agent_step, ask
from ledger.workflows import Limits, Workflow

PRICES = {{"tea": 4.5, "paper": 6.0}}


def look_up(article: str) -> float | None:
    """The price of an article."""
    return PRICES.get(article)


def order(article: str, count: int) -> str:
    """Order an article."""
    return f"ordered {{count}} of {{article}}"


def make_model(ctx):
    # The key is LONGWATCH_SECRET_OPENAI_API_KEY; OPENAI_BASE_URL names another server.
    return OpenAIChatModel(
        "gpt-4o-mini", provider=OpenAIProvider(api_key=ctx.secret("OPENAI_API_KEY"))
    )


def make_agent(ctx):
    return Agent(
        make_model(ctx), tools=[look_up, order], instructions="You buy office supplies. Be brief."
    )


workflow = Workflow("{name}", self_approval=True, limits=Limits(tokens=100_000, cost="0.50"))
workflow.step(
    agent_step(
        make_agent,
        goal=lambda ctx: ctx.input["goal"],
        tools={{"look_up": Tool(idempotent=True), "order": ask(reason="it is an order")}},
    ),
    name="work",
)
'''

AGENT_TEST = '''"""Runs {name} on the real ledger, with a model whose turns are written here."""

from unittest import mock

from django.test import TestCase
from pydantic_ai import ModelResponse, TextPart, ToolCallPart
from pydantic_ai.models.function import FunctionModel

from ledger.testing import LOST, run
from workflows.{name} import workflow

TURNS = [
    ToolCallPart("look_up", {{"article": "tea"}}, "a"),
    ToolCallPart("order", {{"article": "tea", "count": 2}}, "b"),
    TextPart("The tea is ordered."),
]


class Test{camel}(TestCase):
    def play(self, **given):
        model = FunctionModel(lambda messages, info: ModelResponse([TURNS[len(messages) // 2]]))
        with mock.patch("workflows.{name}.make_model", lambda ctx: model):
            return run(workflow, {{"goal": "Tea, please."}}, **given)

    def test_it_asks_before_it_orders(self):
        ended = self.play()
        self.assertEqual((ended.status, ended.reason), ("waiting", "approval"))

    def test_it_orders_once_though_its_worker_is_lost(self):
        ended = self.play(answers={{"work": "approve"}}, faults={{"work": [None, LOST, LOST]}})
        self.assertEqual(ended.result, {{"work": "The tea is ordered."}})
'''


class Command(BaseCommand):
    """Writes two files; overwrites none."""

    help = "Write workflows/NAME.py, a workflow to begin from, and workflows/test_NAME.py."
    requires_system_checks = ()

    def add_arguments(self, parser: CommandParser) -> None:
        """NAME is the workflow's name and the module's."""
        parser.add_argument("name", help="letters a-z, digits and _, a letter first")
        parser.add_argument("--agent", action="store_true", help="one whose step is an agent")

    def handle(self, *args: Any, **options: Any) -> None:
        """The paths go to stdout, what to do next to stderr."""
        name: str = options["name"]
        check_name(name)
        folder = Path("workflows")
        camel = name.title().replace("_", "")
        code, test = (AGENT, AGENT_TEST) if options["agent"] else (WORKFLOW, TEST)
        texts = {
            folder / f"{name}.py": code.format(name=name),
            folder / f"test_{name}.py": test.format(name=name, camel=camel),
        }
        for path in texts:
            if path.exists():
                raise CommandError(f"{path} exists. Choose another name, or remove it first.")
        try:
            folder.mkdir(exist_ok=True)
            for path, text in texts.items():
                with path.open("x") as file:
                    file.write(text)
        except OSError as error:
            raise CommandError(f"{folder} can't be written: {error.strerror}.") from None
        self.stdout.write("\n".join(map(str, texts)))
        sample = '{"goal": "Order tea for ten."}' if options["agent"] else '{"subject": "tea"}'
        self.stderr.write(
            f"Test it:    manage.py test workflows\n"
            f"Submit it:  manage.py submit {name} --input '{sample}'\n"
            "Workers that run already know it after a restart."
        )


def check_name(name: str) -> None:
    """Raise CommandError, naming the cure, unless a new workflow and module can be named so."""
    if not _NAME.fullmatch(name) or keyword.iskeyword(name):
        raise CommandError(
            f"{name!r} can't name a workflow and its module: use a-z, 0-9 and _, a letter first, "
            "at most 60 characters, and no word of Python."
        )
    if name.startswith("test_"):
        raise CommandError(f"{name!r} begins like a test. Choose another name.")
    if any(known == name for known, _ in workflows.known()):
        raise CommandError(f"There is a workflow {name!r} already. Choose another name.")
