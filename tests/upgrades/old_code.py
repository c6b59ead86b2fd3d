"""The code of an earlier release, as it was tagged: what runs beside today's in a deploy.

Kept as a file, since a clone need not have the tag. It was made by

    git archive v0.1 ledger harness_site dashboard templates static manage.py pyproject.toml \
        gunicorn.conf.py | xz -9e > tests/upgrades/v0_1/code.tar.xz

of commit 04d93b4, and runs in today's environment of packages.
"""

from __future__ import annotations

import hashlib
import tarfile
from pathlib import Path

V0_1 = Path(__file__).parent / "v0_1"
SHA256 = "f8b977d473014e06f349f88db35997562b69c16b87cf78fe5b5b1102172c332f"


def unpack_code(folder: Path) -> Path:
    """The folder, with the code of v0.1 in it."""
    archive = V0_1 / "code.tar.xz"
    assert hashlib.sha256(archive.read_bytes()).hexdigest() == SHA256
    with tarfile.open(archive) as packed:
        packed.extractall(folder, filter="data")
    return folder


def list_later_migrations() -> list[str]:
    """The ledger's migrations that v0.1 lacks, in order."""
    today = Path(__file__).parents[2] / "ledger" / "migrations"
    known = {file.stem for file in (V0_1 / "migrations").glob("0*.py")}
    return sorted({file.stem for file in today.glob("0*.py")} - known)
