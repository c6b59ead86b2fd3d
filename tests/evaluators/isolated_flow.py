"""A workflow in a module's variable, where the process of an isolated step finds it."""

from __future__ import annotations

from typing import Any

from django.conf import settings

from ledger.evaluators import Command, evaluate
from ledger.workflows import Workflow

alone = Workflow("evaluates_alone")


@alone.step(isolate=True, retries=0)
def judge(ctx: Any) -> Any:
    """Evaluates in a process of its own, which reads the settings itself."""
    settings.LONGWATCH_CHECKS = {"tests": {"argv": ["false"]}}
    return evaluate(ctx, [Command("tests")], None).output
