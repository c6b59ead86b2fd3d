"""What people read of a `code-task`: the question of the review, and the report."""

from __future__ import annotations

import dataclasses
import re
from typing import Any, Literal

from harness_site.workflows.shared.showing import (
    code,
    count,
    describe_diffs,
    describe_hold,
    escape,
)
from harness_site.workflows.shared.tree import FileDiff, show_path

TESTS = re.compile(r"(^|/)(tests?/|test_[^/]*$|[^/]*_test\.\w+$|conftest\.py$)")


@dataclasses.dataclass(frozen=True)
class Spent:
    """What the requests to the model came to."""

    requests: int
    tokens_in: int
    tokens_out: int
    cost: str


@dataclasses.dataclass(frozen=True)
class Work:
    """Everything a person needs to judge the work. `before` is what the check found then, "" for
    nothing; `fence` is why it could write outside of its copy, "" where it could not; `plan` are
    the items, each with whether it was ticked off."""

    label: str
    goal: str
    check: str
    before: str
    held: list[str]
    fence: str
    plan: list[tuple[str, bool]]
    summary: str
    diffs: list[FileDiff]
    restarts: int
    model: str
    spent: Spent

    @property
    def added(self) -> int:
        """Lines added, in all files."""
        return sum(diff.added for diff in self.diffs)

    @property
    def removed(self) -> int:
        """Lines removed, in all files."""
        return sum(diff.removed for diff in self.diffs)

    @property
    def tests(self) -> list[str]:
        """The changed files that are tests: what vouches for the change was changed too."""
        return [show_path(one.path) for one in self.diffs if TESTS.search(show_path(one.path))]

    @property
    def risk(self) -> Literal["low", "medium"]:
        """Medium when the check vouches for less than it could."""
        sure = "network" in self.held and not self.tests and all(done for _, done in self.plan)
        return "low" if sure else "medium"

    @property
    def subject(self) -> str:
        """The question."""
        return f"Take the change of {count(len(self.diffs), 'file')} in {self.label}?"

    def write_body(self) -> str:
        """The question's text, in Markdown; the figures of the check are in the payload."""
        return "\n\n".join([
            "## The goal", quote(self.goal),
            *self._write_plan(), *self._write_summary(), *self._write_checks(),
            "Approving publishes the patch, a report and the archive. Sending back gives the agent "
            "another round with your comment; rejecting ends the task.",
        ])  # fmt: skip

    def write_report(self, answer: dict[str, Any] | None) -> str:
        """The published report, in Markdown: nothing in it differs between two runs that did the
        same, however often a worker was lost."""
        files = ["| file | added | removed |", "| --- | ---: | ---: |"]
        files += [f"| {code(show_path(d.path))} | {d.added} | {d.removed} |" for d in self.diffs]
        parts = [
            f"# {escape(self.label)}: what was done", "## The goal", quote(self.goal),
            *self._write_plan(), *self._write_summary(), "## Checks", *self._write_checks(),
            "## Files changed", "\n".join(files), "## Money",
            f"{count(self.spent.requests, 'request')} to {code(self.model)}: "
            f"{self.spent.tokens_in:,} tokens in, {self.spent.tokens_out:,} out, "
            f"{self.spent.cost} of money.",
            "## Review", self._write_answer(answer),
        ]  # fmt: skip
        return "\n\n".join(parts) + "\n"

    def describe_payload(self) -> dict[str, Any]:
        """The figures, and the diff of each file as far as the question has room for it."""
        return {
            "files": list(describe_diffs(self.diffs)),
            "tests": {
                "check": self.check,
                "before": {"result": self.before or "passed"},
                "after": {"result": "passed"},
                "network": "cut off" if "network" in self.held else "not cut off",
            },
        }

    def _write_plan(self) -> list[str]:
        lines = [
            f"- {'\N{CHECK MARK}' if done else '\N{BALLOT X} (left open)'} {escape(item)}"
            for item, done in self.plan
        ]
        done = sum(done for _, done in self.plan)
        return [f"## The plan, {done} of {len(self.plan)} items done", "\n".join(lines)]

    def _write_summary(self) -> list[str]:
        said = quote(self.summary)
        return ["## What the agent says of it", said] if said else []

    def _write_checks(self) -> list[str]:
        was = f"failed ({self.before})" if self.before else "passed"
        again = f", after {count(self.restarts, 'restart')}" if self.restarts else ""
        held = describe_hold(frozenset(self.held), "the checks")
        parts = [
            f"{code(self.check)} {was} before and passes now{again}; ruff finds nothing in the "
            f"changed files that it did not find before. {held} {self._tell_fence()}"
        ]
        if self.tests:
            named = ", ".join(map(code, self.tests))
            parts.append(f"**Tests were changed too:** {named}. Look at them first.")
        return parts

    def _tell_fence(self) -> str:
        if not self.fence:
            return "They could write nowhere but into a copy of the files: bubblewrap held them."
        fault = f"{self.fence[0].upper()}{self.fence[1:]}"
        return f"**{escape(fault)}**, so they could write wherever the worker's user may."

    def _write_answer(self, answer: dict[str, Any] | None) -> str:
        if not answer:
            return "Nobody was asked: the submitter chose so, and the site allows it."
        said = quote(str(answer.get("comment") or ""))
        by = code(str(answer.get("by", "")))
        return f"Approved by {by}." + (f"\n\n{said}" if said else "")


def quote(text: str) -> str:
    """Text as a quotation in Markdown, whatever is in it."""
    return "\n".join(f"> {escape(line)}" for line in text.strip().splitlines())
