"""What a checkpoint costs beside hashing the tree: little."""

from __future__ import annotations

import os
import random
from pathlib import Path

import pytest

from benchmarks.checkpoint import measure_checkpoints
from benchmarks.noop import three
from harness_site.workflows.modernise.source import copy_distribution
from ledger.workflows import registered

PROOF = bool(os.environ.get("LONGWATCH_TEST_PROOF"))


def fill(folder: Path) -> None:
    """A tree that takes as long to hash as Django's and has a tenth of its files to be stored; the
    long form takes that."""
    if PROOF:
        copy_distribution("Django", folder)
        return
    for n in range(400):
        (folder / f"{n}.py").write_bytes(random.randbytes(200_000))


@pytest.mark.timeout(600 if PROOF else 120)
@pytest.mark.django_db
def test_a_checkpoint_of_ten_changed_files_costs_at_most_three_times_hashing_the_tree() -> None:
    with registered(three):
        found = measure_checkpoints(fill, rounds=15 if PROOF else 3)
    assert found["ratio"] <= 3, found
