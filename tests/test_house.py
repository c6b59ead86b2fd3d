"""The house itself: rings, settings from the environment, the command line without them."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from django.core.exceptions import ImproperlyConfigured
from django.db import connection

from harness_site import env
from tests.conftest import ROOT


@pytest.mark.both_databases
@pytest.mark.django_db
def test_a_ring_has_the_database_that_its_name_says(settings: Any) -> None:
    with connection.cursor() as cursor:
        if settings.RING == "postgresql":
            cursor.execute("SHOW server_version_num")
            assert int(cursor.fetchone()[0]) >= 140000
        else:
            cursor.execute("PRAGMA journal_mode")
            assert cursor.fetchone()[0] == "wal"
            cursor.execute("PRAGMA synchronous")
            assert cursor.fetchone()[0] == 2


@pytest.mark.both_databases
def test_a_child_process_sees_the_tests_database(site_env: dict[str, str]) -> None:
    shown = run_manage(site_env, "showmigrations", "auth")
    assert "[X] 0001_initial" in shown.stdout


@pytest.mark.browser
def test_a_browser_runs_script_here(page: Any) -> None:
    page.set_content("<p>one</p>")
    assert page.evaluate("document.querySelector('p').textContent") == "one"


def run_manage(environment: dict[str, str], *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, ROOT / "manage.py", *arguments],
        env=environment,
        capture_output=True,
        text=True,
        timeout=60,
    )


def run_check(tmp_path: Path, **variables: str) -> subprocess.CompletedProcess[str]:
    clean = {k: v for k, v in os.environ.items() if not k.startswith(("LONGWATCH_", "DJANGO_"))}
    return run_manage(clean | {"LONGWATCH_VAR": str(tmp_path / "var")} | variables, "check")


@pytest.mark.parametrize(
    ("variables", "words"),
    [
        ({"LONGWATCH_WORKERS": "many"}, "LONGWATCH_WORKERS is 'many'"),
        ({"LONGWATCH_LEASE_SECONDS": "nan"}, "LONGWATCH_LEASE_SECONDS is 'nan'"),
        ({"LONGWATCH_LEASE_SECONDS": "20"}, "under three heartbeats"),
        ({"LONGWATCH_DEBUG": "maybe"}, "LONGWATCH_DEBUG is 'maybe'"),
        ({"LONGWATCH_URL": "longwatch.example"}, "LONGWATCH_URL is 'longwatch.example'"),
        ({"LONGWATCH_DATABASE_URL": "mysql://x/y"}, "it takes sqlite:///PATH"),
        ({"LONGWATCH_DATABASE_URL": "sqlite:///no/such/folder/x"}, "four slashes"),
        ({"LONGWATCH_DATABASE_URL": "sqlite://"}, "names no file"),
        ({"LONGWATCH_VAR": __file__}, "LONGWATCH_VAR"),
    ],
)
def test_a_wrong_setting_ends_every_command_with_one_line(
    tmp_path: Path, variables: dict[str, str], words: str
) -> None:
    done = run_check(tmp_path, **variables)
    assert done.returncode == 1
    assert words in done.stderr
    assert len(done.stderr.splitlines()) == 1


@pytest.mark.parametrize("start", [("manage.py", "check"), ("-c", "import harness_site.wsgi")])
def test_an_empty_name_of_settings_is_none(tmp_path: Path, start: tuple[str, ...]) -> None:
    around = {"LONGWATCH_VAR": str(tmp_path / "var"), "DJANGO_SETTINGS_MODULE": ""}
    done = subprocess.run(
        [sys.executable, *start], cwd=ROOT, env=os.environ | around, capture_output=True, timeout=60
    )
    assert done.returncode == 0, done.stderr


def test_a_database_address_that_cannot_be_read_does_not_show_its_password(tmp_path: Path) -> None:
    done = run_check(tmp_path, LONGWATCH_DATABASE_URL="postgresql://u:hunter2@h:port/db")
    assert done.returncode == 1
    assert "LONGWATCH_DATABASE_URL" in done.stderr
    assert "hunter2" not in done.stderr


def test_a_postgresql_address_gives_every_part_unquoted() -> None:
    found = env.parse_database("postgresql://a%40b:p%2Fw@[::1]:5433/l%20w?sslmode=require", ROOT)
    assert found["USER"] == "a@b"
    assert found["PASSWORD"] == "p/w"
    assert (found["HOST"], found["PORT"], found["NAME"]) == ("::1", "5433", "l w")
    assert found["OPTIONS"]["sslmode"] == "require"
    assert found["OPTIONS"]["keepalives"] == 1


def test_a_postgresql_socket_folder_is_given_as_host() -> None:
    found = env.parse_database("postgresql:///longwatch?host=/run/postgresql", ROOT)
    assert (found["HOST"], found["NAME"]) == ("/run/postgresql", "longwatch")


def test_the_secret_key_is_made_once_by_however_many_processes_start(tmp_path: Path) -> None:
    file = tmp_path / "var" / "secret_key"
    with ThreadPoolExecutor(16) as pool:
        keys = set(pool.map(env.read_or_make_secret, [file] * 64))
    assert len(keys) == 1
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert list(file.parent.iterdir()) == [file]


def test_a_damaged_secret_key_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "secret_key"
    file.write_text("short")
    with pytest.raises(ImproperlyConfigured, match="Delete it"):
        env.read_or_make_secret(file)


def test_what_the_tests_install_contains_what_the_product_installs() -> None:
    def read_pins(name: str) -> set[str]:
        lines = (ROOT / "requirements" / name).read_text().splitlines()
        return {line.split(" ")[0] for line in lines if "==" in line}

    assert read_pins("run.txt") < read_pins("dev.txt")


def test_a_python_that_only_pretends_to_be_there_is_passed_over(tmp_path: Path) -> None:
    """A version manager's shim exists for each version and fails for those not chosen."""
    (tmp_path / "requirements").mkdir()
    for name in ("setup", "dev.txt"):
        copy = tmp_path / "requirements" / name
        copy.write_bytes((ROOT / "requirements" / name).read_bytes())
        copy.chmod(0o755)
    (tmp_path / "requirements" / "make_venv.py").write_text("import sys; print(sys.executable)")
    tools = tmp_path / "bin"
    tools.mkdir()
    for minor in (12, 13, 14):
        (tools / f"python3.{minor}").write_text("#!/bin/sh\nexit 127\n")
        (tools / f"python3.{minor}").chmod(0o755)
    found = subprocess.run(
        ["/bin/sh", tmp_path / "requirements" / "setup"],
        env={"PATH": f"{tools}:/usr/bin:/bin", "HOME": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=60,
    )
    if found.returncode:
        assert found.stderr.startswith("No Python 3.12 or newer was found. Install one")
        assert len(found.stderr.splitlines()) == 1
    else:
        assert Path(found.stdout.strip()).exists()


def test_a_signal_to_make_reaches_the_product_and_make_waits_for_it(tmp_path: Path) -> None:
    product = tmp_path / "product"
    product.write_text(
        f"#!{sys.executable}\n"
        "import signal, sys\n"
        "signal.signal(signal.SIGTERM, lambda *_: (print('drained', flush=True), sys.exit(0)))\n"
        "print(*sys.argv[1:], flush=True)\n"
        "while True: signal.pause()\n"
    )
    product.chmod(0o755)
    make = subprocess.Popen(
        ["make", "up", "PORT=8123", f"PYTHON={product}"],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    with make:
        assert make.stdout is not None
        assert make.stdout.readline() == "manage.py up --port 8123\n"
        make.terminate()
        assert make.stdout.read() == "drained\n"
    assert make.returncode != 0
