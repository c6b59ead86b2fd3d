"""The tables of the proof: a row goes to its own, and only what held is called so."""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.chaos.proof import HEADS, LONG_FORMS, REPORT, append_rows
from tests.chaos.stops import SORTS, describe_stops
from tests.conftest import ROOT


@pytest.mark.parametrize(
    "module",
    ["tests.chaos", *(f"tests.chaos.{name}" for name in ("bots", "proof", "rerun", "stops"))],
)
def test_every_command_starts_before_django_is_set_up(module: str) -> None:
    plain = {k: v for k, v in os.environ.items() if not k.startswith("DJANGO_")}
    done = subprocess.run(
        [sys.executable, "-m", module, "--help"], cwd=ROOT, env=plain, capture_output=True,
        text=True,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("usage: python -m " + module)


def test_every_long_form_is_a_part_of_the_proof() -> None:
    known = {file for files, _ in LONG_FORMS.values() for file in files.split()}
    found = {
        str(file.relative_to(ROOT))
        for file in (ROOT / "tests").rglob("test_*.py")
        if 'environ.get("LONGWATCH_TEST_PROOF")' in file.read_text()
    } - {str(Path(__file__).relative_to(ROOT))}
    assert found == known


def test_a_row_goes_to_the_end_of_its_own_table() -> None:
    text = REPORT.read_text()
    for table in HEADS:
        once = append_rows(["| one |"], text, table)
        twice = append_rows(["| two |"], once, table)
        assert f"\n| one |\n| two |\n<!-- /{table} -->" in twice
        kept = [line for line in twice.splitlines() if line not in {"| one |", "| two |"}]
        assert kept == append_rows([], text, table).splitlines(), "nothing else has changed"
        assert twice.count(HEADS[table]) == 1


@pytest.mark.parametrize(
    ("stop", "held"),
    [((0, 5.9, True), True), ((0, 6.1, True), False), ((70, 5.9, True), False),
     ((0, 5.9, False), False)],
)  # fmt: skip
def test_a_stop_is_as_promised_by_its_code_its_time_and_what_it_left(
    stop: tuple[int, float, bool], held: bool
) -> None:
    options = argparse.Namespace(database="sqlite", grace=6.0)
    row, all_held = describe_stops(options, SORTS[0], [(0, 1.0, True), stop])
    assert all_held is held
    assert f"| {1 + held} of 2 |" in row
