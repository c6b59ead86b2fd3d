"""Commands that steps may have run on a task's files: spelled out in the settings, under a name.

LONGWATCH_CHECKS = {"tests": {"argv": ["python", "-m", "pytest", "-q"], "timeout": 600}}: workflow,
client and model have the name and nothing else, so none of them can choose a program. The command
runs under the warden: alone, bounded, without our environment, and gone when its unit is.
"""

from __future__ import annotations

import os
import re
import shutil
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Annotated, Any

from django.conf import settings
from django.core.exceptions import ImproperlyConfigured
from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator

from ledger import bounds, sandbox

UNUSABLE = 124
"""Exit codes from here on say nothing about the work: not found, no permission, a signal."""

ANSI = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)|[ -/]*[0-~])")
UNSHOWN = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")

EDGE = 4096
"""Characters that are looked through for the end of a line where an output was cut."""


class Check(BaseModel):
    """One command. `env` are names of our own environment's variables to pass on, or `NAME=value`;
    `secrets` are those of `ctx.secret`, passed as variables of the same name.

    An exit code in `passes` is a pass, one in `errors` (or from UNUSABLE on) says that the command
    itself failed; any other one that the work is wrong.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    argv: Annotated[list[str], Field(min_length=1)]
    timeout: Annotated[float, Field(gt=0, le=bounds.days(1))] = 600.0
    memory: int | str = 2 * 1024**3
    network: bool = False
    env: list[str] = []
    secrets: list[str] = []
    passes: list[int] = [0]
    errors: list[int] = []

    @field_validator("memory")
    @classmethod
    def read_memory(cls, value: int | str) -> int:
        """Bytes, or text such as "512M"."""
        return bounds.parse_bytes(value, "memory")

    def is_unusable(self, code: int) -> bool:
        """True for an exit code that says nothing about the work."""
        return code not in self.passes and (code in self.errors or code >= UNUSABLE)

    def find_program(self) -> str | None:
        """What `argv` begins with, in full; None where this machine does not have it."""
        if os.sep in self.argv[0]:  # also of the task's own files, if the settings say so
            return self.argv[0]
        return shutil.which(self.argv[0], path=find_path())

    def make_environment(self, secrets: Mapping[str, str]) -> dict[str, str]:
        """All that the command finds, beside its HOME and TMPDIR."""
        own = {"PATH": find_path(), "PYTHONDONTWRITEBYTECODE": "1"}
        return {**own, **sandbox.pick_environment(self.env), **secrets}


def find_path() -> str:
    """PATH: the programs of our own interpreter's environment first."""
    return f"{Path(sys.executable).parent}{os.pathsep}{sandbox.PATH}"


class UnknownCheck(LookupError):
    """No command of this name is in the settings."""

    def __init__(self, name: str, known: Mapping[str, Any]) -> None:
        names = ", ".join(sorted(known)) or "nothing"
        super().__init__(f"LONGWATCH_CHECKS has no command {name!r}, but {names}; add it there")


def read_checks() -> dict[str, Check]:
    """The commands of the settings. Raises ImproperlyConfigured, naming the part and the cure."""
    given = getattr(settings, "LONGWATCH_CHECKS", None) or {}
    if not isinstance(given, dict):
        raise ImproperlyConfigured(
            'LONGWATCH_CHECKS takes commands by name, as {"tests": {"argv": ["make", "test"]}}.'
        )
    return {name: _read_check(name, given[name]) for name in given}


def find_check(name: str) -> Check:
    """The command of this name. Raises UnknownCheck, ImproperlyConfigured."""
    known = read_checks()
    if name not in known:
        raise UnknownCheck(name, known)
    return known[name]


def run_check(
    check: Check,
    folder: Path | None,
    *,
    fill: Callable[[Path], object] = lambda folder: None,
    secrets: Mapping[str, str] | None = None,
    tick: Callable[[], object] = lambda: None,
    cwd: str = "",
    limits: Mapping[str, int] | None = None,
    wrap: Callable[[list[str]], list[str]] | None = None,
) -> sandbox.Ended:
    """Run it to its end in `folder`, or else in one of its own, which `fill` has filled, or in
    `cwd` below it; `tick` is called meanwhile and may raise, which ends it. `limits` are more of
    sandbox.Bounds, `wrap` makes the command of a jailer.

    Raises FileNotFoundError for a program that is not there.
    """
    program = check.find_program()
    if program is None:
        raise FileNotFoundError(f"{check.argv[0]} is not on {find_path()}")
    assert isinstance(check.memory, int)
    return sandbox.run_confined(
        lambda report: (wrap or list)([program, *check.argv[1:]]),
        fill,
        folder=folder,
        cwd=cwd,
        environment=check.make_environment(secrets or {}),
        bounds=sandbox.Bounds(seconds=check.timeout, memory_bytes=check.memory, **(limits or {})),
        network=check.network,
        jailer=wrap is not None,
        tick=tick,
    )


def read_output(ended: sandbox.Ended, mask: Callable[[str], str]) -> str:
    """The output as plain text, secrets masked: colours and controls gone, its middle if too long.

    A secret that is cut in two could not be found, so no line is that was cut.
    """
    tail = mask(_read_plain(ended.tail))
    if not ended.head:
        return tail
    head = mask(_read_plain(ended.head))
    end = max(head.rfind("\n", -EDGE), 0) or max(0, len(head) - EDGE)
    start = tail.find("\n", 0, EDGE)
    start = EDGE if start < 0 else start
    return f"{head[:end]}\n[{ended.dropped:,} bytes and two lines left out]{tail[start:]}"


def _read_plain(text: str) -> str:
    return UNSHOWN.sub("", ANSI.sub("", text.replace("\r\n", "\n").replace("\r", "\n")))


def _read_check(name: object, given: Any) -> Check:
    if not isinstance(name, str) or not name.isidentifier():
        raise ImproperlyConfigured(
            f"LONGWATCH_CHECKS: {name!r} can't name a command; use letters, digits and _."
        )
    try:
        return Check.model_validate(given)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        path = ".".join(["LONGWATCH_CHECKS", name, *map(str, first["loc"])])
        raise ImproperlyConfigured(f"{path}: {first['msg']}.") from None
