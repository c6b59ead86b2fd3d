"""What a start is refused for, and what it is warned of; each message names its cure."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest
from django.core.checks import CheckMessage, Error, Warning
from django.db import connection

from ledger import checks
from ledger.management import diagnosis
from tests.conftest import ROOT

LOCAL = [("/", "ext4"), ("/proc", "proc"), ("/srv/data", "xfs")]
FILE = Path("/srv/data/ledger.sqlite3")


def ids(found: list[CheckMessage]) -> list[str]:
    """Their ids; none without a cure."""
    assert all(message.hint for message in found)
    return [str(message.id) for message in found]


# --- Where the SQLite file lies -------------------------------------------------------------------


@pytest.mark.case(35)
@pytest.mark.parametrize(
    "kind",
    ["nfs", "nfs4", "cifs", "smb3", "9p", "virtiofs", "fuse.sshfs", "fuse.s3fs", "ceph"],
)
def test_a_sqlite_file_on_a_network_file_system_is_refused(kind: str) -> None:
    (found,) = checks.check_mounts(FILE, [*LOCAL, ("/srv/data", kind)])
    assert isinstance(found, Error)
    assert found.id == "longwatch.E002"
    assert kind in found.msg
    assert "local disk" in str(found.hint)


@pytest.mark.case(35)
@pytest.mark.parametrize(
    "kind", ["ext4", "xfs", "btrfs", "zfs", "tmpfs", "overlay", "fuseblk", "fuse.fuse-overlayfs"]
)
def test_a_local_disk_is_fine(kind: str) -> None:
    assert checks.check_mounts(FILE, [("/", kind)]) == []


@pytest.mark.case(35)
def test_the_innermost_mount_counts_and_of_two_the_later_one() -> None:
    outer = [("/", "ext4"), ("/srv", "nfs4"), ("/srv/data", "ext4")]
    assert checks.find_file_system(FILE, outer) == "ext4"
    assert checks.find_file_system(FILE, [*outer, ("/srv/data", "9p")]) == "9p"
    assert checks.find_file_system(Path("/srv/database/x"), outer) == "nfs4", "no part of a name"
    assert checks.find_file_system(FILE, []) == ""
    assert checks.check_mounts(FILE, []) == [], "where nobody can tell nobody is refused"


@pytest.mark.case(35)
def test_a_link_is_followed_to_where_the_file_lies(tmp_path: Path) -> None:
    (tmp_path / "far").mkdir()
    (tmp_path / "near").symlink_to(tmp_path / "far")
    table = [("/", "ext4"), (str(tmp_path.resolve() / "far"), "cifs")]
    assert checks.find_file_system(tmp_path / "near" / "x.sqlite3", table) == "cifs"


@pytest.mark.case(35)
def test_this_machines_own_table_is_read() -> None:
    assert checks.check_disk() == []


# --- Strangers ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("debug", "url", "expected"),
    [
        (True, "https://longwatch.example", ["longwatch.E003"]),
        (True, "http://10.0.0.7:8000", ["longwatch.E003"]),
        (True, "http://localhost:8000", []),
        (True, "http://[::1]:8000", []),
        (True, "http://site.localhost:8000", []),
        (False, "https://longwatch.example", []),
    ],
)
def test_debug_with_a_public_host_is_refused(
    settings: Any, debug: bool, url: str, expected: list[str]
) -> None:
    settings.DEBUG, settings.LONGWATCH_URL = debug, url
    assert ids(checks.check_safety()) == expected


@pytest.mark.parametrize(
    ("key", "expected"),
    [
        ("django-insecure-" + "0123456789abcdefghij" * 2, ["longwatch.E004"]),
        ("short", ["longwatch.E004"]),
        ("x" * 64, ["longwatch.E004"]),
        ("0123456789abcdefghijklmnopqrstuvwxyz", []),
    ],
)
def test_a_secret_that_can_be_guessed_is_refused(
    settings: Any, key: str, expected: list[str]
) -> None:
    settings.SECRET_KEY = key
    assert ids(checks.check_safety()) == expected
    settings.DEBUG = True
    assert checks.check_safety() == [], "a developer's own machine"


# --- Warnings -------------------------------------------------------------------------------------


def test_an_untested_worker_library_is_warned_of(monkeypatch: pytest.MonkeyPatch) -> None:
    assert checks.check_library() == [], "what is pinned is tested"
    monkeypatch.setattr(metadata, "version", lambda name: "2.0.0")
    (found,) = checks.check_library()
    assert isinstance(found, Warning)
    assert "2.0.0" in found.msg
    assert ids([found]) == ["longwatch.W002"]


def test_a_pool_in_the_workers_is_warned_of(db: None, monkeypatch: pytest.MonkeyPatch) -> None:
    assert checks.check_workers() == []
    monkeypatch.setitem(connection.settings_dict["OPTIONS"], "pool", True)
    assert ids(checks.check_workers()) == ["longwatch.W003"]


@pytest.mark.parametrize(("skew", "expected"), [(1.9, []), (2.1, ["longwatch.W004"])])
def test_a_clock_that_is_off_is_warned_of_only(skew: float, expected: list[str]) -> None:
    found = checks.check_skew(skew)
    assert ids(found) == expected
    assert not any(isinstance(message, Error) for message in found)


@pytest.mark.both_databases
def test_clocks_are_compared_with_the_databases_own(
    db: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    from ledger import clock

    assert checks.read_skew() < 1
    monkeypatch.setattr(clock, "offset", -600.0)
    assert 598 < checks.read_skew() < 602


# --- Who runs them --------------------------------------------------------------------------------


def run(env: dict[str, str], *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "manage.py", *words],
        cwd=ROOT, env=env, capture_output=True, text=True, timeout=90, check=False,
    )  # fmt: skip


@pytest.mark.parametrize("command", ["qcluster", "up", "check"])
def test_an_error_refuses_the_start_and_names_the_cure(
    site_env: dict[str, str], command: str
) -> None:
    env = site_env | {"LONGWATCH_DEBUG": "1", "LONGWATCH_URL": "https://longwatch.example"}
    done = run(env, command)
    assert done.returncode == 1
    assert "(longwatch.E003)" in done.stderr
    assert "HINT: Unset LONGWATCH_DEBUG" in done.stderr
    assert "Traceback" not in done.stderr


def test_doctor_lists_them_with_their_cures(site_env: dict[str, str]) -> None:
    done = run(site_env | {"LONGWATCH_SECRET_KEY": "django-insecure-" + "abcdefgh" * 5}, "doctor")
    at = done.stdout.index("FAIL settings: SECRET_KEY")
    assert "(longwatch.E004)\n     Unset LONGWATCH_SECRET_KEY" in done.stdout[at:]


def test_doctor_says_that_the_settings_fit(db: None) -> None:
    assert diagnosis.Finding("settings", "fit") in diagnosis.diagnose()


def test_the_page_lists_every_check_there_is() -> None:
    there = re.findall(r'id="(longwatch\.[EW]\d+)"', Path(checks.__file__).read_text())
    page = (ROOT / "docs" / "operating.md").read_text()
    assert sorted(there) == sorted(re.findall(r"^\| `(longwatch\.[EW]\d+)`", page, re.MULTILINE))


def test_a_worker_starts_without_the_pages(tmp_path: Path) -> None:
    shown = (
        "import sys; from ledger.management.commands.qcluster import Command as Start; "
        "Start().check(tags=Start.requires_system_checks); print(*sys.modules)"
    )
    done = run(os.environ | {"LONGWATCH_VAR": str(tmp_path)}, "shell", "-v0", "-c", shown)
    loaded = set(done.stdout.split())
    assert {"ledger.cluster", "ledger.transitions", "dashboard"} <= loaded
    assert not loaded & {"harness_site.urls", "dashboard.views", "ledger.api.urls", "ledger.admin"}
