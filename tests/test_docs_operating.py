"""docs/operating.md and deploy/: every command, variable and unit is what the product has."""

from __future__ import annotations

import configparser
import dataclasses
import os
import re
import runpy
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from django.core.management import get_commands
from django.db import connection
from django.test import Client
from django.urls import reverse

from ledger.access import ROLES
from ledger.api import longpoll
from ledger.conf import Tunables
from tests.conftest import ROOT
from tests.dashboard.conftest import make_user
from tests.pg import find_binaries
from tests.places import make_place

DEPLOY = ROOT / "deploy"
PAGE = (ROOT / "docs" / "operating.md").read_text()
EMBEDDING = (ROOT / "docs" / "embedding.md").read_text()
HOME = "/srv/longwatch"
UNITS = sorted(DEPLOY.glob("*.service"))


def read_unit(name: str) -> configparser.SectionProxy:
    """The [Service] part of a unit."""
    parser = configparser.ConfigParser(interpolation=None)
    parser.optionxform = str  # type: ignore[assignment]  # systemd's names have capitals
    parser.read(DEPLOY / f"{name}.service")
    return parser["Service"]


@pytest.mark.parametrize("unit", UNITS, ids=lambda path: path.name)
def test_systemd_takes_the_unit(unit: Path, tmp_path: Path) -> None:
    service = read_unit(unit.stem)
    assert service["KillMode"] == "mixed"
    assert service["Restart"] == "always"
    assert service["WorkingDirectory"] == HOME
    program, *arguments = service["ExecStart"].replace(HOME, str(ROOT)).split()
    assert os.access(program, os.X_OK)
    assert all((ROOT / name).is_file() for name in arguments if name.endswith(".py"))
    if verifier := shutil.which("systemd-analyze"):
        copy = tmp_path / unit.name
        copy.write_text(unit.read_text().replace(HOME, str(ROOT)))
        done = subprocess.run(
            [verifier, "verify", copy], capture_output=True, text=True, timeout=60, check=False
        )
        assert (done.returncode, done.stderr) == (0, "")


def test_a_stop_waits_longer_than_a_drain() -> None:
    drain = Tunables().drain_seconds
    assert int(read_unit("longwatch-workers")["TimeoutStopSec"]) >= drain + 15
    web = runpy.run_path(str(ROOT / "gunicorn.conf.py"))
    assert int(read_unit("longwatch-web")["TimeoutStopSec"]) >= web["graceful_timeout"] + 10
    assert f"({drain:g})" in PAGE
    assert f"({Tunables().lease_seconds:g})" in PAGE
    assert "KillMode=mixed" in (DEPLOY / "longwatch-workers.service").read_text()


def test_the_proxy_lets_through_what_the_product_takes() -> None:
    text = (DEPLOY / "nginx.conf").read_text()
    assert text.count("{") == text.count("}")
    found = dict(re.findall(r"^\s+(\w+)\s+(.+?);", text, re.MULTILINE))
    assert found["client_max_body_size"] == f"{Tunables().upload_bytes >> 30}g"
    assert int(found["proxy_read_timeout"].rstrip("s")) > longpoll.MAX_WAIT
    bind = runpy.run_path(str(ROOT / "gunicorn.conf.py"))["bind"]
    assert found["proxy_pass"] == f"http://{bind.replace(os.environ.get('PORT') or '8000', '8000')}"


@pytest.mark.parametrize("page", [PAGE, EMBEDDING], ids=["operating", "embedding"])
def test_every_command_is_there(page: str) -> None:
    commands = set(re.findall(r"(?:deploy/manage|manage\.py) ([a-z_]+)", page))
    assert commands
    assert commands <= set(get_commands())


def test_every_variable_is_read() -> None:
    known = {f"LONGWATCH_{field.name.upper()}" for field in dataclasses.fields(Tunables)}
    source = (ROOT / "harness_site" / "settings.py").read_text()
    known |= set(re.findall(r"LONGWATCH_[A-Z_]+", source))
    for text in (PAGE, EMBEDDING, *(path.read_text() for path in DEPLOY.iterdir())):
        assert set(re.findall(r"LONGWATCH_[A-Z_]+", text)) - {"LONGWATCH_ENV"} <= known


def test_every_file_of_deploy_is_on_the_page() -> None:
    missing = [path.name for path in DEPLOY.iterdir() if f"deploy/{path.name}" not in PAGE]
    assert missing == []


@pytest.fixture
def service_env(tmp_path: Path) -> dict[str, str]:
    """The environment that deploy/manage reads its file in, and that file, as it is delivered."""
    text = (DEPLOY / "longwatch.env").read_text()
    file = tmp_path / "longwatch.env"
    file.write_text(text.replace("/var/lib/longwatch", str(tmp_path / "var")))
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("LONGWATCH_", "DJANGO_"))}
    return kept | {"LONGWATCH_ENV": str(file)}


def test_the_delivered_environment_passes_the_deployment_check(
    service_env: dict[str, str],
) -> None:
    done = subprocess.run(
        [DEPLOY / "manage", "check", "--deploy", "--fail-level", "WARNING"],
        env=service_env, capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr


def read_block(title: str) -> str:
    """The shell block that begins with this comment."""
    found = re.search(rf"^```sh\n# {title}\n(.*?)^```", PAGE, re.DOTALL | re.MULTILINE)
    assert found
    return found[1]


STORE = """
from ledger import artifacts, client
import io
row = artifacts.store_upload(io.BytesIO(b"kept"), "kept.txt", "text/plain", "cli:test")
print(client.submit("report", {"subject": "kept"}), row.pk)
"""
LOOK = """
from ledger import artifacts, client
from ledger.models import Artifact
task, row = {ids!r}.split()
row = Artifact.objects.select_related("blob").get(pk=row)
print(client.get(task)["input"]["subject"], artifacts.open_content(row).read())
"""


@pytest.mark.both_databases
@pytest.mark.django_db
@pytest.mark.timeout(180)
def test_a_backup_is_restored(tmp_path: Path) -> None:
    kind = "PostgreSQL" if connection.vendor == "postgresql" else "SQLite"
    var, backup = tmp_path / "var", tmp_path / "backup"
    var.mkdir()
    backup.mkdir()
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("LONGWATCH_", "DJANGO_"))}
    binaries = find_binaries() or Path("/")
    with make_place(var) as place:
        env = kept | {"LONGWATCH_DATABASE_URL": place, "LONGWATCH_VAR": str(var),
                      "BACKUP": str(backup), "PATH": f"{binaries}:{kept['PATH']}"}  # fmt: skip

        def run(*command: str) -> str:
            done = subprocess.run(
                command, cwd=ROOT, env=env, capture_output=True, text=True, timeout=60, check=False
            )
            assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
            return done.stdout

        def manage(*arguments: str) -> str:
            return run(sys.executable, "manage.py", *arguments)

        manage("migrate", "-v0")
        ids = manage("shell", "-v0", "-c", STORE).strip()
        assert run("sh", "-euc", read_block(f"backup, {kind}")) == ""
        manage("flush", "--no-input", "-v0")
        shutil.rmtree(var / "artifacts")
        (var / "secret_key").unlink()
        run("sh", "-euc", read_block(f"restore, {kind}"))
        assert manage("shell", "-v0", "-c", LOOK.format(ids=ids)).strip() == "kept b'kept'"


def test_the_page_names_the_roles_that_there_are() -> None:
    before, _, _ = PAGE.partition("\n## Metrics\n")  # where other tables begin
    assert set(re.findall(r"^\| `([a-z]+)` \|", before, re.MULTILINE)) == set(ROLES)


@pytest.mark.django_db
def test_the_first_admin_finds_what_the_page_says() -> None:
    client = Client()
    client.force_login(make_user("superuser"))
    text = client.get(reverse("admin:index")).content.decode()
    assert "Users" in text
    assert "Audit entries" in text
