"""An environment for each peer, made once below var/ with the versions that are written here."""

from __future__ import annotations

import hashlib
import subprocess
import sys
from pathlib import Path
from typing import Final

from benchmarks.workers import ROOT

DRIVER: Final = "psycopg[binary,pool]==3.3.9"
PACKAGES: Final = {
    "absurd": ["absurd-sdk==0.5.1", "absurdctl==0.5.1", DRIVER],
    "dbos": ["dbos==3.4.0", "pysqlite3-binary==0.5.4.post2", DRIVER],
    "langgraph": ["langgraph==1.2.24", "langgraph-checkpoint-postgres==3.2.0", DRIVER],
}
"""By peer. DBOS needs a newer SQLite than some systems have."""
FOLDER: Final = ROOT / "var" / "peers"
INSTALL_SECONDS: Final = 300


class NotInstalled(Exception):
    """A peer is not to be had here; the text says why."""


def find_python(peer: str) -> Path:
    """The Python of the peer's environment, which is made when it is missing or has other
    versions. Raises NotInstalled."""
    digest = hashlib.sha256(repr((sys.version, PACKAGES[peer])).encode()).hexdigest()[:8]
    folder = FOLDER / f"{peer}-{digest}"
    python, done = folder / "bin" / "python", folder / "done"
    if done.exists():
        return python
    make = [sys.executable, "-m", "venv", "--clear", str(folder)]
    pip = ["-m", "pip", "install", "--quiet", "--disable-pip-version-check", *PACKAGES[peer]]
    try:
        for command in (make, [str(python), *pip]):
            subprocess.run(
                command, check=True, capture_output=True, text=True, timeout=INSTALL_SECONDS
            )
    except subprocess.CalledProcessError as error:
        lines = [line for line in error.stderr.splitlines() if line.startswith("ERROR")]
        raise NotInstalled((lines or [f"exit code {error.returncode}"])[-1][:200]) from None
    except (OSError, subprocess.TimeoutExpired) as error:
        raise NotInstalled(str(error)[:200]) from None
    done.touch()
    return python
