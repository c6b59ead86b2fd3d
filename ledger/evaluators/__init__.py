"""Evaluators: is the work right? Layers of them, cheapest first; what they find becomes feedback.

    brief.evaluate("check", [Schema(Report), Predicate(no_todo), Lint("ruff"), Command("tests"),
                             Person("Good enough?")], of="draft")

docs/workflows.md is the guide.
"""

from __future__ import annotations

from ledger.evaluators.findings import Finding
from ledger.evaluators.judging import Evaluator, EvaluatorFailed, Verdict, evaluate
from ledger.evaluators.layers import Command, Cost, Lint, Person, Predicate, Schema

__all__ = [
    "Command",
    "Cost",
    "Evaluator",
    "EvaluatorFailed",
    "Finding",
    "Lint",
    "Person",
    "Predicate",
    "Schema",
    "Verdict",
    "evaluate",
]
