"""The check of a `code-task`: a command of the site's, by name, on a copy of the work; and lint of
what was changed."""

from __future__ import annotations

import dataclasses
import json
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

from harness_site.workflows.shared.originals import make_scratch, open_original
from harness_site.workflows.shared.tree import compare_trees, copy_tree, list_files, show_path
from ledger import bubblewrap, commands, linting, secrets
from ledger.commands import Check, UnknownCheck
from ledger.context import Context
from ledger.evaluators import Cost, EvaluatorFailed, Finding

BUILT_IN = {"unittest": Check(argv=["python", "-m", "unittest", "discover"])}
"""What every site has. One of the same name in LONGWATCH_CHECKS goes before it."""

RULES = ("E4", "E7", "E9", "F")
TARGET = "py312"

SHOWN = 4_000
"""Characters of a check's output that are told, its end."""


def find_check(name: str) -> Check:
    """The command of this name. Raises UnknownCheck."""
    known = BUILT_IN | commands.read_checks()
    if name not in known:
        raise UnknownCheck(name, known)
    return known[name]


class CheckRun(NamedTuple):
    """How a check ended: what is wrong in a few words ("" for nothing), the end of its output, what
    it was cut off from while it ran, and why it could write outside of its copy ("": it could not).
    """

    problem: str
    output: str
    held: list[str]
    fence: str

    def describe(self) -> str:
        """For the model."""
        if not self.problem:
            return "The check passes."
        return f"The check fails: {self.problem}. Its output ends:\n{self.output}"


def run_check(ctx: Context) -> CheckRun:
    """Run the task's check on a copy of its workspace, so that what it leaves is no part of the
    work. Raises EvaluatorFailed when nothing can be said of the work."""
    name, root = ctx.input.check, ctx.workspace
    check, path = find_check(name), commands.find_path()
    fence = bubblewrap.find_fault(path)
    with make_scratch(ctx) as copy:
        copy_tree(root, copy, list_files(root))

        def wrap(argv: list[str]) -> list[str]:
            return bubblewrap.wrap_command(argv, copy, "", path, network=check.network)

        try:
            ended = commands.run_check(
                check, copy, secrets={one: ctx.secret(one) for one in check.secrets},
                tick=ctx.check, wrap=None if fence else wrap,
            )  # fmt: skip
        except FileNotFoundError as error:
            raise EvaluatorFailed(f"the check {name}: {error}") from error
        output = commands.read_output(ended, secrets.mask_text).replace(f"{copy}/", "")
    output = output.strip()[-SHOWN:]
    ctx.log.info("check %s: exit code %d\n%s", name, ended.code, output)
    held = sorted(ended.held)
    if ended.timed_out:
        return CheckRun(f"it did not end in {check.timeout:g} s", output, held, fence)
    if check.is_unusable(ended.code):
        raise EvaluatorFailed(f"the check {name} ended with exit code {ended.code}: {output}")
    problem = "" if ended.code in check.passes else f"exit code {ended.code}"
    return CheckRun(problem, output, held, fence)


class CheckLayer:
    """The check as an evaluator; `run` is how it ended."""

    kind = "command"
    cost = Cost.COMMAND

    def __init__(self, name: str) -> None:
        self.name = name
        self.run: CheckRun | None = None

    def find(self, ctx: Any, value: Any) -> Iterator[Finding]:
        """Its exit code decides."""
        self.run = run_check(ctx)
        if self.run.problem:
            yield Finding(f"{self.run.problem}; its output ends:\n{self.run.output[-1_500:]}")


class ChangeLayer:
    """Something was changed."""

    name, kind, cost = "change", "predicate", Cost.MEMORY

    def find(self, ctx: Any, value: Any) -> Iterator[Finding]:
        """A tree that is as it was handed in has not had its work done."""
        with open_original(ctx) as original:
            if not compare_trees(original, ctx.workspace):
                yield Finding("no file differs from what was handed in: nothing was done")


@dataclasses.dataclass(frozen=True)
class LintLayer:
    """ruff on the files that were changed: what it finds there and did not before."""

    name: str = "ruff"
    kind: str = "lint"
    cost: int = Cost.FILES

    def find(self, ctx: Any, value: Any) -> Iterator[Finding]:
        """Each at `file:line`, with its rule."""
        root = ctx.workspace
        with open_original(ctx) as original:
            paths = [path for path in compare_trees(original, root) if path.endswith(".py")]
            found = list_findings(original, paths, ctx.check)
            known = Counter((path, what) for path, _, what in found)
        for path, row, what in list_findings(root, paths, ctx.check):
            if known[path, what] > 0:
                known[path, what] -= 1
            else:
                yield Finding(what, f"{show_path(path)}:{row}")


def list_findings(
    root: Path, paths: list[str], tick: Callable[[], object]
) -> list[tuple[str, int, str]]:
    """(path, line, finding) of those of `paths` that are there. Raises EvaluatorFailed."""
    there = [path for path in paths if (root / path).is_file()]
    if not there:
        return []
    try:
        told = linting.run_ruff(root, there, RULES, TARGET, "--output-format=json-lines", tick=tick)
    except linting.RuffFailed as error:
        raise EvaluatorFailed(str(error)) from error
    found = [json.loads(line) for line in told.splitlines()]
    return [
        (str(Path(one["filename"]).relative_to(root.resolve())), one["location"]["row"],
         f"{one['code'] or 'syntax'}: {one['message']}")
        for one in found
    ]  # fmt: skip
