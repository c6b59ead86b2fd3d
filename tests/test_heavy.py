"""Large artifacts pass through a small process: 200 MB, in the long form 5 GB, to a bucket 1 GB:
the service of the tests takes some 40 MB a second."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import ROOT
from tests.s3 import KEYS, Service

pytestmark = [pytest.mark.django_db(transaction=True)]
PROOF = bool(os.environ.get("LONGWATCH_TEST_PROOF"))
SIZES = [("folder", 200_000_000), ("bucket", 200_000_000)]
SIZES += [("folder", 5_000_000_000), ("bucket", 1_000_000_000)] if PROOF else []
MEMORY = 200
"""MB that the process may have at any time, all that it has loaded included."""


@pytest.mark.timeout(3600)
@pytest.mark.parametrize(("kind", "size"), SIZES)
def test_a_large_artifact_passes_through_a_small_process(
    kind: str, size: int, site_env: dict[str, str], tmp_path: Path,
    record_property: pytest.RecordProperty,
) -> None:  # fmt: skip
    assert shutil.disk_usage(tmp_path).free > 4 * size, "the disk is too small for this"
    service = Service(tmp_path).start() if kind == "bucket" else None
    try:
        where = {"LONGWATCH_ARTIFACTS": service.locate()} if service else {}
        done = subprocess.run(
            [sys.executable, "-m", "tests.heavy", str(size)],
            cwd=ROOT, capture_output=True, text=True,
            env=site_env | KEYS | where | {
                "DJANGO_SETTINGS_MODULE": "harness_site.settings",
                "LONGWATCH_UPLOAD_BYTES": str(size),
                "LONGWATCH_UNIT_SECONDS": "1800",
            },
        )  # fmt: skip
    finally:
        if service:
            service.stop()
        for name in ("var", "artifacts"):
            shutil.rmtree(tmp_path / name, ignore_errors=True)
    assert done.returncode == 0, done.stderr[-4000:]
    told = json.loads(done.stdout)
    record_property(f"{kind}, {size} bytes", told)
    sys.stdout.write(f"{kind}, {size:,} bytes: {told}\n")
    assert told["peak"] < MEMORY
