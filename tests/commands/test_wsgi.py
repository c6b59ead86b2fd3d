"""The web side alone: it starts only where the system checks let it."""

from __future__ import annotations

import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path

import pytest

from ledger.management.terminal import explain_database_error
from tests.conftest import ROOT
from tests.pg import find_free_port

pytestmark = pytest.mark.timeout(120)
PATIENCE = 60.0


def start_web(env: dict[str, str], log: Path, **more: str) -> tuple[subprocess.Popen[bytes], str]:
    """`gunicorn harness_site.wsgi` on a free port, and its address."""
    port = find_free_port()
    with log.open("wb") as file:
        process = subprocess.Popen(
            [sys.executable, "-m", "gunicorn", "harness_site.wsgi"],
            cwd=ROOT, env=env | {"PORT": str(port)} | more, stdin=subprocess.DEVNULL,
            stdout=file, stderr=file,
        )  # fmt: skip
    return process, f"http://127.0.0.1:{port}/readyz"


def is_up(address: str) -> bool:
    """Whether something answers there."""
    try:
        with urllib.request.urlopen(address, timeout=20) as answer:
            return bool(answer.status == 200)
    except urllib.error.URLError:
        return False


def test_a_bare_gunicorn_is_refused_by_the_system_checks(
    site_env: dict[str, str], tmp_path: Path
) -> None:
    log = tmp_path / "web.log"
    process, _ = start_web(
        site_env, log, LONGWATCH_SECRET_KEY="secret", LONGWATCH_URL="https://longwatch.example"
    )
    try:
        assert process.wait(PATIENCE) != 0
    finally:
        process.kill()
        process.wait()
    text = log.read_text()
    assert "longwatch.E004" in text
    assert "Unset LONGWATCH_SECRET_KEY" in text


def test_a_bare_gunicorn_that_passes_them_serves(site_env: dict[str, str], tmp_path: Path) -> None:
    log = tmp_path / "web.log"
    process, address = start_web(site_env, log)
    try:
        deadline = time.monotonic() + PATIENCE
        while not is_up(address):
            assert process.poll() is None, log.read_text()
            assert time.monotonic() < deadline, log.read_text()
            time.sleep(0.05)
        assert "System check" not in log.read_text()
    finally:
        process.terminate()
        assert process.wait(PATIENCE) == 0


@pytest.mark.parametrize(
    ("text", "begins"),
    [
        ('table "longwatch_outbox" already exists', "The tables are of a version of Longwatch"),
        ("duplicate column name: reach", "The tables are of a version of Longwatch"),
        ("no such table: longwatch_task", "The database has no ledger yet"),
        ("connection refused", "The database does not answer"),
    ],
)
def test_what_the_database_says_is_told_with_its_cure(text: str, begins: str) -> None:
    told = explain_database_error(Exception(text))
    assert told.startswith(begins)
    assert "LONGWATCH_DATABASE_URL" in told or "manage.py migrate" in told
