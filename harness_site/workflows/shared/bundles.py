"""Git bundles: the files of the commit that one is about.

git reads them, in the sandbox, as they are not to be trusted either: no configuration but ours, no
hooks, no templates, no attributes of the tree. What comes out is an archive like any other.
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO

from harness_site.workflows.shared.archive import BLOCK, Bounds, Refused, unpack
from ledger import sandbox

MAGIC = re.compile(rb"# v[23] git bundle\n")
SECONDS = 300.0

ENVIRONMENT = {
    "GIT_CONFIG_NOSYSTEM": "1", "GIT_CONFIG_GLOBAL": "/dev/null", "GIT_ATTR_NOSYSTEM": "1",
    "GIT_ALLOW_PROTOCOL": "file", "GIT_TERMINAL_PROMPT": "0",
}  # fmt: skip
"""HOME is the sandbox's own; of this process's environment nothing is handed on."""

PLAIN = "* -export-ignore -export-subst -text -eol -ident -filter -working-tree-encoding"
"""Attributes that go before the tree's own: every file, byte for byte."""

LIST = f"""
git init --quiet --bare --template= made.git
mkdir -p made.git/info
echo '{PLAIN}' > made.git/info/attributes
git -C made.git bundle list-heads ../given.bundle
"""

TAKE = """
git -C made.git -c core.hooksPath=/dev/null -c gc.auto=0 -c maintenance.auto=false \\
    fetch --quiet --no-tags ../given.bundle "$1"
git -C made.git archive --format=tar.gz --output=../tree.tar.gz FETCH_HEAD
"""

_HEAD = re.compile(r"^[0-9a-f]{40,64} (HEAD|refs/heads/[^\s:+^~?*\[\\]{1,200})$", re.MULTILINE)


def is_bundle(file: BinaryIO) -> bool:
    """Whether the file begins as a git bundle does."""
    file.seek(0)
    first = file.read(32)
    file.seek(0)
    return MAGIC.match(first) is not None


def unpack_bundle(
    bundle: BinaryIO,
    target: Path,
    scratch: Path,
    *,
    bounds: Bounds | None = None,
    tick: Callable[[], object] = lambda: None,
) -> int:
    """Unpack the files of its HEAD, or of its only branch, and return their number; `scratch` is an
    empty folder to work in. Raises Refused."""
    bounds = bounds or Bounds()
    with (scratch / "given.bundle").open("wb") as copy:
        shutil.copyfileobj(bundle, copy, BLOCK)
    heads = _HEAD.findall(_run_git(LIST, scratch, bounds, tick))
    if "HEAD" in heads:
        head = "HEAD"
    elif len(heads) == 1:
        head = heads[0]
    else:
        found = f"the branches {', '.join(heads)}" if heads else "no branch"
        raise Refused(f"the bundle names no HEAD, but {found}; make it with HEAD")
    _run_git(TAKE, scratch, bounds, tick, head)
    with (scratch / "tree.tar.gz").open("rb") as made:
        return unpack(made, target, bounds)


def _run_git(
    script: str, folder: Path, bounds: Bounds, tick: Callable[[], object], *args: str
) -> str:
    """What the script writes. Raises Refused with its last words."""
    if shutil.which("git", path=sandbox.PATH) is None:
        raise Refused("it is a git bundle, and this machine has no git; send an archive")
    ended = sandbox.run_confined(
        lambda report: ["/bin/sh", "-euc", script, "git", *args],
        folder=folder,
        environment=ENVIRONMENT,
        bounds=sandbox.Bounds(seconds=SECONDS, file_bytes=bounds.total_bytes),
        tick=tick,
    )
    if ended.code:
        words = " ".join(ended.tail.split())[-300:] or f"git ended with {ended.code}"
        raise Refused(f"git can't read the bundle: {words}")
    return ended.tail
