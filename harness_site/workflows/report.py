"""`report`: a small workflow that shows every move: a draft, a check that finds it lacking, one
repair, an artifact. It asks nobody and calls no model.
"""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field

from ledger.context import Context
from ledger.evaluators import Finding, Predicate
from ledger.workflows import Workflow

SECTIONS = ("Summary", "Sources")


class Topic(BaseModel):
    """What to report on, and from what."""

    model_config = ConfigDict(extra="forbid")

    subject: Annotated[str, Field(min_length=1, max_length=200)]
    sources: Annotated[list[Annotated[str, Field(max_length=500)]], Field(max_length=100)] = []


report = Workflow(
    "report",
    version="1",
    input=Topic,
    max_repairs=2,
    self_approval=True,
    description="Drafts a short report, checks it, repairs it once and keeps it as an artifact.",
)


@report.step
def draft(ctx: Context) -> dict[str, Any]:
    """Write a summary, and each section that the last check missed."""
    missing = [one["where"] for one in (ctx.feedback or {}).get("findings", [])]
    sections = ["Summary", *(name for name in missing if name in SECTIONS)]
    return {"draft": "\n\n".join(_write_section(name, ctx.input) for name in sections)}


def find_missing(output: dict[str, Any]) -> list[Finding]:
    """Every section must be there; what is missing goes back to the draft."""
    headings = output["draft"].splitlines()
    missing = [name for name in SECTIONS if f"## {name}" not in headings]
    return [Finding("The section is missing.", where=name) for name in missing]


report.evaluate("verify", [Predicate(find_missing)], of="draft")


@report.step
def finalize(ctx: Context) -> dict[str, Any]:
    """Keep the report."""
    text = f"# {_join_line(ctx.input.subject)}\n\n{ctx.progress['draft']}\n"
    artifact = ctx.save_artifact("report.md", text, "text/markdown")
    return {"report": artifact.name, "words": len(text.split())}


def _write_section(name: str, topic: Topic) -> str:
    if name == "Sources":
        lines = [f"{n}. {_join_line(text)}" for n, text in enumerate(topic.sources, 1)]
        return "## Sources\n\n" + ("\n".join(lines) or "None were given.")
    count = len(topic.sources)
    return (
        f"## Summary\n\nWhat is known about {_join_line(topic.subject)}, "
        f"from {count} source{'' if count == 1 else 's'}."
    )


def _join_line(text: str) -> str:
    """Text of a submitter on one line, so that it can't begin a section of its own."""
    return " ".join(text.split())
