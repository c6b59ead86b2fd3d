"""Writes what an upgrade test starts from: this version's migrations and a ledger made by it.

    python -m tests.upgrades.record tests/upgrades/v0_1

Run once when a version is tagged, never again for that version. The folder then holds a copy of
the migrations (for the reader) and one SQL dump per database, with tasks in every status that the
version's own code brought there.
"""

from __future__ import annotations

import os
import shutil
import sqlite3
import subprocess
import sys
import tempfile
from pathlib import Path

from tests.pg import Cluster, find_binaries

ROOT = Path(__file__).resolve().parents[2]


def fill_database(url: str, var: str) -> None:
    """Migrate and fill the database in a process of its own."""
    environment = {k: v for k, v in os.environ.items() if not k.startswith("LONGWATCH_")}
    environment |= {
        "LONGWATCH_DATABASE_URL": url,
        "LONGWATCH_VAR": var,
        "DJANGO_SETTINGS_MODULE": "harness_site.settings",
    }
    for command in (["manage.py", "migrate", "--verbosity", "0"], ["-m", "tests.upgrades.fill"]):
        subprocess.run([sys.executable, *command], cwd=ROOT, env=environment, check=True)


def record_version(folder: Path) -> None:
    """Write the folder anew."""
    shutil.rmtree(folder, ignore_errors=True)
    ignore = shutil.ignore_patterns("__pycache__")
    shutil.copytree(ROOT / "ledger" / "migrations", folder / "migrations", ignore=ignore)
    with tempfile.TemporaryDirectory() as var:
        file = Path(var) / "ledger.sqlite3"
        fill_database(f"sqlite:///{file}", var)
        with sqlite3.connect(file) as source:
            (folder / "sqlite.sql").write_text("\n".join(source.iterdump()) + "\n")
    binaries = find_binaries()
    assert binaries is not None, "the PostgreSQL server's programs are needed"
    with tempfile.TemporaryDirectory() as var, Cluster() as cluster:
        fill_database(cluster.url, var)
        dump = subprocess.run(
            [binaries / "pg_dump", "--no-owner", "--no-privileges", "--inserts", cluster.url],
            check=True,
            capture_output=True,
            text=True,
        ).stdout
        # psql's own commands and comments are of no use to a driver.
        lines = [line for line in dump.splitlines() if not line.startswith(("--", "\\"))]
        (folder / "postgresql.sql").write_text("\n".join(line for line in lines if line) + "\n")


if __name__ == "__main__":
    record_version(Path(sys.argv[1]).resolve())
