"""Set-up commands: run where a folder was rebuilt, and not again for the same inputs.

What a command made is kept on this host by the digest of its inputs, the command and the platform:
a manifest and files of the blob cache, all of it verified when it is used. What is not there whole
is made by the command again.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import logging
import os
import platform
import stat
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO, Final

from ledger import blobcache, canonical
from ledger.conf import locate_var
from ledger.filerules import Workspace
from ledger.workspaces.commands import SetupFailed, run_command
from ledger.workspaces.restoring import remove_tree, write_tree
from ledger.workspaces.scanning import MODE_BITS, walk_tree
from ledger.workspaces.trees import Entry, Tree, WorkspaceRefused, parse_manifest, write_manifest

MAX_SETUPS: Final = 1_000
"""How many are remembered on a host; the oldest are forgotten."""


class _Missing(Exception):
    """Something of what was kept is not there any more."""


def name_setup(rules: Workspace, tree: Tree) -> str:
    """The name of what the command makes of the tree's inputs; "" while there is none to be run."""
    if not rules.setup:
        return ""
    inputs = []
    for given in rules.inputs:
        found = [
            [path, *entry]
            for path, entry in tree.items()
            if path == given or path.startswith(f"{given}/")
        ]
        if not found:
            return ""
        inputs += found
    platform_is = [platform.system(), platform.machine(), platform.python_version()]
    declared = {"setup": rules.setup, "env": rules.env, "outputs": rules.outputs}
    told = {**declared, "inputs": inputs, "on": platform_is}
    return hashlib.sha256(canonical.dump_json(told).encode()).hexdigest()


def set_up(
    folder: Path,
    rules: Workspace,
    name: str,
    log: logging.Logger,
    check: Callable[[], None],
) -> None:
    """Have the outputs there: from the cache, or by the command. Raises SetupFailed."""
    for output in rules.outputs:
        # Below a link it would lie elsewhere, where nothing says that it is an output.
        parent = (folder / output).parent
        if not parent.is_dir() or parent.resolve() != folder.resolve() / parent.relative_to(folder):
            raise SetupFailed(
                rules.setup, f"makes {output!r} in a folder that the workspace does not have"
            )
    _remove_outputs(folder, rules)
    try:
        _fetch_outputs(folder, name, check)
        log.info("set up from what this host has kept: %s", ", ".join(rules.outputs))
        return
    except (_Missing, WorkspaceRefused):
        _remove_outputs(folder, rules)
    run_command(rules.setup, folder, log, check, rules.env)
    if rules.outputs:
        try:
            _keep_outputs(folder, rules, name, check)
        except (WorkspaceRefused, OSError) as error:
            log.warning("what the set-up command made is not kept for other folders: %s", error)


def _remove_outputs(folder: Path, rules: Workspace) -> None:
    for output in rules.outputs:
        path = folder / output
        remove_tree(path)
        path.unlink(missing_ok=True)


# --- What is kept ---------------------------------------------------------------------------------


def _fetch_outputs(folder: Path, name: str, check: Callable[[], None]) -> None:
    """Write what was kept. Raises _Missing for what is not there whole."""
    try:
        digest = _locate(name).read_text()
        os.utime(_locate(name))
    except (OSError, ValueError):
        raise _Missing from None
    with _open_kept(digest) as file:
        tree = parse_manifest(file.read())  # verified, so it is as it was written
    write_tree(tree, folder, set(), _open_kept, check)


def _open_kept(digest: str) -> BinaryIO:
    file = blobcache.open_cached(digest) if len(digest) == 64 and digest.isalnum() else None
    if file is None:
        raise _Missing
    return file


def _keep_outputs(folder: Path, rules: Workspace, name: str, check: Callable[[], None]) -> None:
    tree: Tree = {}
    for output in rules.outputs:
        if not os.path.lexists(folder / output):
            continue
        above = [output[:at] for at, letter in enumerate(output) if letter == "/"]
        below = []
        if (folder / output).is_dir() and not (folder / output).is_symlink():
            below = [f"{output}/{path}" for path, _ in walk_tree(f"{folder}/{output}")]
        for path in (*above, output, *below):
            check()
            tree[path] = _keep_entry(f"{folder}/{path}", path)
    digest = _keep_bytes(write_manifest(tree))
    target = _locate(name)
    target.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    with tempfile.NamedTemporaryFile("w", dir=target.parent, prefix=".", delete=False) as draft:
        draft.write(digest)
    os.replace(draft.name, target)
    _forget_old(target.parent)


def _keep_entry(path: str, shown: str) -> Entry:
    """The entry of an output, its bytes in the cache. Its links may lead anywhere."""
    facts = os.lstat(path)
    mode = facts.st_mode & MODE_BITS
    if stat.S_ISLNK(facts.st_mode):
        return Entry("link", target=os.readlink(path))
    if stat.S_ISDIR(facts.st_mode):
        return Entry("dir", mode)
    if not stat.S_ISREG(facts.st_mode):
        raise WorkspaceRefused(shown, "is a device, FIFO or socket")
    with open(path, "rb") as source:
        digest, copy = blobcache.copy_in(source)
    with copy:
        return Entry("file", mode, digest, os.fstat(copy.fileno()).st_size)


def _keep_bytes(content: bytes) -> str:
    digest, copy = blobcache.copy_in(io.BytesIO(content))
    copy.close()
    return digest


def _forget_old(top: Path) -> None:
    found = []
    for path in top.iterdir():
        with contextlib.suppress(OSError):
            found.append((path.stat().st_mtime, path))
    for _, path in sorted(found, reverse=True)[MAX_SETUPS:]:
        path.unlink(missing_ok=True)


def _locate(name: str) -> Path:
    return locate_var() / "setups" / name
