"""What people read: the question of the review, the report, and what a comment asks for."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from typing import Any, Literal

from harness_site.workflows.modernise.checks import TestRun
from harness_site.workflows.shared.showing import code, count, describe_diffs, describe_hold, escape
from harness_site.workflows.shared.tree import FileDiff, show_path

AROUND = "`'\"()[]<>,;:!?"

NOT_RUN = "its code is not run, because the token that submitted it lacks the scope operate"


@dataclasses.dataclass(frozen=True)
class Proposal:
    """Everything a person needs to judge the change."""

    label: str
    rules: list[str]
    target: str
    diffs: list[FileDiff]
    left_alone: dict[str, str]
    before: TestRun
    after: TestRun
    rounds: int
    note: str = ""

    @property
    def added(self) -> int:
        """Lines added, in all files."""
        return sum(diff.added for diff in self.diffs)

    @property
    def removed(self) -> int:
        """Lines removed, in all files."""
        return sum(diff.removed for diff in self.diffs)

    @property
    def risk(self) -> Literal["low", "medium"]:
        """Medium when tests vouch for less than they could, or had to be heeded."""
        checked = self.before.kind != "compile" and "network" in self.after.held
        return "low" if checked and not self.left_alone else "medium"

    @property
    def subject(self) -> str:
        """The question."""
        return f"Take ruff's fixes in {count(len(self.diffs), 'file')} of {self.label}?"

    def write_body(self) -> str:
        """The question's text, in Markdown. What the payload says in figures is not said again."""
        return "\n".join(
            [
                *self._write_lead(),
                "",
                "Approving publishes the patch, a report and the archive. Sending back leaves the "
                "files that the comment names as they were.",
            ]
        )

    def write_report(self, answer: dict[str, Any] | None) -> str:
        """The published report, in Markdown."""
        lines = [f"# {escape(self.label)}, modernised", ""]
        lines += [*self._write_lead(), *self._write_facts()]
        if answer:
            lines += ["", f"Approved by {code(str(answer.get('by', '')))}."]
            if comment := str(answer.get("comment") or "").strip():
                lines += ["", *(f"> {escape(line)}" for line in comment.splitlines())]
        lines += ["", "## Files changed", "", "| file | added | removed |", "| --- | ---: | ---: |"]
        lines += [f"| {code(show_path(d.path))} | {d.added} | {d.removed} |" for d in self.diffs]
        return "\n".join(lines) + "\n"

    def describe_payload(self) -> dict[str, Any]:
        """The figures, and the diff of each file as far as the question has room for it."""
        return {
            "files": list(describe_diffs(self.diffs)),
            "left_alone": [{"path": path, "why": why} for path, why in self.left_alone.items()],
            "tests": {
                "kind": self.before.kind,
                "before": self.before.ran,
                "after": self.after.ran,
                "skipped_before": self.before.skipped,
                "skipped_after": self.after.skipped,
                "network": "cut off" if "network" in self.after.held else "not cut off",
            },
        }

    def _write_lead(self) -> list[str]:
        lines = [
            f"ruff's safe fixes of {', '.join(self.rules)} for {self.target} change "
            f"**{count(len(self.diffs), 'file')}** (+{self.added} -{self.removed}), "
            f"found good {f'after {count(self.rounds, "restart")}' if self.rounds else 'at once'}.",
            "",
            describe_hold(frozenset(self.after.held)),
        ]
        return lines + (["", f"**Only compiled:** {self.note}."] if self.note else [])

    def _write_facts(self) -> list[str]:
        before, after = self.before, self.after
        ran = "Python files that compile" if before.kind == "compile" else "tests that ran"
        lines = [
            "",
            "| | before | after |",
            "| --- | ---: | ---: |",
            f"| {ran} ({before.kind}) | {before.ran} | {after.ran} |",
            f"| of these skipped | {before.skipped} | {after.skipped} |",
        ]
        if self.left_alone:
            lines += ["", "Left as they were:", ""]
            lines += [f"- {code(path)}: {escape(why)}" for path, why in self.left_alone.items()]
        return lines


def find_named_files(comment: str, paths: Iterable[str]) -> list[str]:
    """Those of `paths` (as shown) that a comment names, in full or by a name that only one has."""
    paths = list(paths)
    # A name ends where the sentence goes on: at a space, a bracket, a quote, a comma or a stop.
    words = {word.lstrip(AROUND).rstrip(AROUND + ".") for word in comment.split()}
    last = [path.rpartition("/")[2] for path in paths]
    return [
        path
        for path, name in zip(paths, last, strict=True)
        if path in words or (name in words and last.count(name) == 1) or _is_quoted(path, comment)
    ]


def _is_quoted(path: str, comment: str) -> bool:
    return " " in path and path in comment
