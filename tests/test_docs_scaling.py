"""docs/scaling.md: what it says was run can be run, and the rest is marked as a plan."""

from __future__ import annotations

import re
import subprocess
import sys

from ledger.conf import Tunables
from tests.conftest import ROOT

PAGE = (ROOT / "docs" / "scaling.md").read_text()
MEASURED, *REST = re.split(r"^## ", PAGE, flags=re.MULTILINE)[1:]


def test_what_is_measured_names_its_command_and_commit() -> None:
    assert MEASURED.startswith("Measured\n")
    command, _ = re.findall(r"`python -m (benchmarks\.\w+) [^`]+` at commit (\w{7,})", MEASURED)[0]
    done = subprocess.run(
        [sys.executable, "-m", command, "--help"], cwd=ROOT, capture_output=True, text=True,
        timeout=60, check=True,
    )  # fmt: skip
    assert done.stdout.startswith(f"usage: python -m {command}")
    for file in re.findall(r"`(tests/[\w/]+\.py)`", PAGE):
        assert (ROOT / file).exists(), file


def test_every_other_paragraph_of_words_is_a_plan() -> None:
    for part in REST:
        words = [text for text in part.split("\n\n")[1:] if not text.startswith("|")]
        unmarked = [text[:60] for text in words if text.strip() and not text.startswith("**Plan")]
        assert not unmarked, "what nobody has run says so"


def test_every_variable_there_is() -> None:
    names = {f"LONGWATCH_{name.upper()}" for name in Tunables.__dataclass_fields__}
    assert set(re.findall(r"LONGWATCH_\w+", PAGE)) <= names
