"""The tools that run commands: declared programs, or the checks of the site's settings by name."""

from __future__ import annotations

import dataclasses
import functools
import os
import shlex
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from pydantic import ValidationError
from pydantic_ai.exceptions import ToolFailed

from ledger import bubblewrap, commands
from ledger.agents.kits.paths import clean_path, open_parent
from ledger.agents.kits.toolkit import Toolkit, make_tool
from ledger.agents.recording import find_unit
from ledger.agents.rules import Args, Tool
from ledger.secrets import mask_text
from ledger.unitlog import write_output

MAX_ARGV: Final = 100
MAX_PROCESSES: Final = 256
MAX_TEXT: Final = 16_000
"""Characters of a command's output that the model is shown: a quarter of its start, and its end."""

MAX_OUTPUT: Final = 32 * 1024**2
"""Bytes of output at which a command is ended."""


def describe_fence() -> str:
    """What holds agents' commands on this worker, for the people who review what they did; "" where
    bubblewrap does, and they can write nowhere but into the workspace."""
    fault = bubblewrap.find_fault(commands.find_path())
    if not fault:
        return ""
    return (
        f"**{fault[0].upper()}{fault[1:]}**, so a command can write wherever the worker's user "
        "may, and not only into the workspace."
    )


def command_tools(
    programs: Sequence[str] = (),
    *,
    checks: Sequence[str] = (),
    timeout: float = 120.0,
    memory: int | str = 2 * 1024**3,
    processes: int = 64,
    network: bool = False,
    idempotent: bool = False,
    env: Sequence[str] = (),
    secrets: Sequence[str] = (),
) -> Toolkit:
    """Tools that run commands in the task's workspace: `run_command` for `programs`, `run_check`
    for `checks`, commands of LONGWATCH_CHECKS by name.

    A program is a name, looked for beside our own Python and in the system's folders, or a path,
    with the arguments that must come first, if any: `"git diff"`. There is no shell. The bounds,
    `env` and `secrets` are as in LONGWATCH_CHECKS and are for `run_command`; `processes` is how
    many it may have. With `network` it can act outside, so people are asked about a call of unknown
    outcome unless it is `idempotent`. Raises ValueError.
    """
    try:
        plain = commands.Check(
            argv=["true"], timeout=timeout, memory=memory, network=network, env=list(env),
            secrets=list(secrets),
        )  # fmt: skip
    except ValidationError as error:
        raise ValueError(f"command_tools(): {error}") from None
    allowed = [_split_program(one) for one in programs]
    if isinstance(checks, str) or not (allowed or checks):
        raise ValueError("command_tools(): takes a list of programs, or of checks=, or both")
    runner = _Runner(allowed, tuple(checks), plain, processes)
    tools, rules = [], {}
    if allowed:
        tools.append(make_tool(runner.run_command))
        rules["run_command"] = Tool(
            local=idempotent or not network, idempotent=idempotent, writes=True,
            scope=runner.refuse_command, caution=describe_fence,
        )  # fmt: skip
    if checks:
        tools.append(make_tool(runner.run_check))
        # As an evaluation runs it: again, whenever its unit is made again.
        rules["run_check"] = Tool(local=True, scope=runner.refuse_check, caution=describe_fence)
    return Toolkit(tools, rules, runner.describe())


@dataclasses.dataclass(frozen=True)
class _Runner:
    """The tools; their docstrings are what the model is told."""

    programs: list[tuple[str, ...]]
    checks: tuple[str, ...]
    plain: commands.Check
    processes: int

    def run_command(self, argv: list[str], folder: str = ".") -> str:
        """Run a program in the workspace and get its exit code and output.

        Args:
            argv: The program and its arguments, each by itself; there is no shell, so no pipes, no
                wildcards and no quoting.
            folder: Where in the workspace to run it.
        """
        if why := self.refuse_command({"argv": argv, "folder": folder}):
            raise ToolFailed(why)
        root, cwd = find_unit().workspace, "" if folder in {"", "."} else clean_path(folder)
        if cwd:
            with open_parent(root, f"{cwd}/."):
                pass  # every part of it is a folder, and none a link
        program = _find_program(argv[0], root)
        check = self.plain.model_copy(update={"argv": [program, *argv[1:]]})
        return _run(check, root, cwd, shlex.join(argv), self.processes)

    def run_check(self, name: str) -> str:
        """Run one of the site's commands on the workspace by its name and get its exit code and
        output.

        Args:
            name: One of those that the instructions name.
        """
        if why := self.refuse_check({"name": name}):
            raise ToolFailed(why)
        try:
            check = commands.find_check(name)
        except commands.UnknownCheck as error:
            raise LookupError(str(error)) from None  # the site's to mend, not the model's
        return _run(check, find_unit().workspace, "", name, MAX_PROCESSES)

    def refuse_command(self, args: Args) -> str:
        """Why a call of `run_command` is out of scope."""
        argv, given = args.get("argv"), tuple(args.get("argv") or ())
        if not isinstance(argv, list) or not all(isinstance(one, str) for one in argv):
            return "argv is a list of texts"
        if len(argv) > MAX_ARGV or any("\0" in one for one in argv):
            return f"argv has at most {MAX_ARGV} texts, without NUL"
        if not any(given[: len(one)] == one for one in self.programs):
            return f"what may be run is: {self._list_programs()}"
        return ""

    def refuse_check(self, args: Args) -> str:
        """Why a call of `run_check` is out of scope."""
        known = ", ".join(self.checks)
        return "" if args.get("name") in self.checks else f"what may be run is: {known}"

    def describe(self) -> str:
        """What the model is told of the kit."""
        lines = []
        if self.programs:
            lines.append(f"run_command may run: {self._list_programs()}.")
        if self.checks:
            lines.append(f"run_check knows: {', '.join(self.checks)}.")
        return " ".join(lines)

    def _list_programs(self) -> str:
        return ", ".join(f"`{shlex.join(one)}`" for one in self.programs)


def _run(check: commands.Check, root: Path, cwd: str, shown: str, processes: int) -> str:
    ctx = find_unit()
    known = {name: ctx.secret(name) for name in check.secrets}
    if fence := describe_fence():
        ctx.log.warning("%s", fence.replace("**", ""))
    ctx.log.info("$ %s", shown)
    ctx.report(note=f"running {shown}"[:200])
    try:
        ended = commands.run_check(
            check, root, secrets=known, tick=ctx.check, cwd=cwd,
            limits={"processes": processes, "output_bytes": MAX_OUTPUT},
            wrap=None if fence else functools.partial(_wrap, root, cwd, network=check.network),
        )  # fmt: skip
    except FileNotFoundError as error:
        raise ToolFailed(f"{check.argv[0]!r} is not on this machine: {error}.") from None
    if not check.network and "network" not in ended.held:
        ctx.log.warning("this machine does not cut the command off from the network")
    output = commands.read_output(ended, mask_text)
    write_output(f"{output}\n".encode())
    how = f"exit code {ended.code}"
    if ended.timed_out:
        how = f"ended after {check.timeout:g} s, which is all the time it has"
    return "\n".join([f"[{how}]", _shorten(output.strip("\n"))]).rstrip()


def _wrap(root: Path, cwd: str, argv: list[str], *, network: bool) -> list[str]:
    return bubblewrap.wrap_command(argv, root, cwd, commands.find_path(), network=network)


def _find_program(name: str, root: Path) -> str:
    found = name if os.sep in name else shutil.which(name, path=commands.find_path())
    if found is None or not os.access(found, os.X_OK):
        raise ToolFailed(f"{name!r} is not on this machine.")
    if Path(found).resolve().is_relative_to(root.resolve()):
        raise ToolFailed(f"{name!r} lies in the workspace, where anybody may have written it.")
    return found


def _split_program(given: Any) -> tuple[str, ...]:
    words = tuple(shlex.split(given)) if isinstance(given, str) else ()
    if not words or (os.sep in words[0] and not os.path.isabs(words[0])):
        raise ValueError(f"command_tools(programs=): {given!r} is no name and no absolute path")
    return words


def _shorten(text: str) -> str:
    if len(text) <= MAX_TEXT:
        return text
    head, tail = text[: MAX_TEXT // 4], text[-MAX_TEXT * 3 // 4 :]
    return f"{head}\n[{len(text) - len(head) - len(tail):,} characters left out]\n{tail}"
