"""Makes or renews .venv from requirements/dev.txt. Started by requirements/setup; standard library.

The copy `.venv/installed.txt` is written last: a setup that was cut off is done again. Two makes
at once take turns by a lock on this folder, which needs no file and ends with its process.
"""

import fcntl
import os
import shutil
import subprocess
import sys
import time
import venv
from pathlib import Path

HERE = Path(__file__).resolve().parent
WANTED = HERE / "dev.txt"
VENV = HERE.parent / ".venv"
STAMP = VENV / "installed.txt"
PYTHON = VENV / "bin" / "python"


def main() -> None:
    """Bring .venv to what dev.txt says, once, whoever asks first."""
    folder = os.open(HERE, os.O_RDONLY)
    fcntl.flock(folder, fcntl.LOCK_EX)
    if not is_current():
        started = time.monotonic()
        install()
        print(f"setup: .venv is ready after {time.monotonic() - started:.0f} s", file=sys.stderr)


def is_current() -> bool:
    """Whether the last complete installation was of exactly these requirements, and still runs."""
    return STAMP.exists() and STAMP.read_bytes() == WANTED.read_bytes() and runs("")


def runs(code: str) -> bool:
    """Whether the environment's own interpreter can run `code`."""
    try:
        return subprocess.run([PYTHON, "-c", code], stderr=subprocess.DEVNULL).returncode == 0
    except OSError:
        return False


def install() -> None:
    """Install every pinned package; an environment that can't be renewed is made anew."""
    wanted = WANTED.read_bytes()
    version = ".".join(map(str, sys.version_info[:3]))
    count = wanted.count(b"==")
    print(f"setup: Python {version}, {count} packages into .venv (a minute)", file=sys.stderr)
    STAMP.unlink(missing_ok=True)
    if not runs(f"import pip, sys; assert sys.version_info[:2] == {sys.version_info[:2]}"):
        shutil.rmtree(VENV, ignore_errors=True)
        venv.create(VENV, with_pip=True, symlinks=True)
    command = ["-m", "pip", "install", "-qq", "--require-hashes", "--requirement", WANTED]
    if subprocess.run([PYTHON, *command, "--disable-pip-version-check"]).returncode:
        sys.exit("setup: pip failed, see above. The first setup needs a network; then: make setup")
    draft = STAMP.with_suffix(".part")
    draft.write_bytes(wanted)
    draft.rename(STAMP)


if __name__ == "__main__":
    main()
