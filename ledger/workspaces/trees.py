"""A tree of files as data: what a manifest holds."""

from __future__ import annotations

import json
import re
from typing import Any, Final, NamedTuple

from ledger import blobs, canonical, corruption
from ledger.errors import LedgerError

MANIFEST_VERSION: Final = 1
MAX_ENTRIES: Final = 100_000
MAX_BYTES: Final = 4 * 1024**3

_DIGEST = re.compile(r"[0-9a-f]{64}")


class WorkspaceRefused(LedgerError):
    """Something in the workspace can't be kept; the message names the path and the cure."""

    code = "workspace_refused"
    status = 422

    def __init__(self, path: str, why: str) -> None:
        super().__init__(f"workspace: {path!r} {why}")


class Entry(NamedTuple):
    """One path: a file (mode, digest, size), a folder (mode) or a link (target)."""

    kind: str
    mode: int = 0
    digest: str = ""
    size: int = 0
    target: str = ""


type Tree = dict[str, Entry]
"""Entries by their path from the workspace's root, with slashes; parents before children."""


def write_manifest(tree: Tree) -> bytes:
    """The manifest's bytes: the same tree gives the same bytes."""
    entries = [{"path": path, **_trim(entry)} for path, entry in sorted(tree.items())]
    return canonical.dump_json({"version": MANIFEST_VERSION, "entries": entries}).encode()


def read_manifest(digest: str) -> Tree:
    """The tree of a stored manifest. Raises CorruptArtifact, which is on record from then on."""
    with corruption.open_stored(digest) as file:
        try:
            return parse_manifest(file.read())
        except ValueError as error:
            raise blobs.CorruptArtifact(digest, f"are no manifest: {error}") from None


def parse_manifest(text: bytes) -> Tree:
    """The tree that `write_manifest` wrote. Raises ValueError, also for a path that leads out."""
    tree: Tree = {}
    try:
        for given in json.loads(text)["entries"]:
            path = given.pop("path")
            tree[path] = entry = Entry(**given)
            parent, slash, name = path.rpartition("/")
            if (
                name in {"", ".", ".."}
                or (slash and not parent)
                or (parent and tree[parent].kind != "dir")
                or (entry.kind == "file" and not _DIGEST.fullmatch(entry.digest))
            ):
                raise ValueError(f"{path!r} can't be")
    except (KeyError, TypeError) as error:
        raise ValueError(f"{type(error).__name__}: {error}") from None
    return tree


def total_size(tree: Tree) -> int:
    """The bytes of all its files."""
    return sum(entry.size for entry in tree.values())


def _trim(entry: Entry) -> dict[str, Any]:
    return {name: value for name, value in entry._asdict().items() if value not in {"", 0}}
