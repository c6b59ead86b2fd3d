"""What an author declares of a task's files: what is kept, how a rebuilt folder is set up."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

from pathspec import GitIgnoreSpec


@dataclasses.dataclass(frozen=True)
class Workspace:
    """How the folder of a workflow's tasks is kept.

    `ignore` has patterns as in a .gitignore: what they match is neither stored nor promised.
    `setup` is a command and its arguments, run without a shell where the folder has been rebuilt,
    once all files of `inputs` are there; for the same inputs its `outputs`, which are ignored too,
    come from a cache of the host. `env` has variables for the command: names of the worker's own
    to pass on, or `NAME=value`. Raises ValueError for what can't be.
    """

    ignore: Sequence[str] = ()
    setup: Sequence[str] = ()
    inputs: Sequence[str] = ()
    outputs: Sequence[str] = ()
    env: Sequence[str] = ()
    _spec: GitIgnoreSpec = dataclasses.field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        for name in ("ignore", "setup", "inputs", "outputs", "env"):
            given = getattr(self, name)
            if isinstance(given, str) or not all(isinstance(text, str) and text for text in given):
                raise ValueError(f"Workspace({name}=): takes a list of texts, not {given!r}")
            object.__setattr__(self, name, tuple(given))
        for name in ("inputs", "outputs"):
            paths = tuple(_check_path(path, name) for path in getattr(self, name))
            object.__setattr__(self, name, paths)
        if not self.setup and (self.inputs or self.outputs or self.env):
            raise ValueError("Workspace(): inputs=, outputs= and env= are those of setup=")
        try:
            spec = GitIgnoreSpec.from_lines(self.ignore)
        except ValueError as error:
            raise ValueError(f"Workspace(ignore=): {error}") from None
        object.__setattr__(self, "_spec", spec)
        if hidden := [path for path in self.inputs if self._hides(path)]:
            raise ValueError(f"Workspace(inputs=): {hidden[0]!r} is ignored, so it is never there")

    @property
    def hides_any(self) -> bool:
        """Whether any path can be ignored."""
        return bool(self.ignore or self.outputs)

    def ignores(self, path: str, is_folder: bool) -> bool:
        """Whether the path, whose parents are not ignored, is: with all below it, if a folder."""
        if path in self.outputs:
            return True
        for pattern in reversed(self._spec.patterns):  # as in git, the last one that matches counts
            if pattern.include is not None and _matches(pattern, path, is_folder):
                return bool(pattern.include)
        return False

    def _hides(self, path: str) -> bool:
        parents = [path[:at] for at, letter in enumerate(path) if letter == "/"]
        return any(self.ignores(one, True) for one in parents) or self.ignores(path, False)


def _matches(pattern: Any, path: str, is_folder: bool) -> bool:
    """Whether a pattern names the path itself.

    A match that ends at a folder above it says nothing of it, as `!docs` after `*.log` does not
    bring back `docs/a.log`; pathspec would have it so.
    """
    if any("ps_d" not in one.groupdict() or one["ps_d"] is None
           for one in pattern.regex.finditer(path)):  # fmt: skip
        return True
    whole = f"{path}/"
    return is_folder and any(
        one.groupdict().get("ps_d") and one.end("ps_d") == len(whole)
        for one in pattern.regex.finditer(whole)
    )


PLAIN = Workspace()
"""Everything is kept, and nothing is to be set up."""


def _check_path(path: str, name: str) -> str:
    path = path.removeprefix("./").rstrip("/")
    if path.startswith("/") or not {"", ".", ".."}.isdisjoint(path.split("/")):
        raise ValueError(f"Workspace({name}=): {path!r} is no path inside of the workspace")
    return path
