"""What a checkpoint of a large workspace costs beside hashing it: the tree of an installed
distribution, of which each unit changes a few files. The database is the empty one of
LONGWATCH_DATABASE_URL."""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import django

CHANGED = 10
OWNER = "bench:1:boot"


def hash_tree(root: Path) -> None:
    """The reference: every file by hashlib, one after the other."""
    for folder, _, files in os.walk(root):
        for name in files:
            with open(os.path.join(folder, name), "rb") as file:
                hashlib.file_digest(file, "sha256").hexdigest()


def change_files(root: Path, number: int) -> None:
    """Add a line to ten files spread over the tree; others in each round."""
    files = sorted(path for path in root.rglob("*.py") if path.stat().st_size)
    step = max(1, len(files) // CHANGED)
    for path in files[number % step :: step][:CHANGED]:
        with path.open("a") as file:
            file.write(f"# {number}\n")


def take_time(what: Callable[..., Any], *given: Any) -> tuple[float, Any]:
    """Its milliseconds, and what it returned."""
    begun = time.perf_counter()
    value = what(*given)
    return (time.perf_counter() - begun) * 1000, value


def measure_checkpoints(fill: Callable[[Path], Any], rounds: int) -> dict[str, float]:
    """Medians in milliseconds over the rounds, of a tree that `fill` writes: hashing it, its first
    use by the next unit, its checkpoint; and the ratio of the last to the first."""
    from ledger import client, sql
    from ledger.workspaces import TaskFolder

    client.submit("bench-3", {})
    held = sql.claim_task(OWNER, [("default", "bench-3", "1")], 3_600.0)
    assert held is not None
    folder = TaskFolder(held)
    fill(folder.path)
    held.workspace = folder.snapshot()
    found: dict[str, list[float]] = {"hash": [], "open": [], "checkpoint": []}
    for number in range(rounds):
        took, folder = take_time(TaskFolder, held)
        found["open"].append(took)
        change_files(folder.path, number)
        found["hash"].append(take_time(hash_tree, folder.path)[0])
        took, digest = take_time(folder.snapshot)
        assert digest != held.workspace
        found["checkpoint"].append(took)
        held.workspace = digest
    medians = {name: statistics.median(values) for name, values in found.items()}
    return medians | {"ratio": medians["checkpoint"] / medians["hash"]}


def main() -> None:
    """Measure and print as JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--distribution", default="Django")
    parser.add_argument("--rounds", type=int, default=7)
    options = parser.parse_args()
    django.setup()
    from harness_site.workflows.modernise.source import copy_distribution

    found = measure_checkpoints(
        lambda folder: copy_distribution(options.distribution, folder), options.rounds
    )
    sys.stdout.write(json.dumps(found) + "\n")


if __name__ == "__main__":
    main()
