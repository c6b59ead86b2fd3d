"""A path that a model names stays in the folder, whatever another process does meanwhile."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import pytest
from pydantic_ai.exceptions import ToolFailed

from ledger.agents.kits import paths


@pytest.mark.timeout(60)
def test_no_path_leads_out_while_another_process_swaps_folders_for_links(tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "file").write_text("outside")
    root = tmp_path / "root"
    (root / "a").mkdir(parents=True)
    (root / "a" / "file").write_text("inside")
    (root / "link").symlink_to(outside)
    swap = (
        "import os,sys\nos.chdir(sys.argv[1])\nprint('on', flush=True)\n"
        "while True:\n"
        "  os.rename('a','b'); os.rename('link','a'); os.rename('a','link'); os.rename('b','a')\n"
    )
    swapper = subprocess.Popen([sys.executable, "-c", swap, root], stdout=subprocess.PIPE)
    seen: Counter[str] = Counter()
    try:
        assert swapper.stdout
        swapper.stdout.readline()
        ends = time.monotonic() + 30
        while time.monotonic() < ends and not (seen["inside"] > 100 and seen["refused"] > 100):
            try:
                with paths.open_parent(root, "a/file") as (folder, name):
                    seen[paths.read_content(folder, name, "a/file")[0].decode()] += 1
                    paths.replace_content(folder, name, b"inside", 0o644)
            except ToolFailed:
                seen["refused"] += 1
    finally:
        swapper.kill()
        swapper.wait()
        swapper.stdout.close()
    assert seen.keys() == {"inside", "refused"}, seen
    assert os.listdir(outside) == ["file"]
    assert (outside / "file").read_text() == "outside"
