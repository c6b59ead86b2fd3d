"""docs/embedding.md, word for word, in a project that is not ours and has only the wheel."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import sysconfig
import time
import venv
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from django.db import connection

from tests.conftest import ROOT
from tests.places import make_place
from tests.test_architecture import list_tracked

HERE = Path(__file__).parent
PAGE = (ROOT / "docs" / "embedding.md").read_text()
BLOCKS = re.findall(r"^```python\n(.*?)^```", PAGE, re.DOTALL | re.MULTILINE)
MOST_LINES = 15
PATIENCE = 60.0

pytestmark = pytest.mark.timeout(240)


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel of what git knows, built by the pinned builder, from nowhere but here."""
    source = tmp_path_factory.mktemp("source")
    for name in list_tracked():
        if name.startswith(("ledger/", "dashboard/", "templates/", "static/")) or "/" not in name:
            target = source / name
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(ROOT / name, target)
    out = tmp_path_factory.mktemp("wheel")
    subprocess.run(
        [sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "--no-index",
         "--no-build-isolation", "--disable-pip-version-check", "-w", out, source],
        check=True, timeout=120,
    )  # fmt: skip
    return next(out.glob("longwatch-*.whl"))


@pytest.fixture(scope="module")
def python(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An environment of its own with the wheel in it, and the packages of ours beside it."""
    folder = tmp_path_factory.mktemp("env")
    venv.create(folder, with_pip=False, symlinks=True)
    ours = Path(sysconfig.get_path("purelib"))
    theirs = Path(sysconfig.get_path("purelib", vars={"base": str(folder)}))
    subprocess.run(
        [sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--no-index", "--no-compile",
         "--disable-pip-version-check", "--target", theirs, wheel],
        check=True, timeout=120,
    )  # fmt: skip
    (theirs / "beside.pth").write_text(f"{ours}\n")
    return folder / "bin" / "python"


def test_the_block_of_settings_is_short() -> None:
    lines = [line for line in BLOCKS[0].splitlines() if line.strip()]
    assert "INSTALLED_APPS" in BLOCKS[0]
    assert len(lines) <= MOST_LINES


def test_the_wheel_holds_every_file_of_the_apps_and_nothing_of_the_site(wheel: Path) -> None:
    names = set(zipfile.ZipFile(wheel).namelist())
    wanted = {name for name in list_tracked() if name.startswith(("ledger/", "dashboard/"))}
    places = {
        "templates/dashboard/": "dashboard/templates/dashboard/",
        "static/": "dashboard/static/",
    }
    for source, target in places.items():
        wanted |= {
            target + name.removeprefix(source) for name in list_tracked() if name.startswith(source)
        }
    assert {name for name in names if ".dist-info/" not in name} == wanted
    assert any(name.startswith("ledger/migrations/") for name in names)


@pytest.fixture
def place(tmp_path: Path) -> Iterator[str]:
    """A database of the project's own."""
    with make_place(tmp_path) as address:
        yield address


@pytest.fixture
def shop(python: Path, place: str, tmp_path: Path) -> Any:
    """The project with the page's blocks appended, and a way to run its programs."""
    folder = tmp_path / "shop"
    shutil.copytree(HERE / "project", folder, ignore=shutil.ignore_patterns("__pycache__"))
    for name, block in (("settings", BLOCKS[0]), ("urls", BLOCKS[1])):
        with (folder / "shop" / f"{name}.py").open("a") as file:
            file.write(f"\n{block}")
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("LONGWATCH_", "DJANGO_"))}
    return Shop(python, folder, kept | {"SHOP_DATABASE": place, "SHOP_POOL": "1"})


class Shop:
    """Runs the project's programs, in its folder, with its interpreter."""

    def __init__(self, python: Path, folder: Path, environment: dict[str, str]) -> None:
        self.python, self.folder, self.environment = python, folder, environment

    def run(self, *arguments: str) -> str:
        """One program to its end; its stdout."""
        ended = subprocess.run(
            [self.python, *arguments], cwd=self.folder, env=self.environment, text=True,
            capture_output=True, timeout=PATIENCE, check=False,
        )  # fmt: skip
        assert ended.returncode == 0, f"{arguments}\n{ended.stdout}\n{ended.stderr}"
        return ended.stdout

    def start(self, command: str, role: str, *arguments: str, **more: str) -> Any:
        """A cluster, in a process group of its own; its log is ROLE.log."""
        with (self.folder / f"{role}.log").open("wb") as log:
            return subprocess.Popen(
                [self.python, "manage.py", command, *arguments], cwd=self.folder,
                env=self.environment | {"SHOP_ROLE": role} | more, stdin=subprocess.DEVNULL,
                stdout=log, stderr=log, process_group=0,
            )  # fmt: skip

    def read_logs(self) -> str:
        """What the clusters said."""
        return "\n".join(path.read_text() for path in self.folder.glob("*.log"))


def end(process: Any) -> int:
    """SIGTERM to the main process; its exit code. Its group is gone afterwards in any case."""
    process.send_signal(signal.SIGTERM)
    try:
        return int(process.wait(PATIENCE))
    finally:
        try:
            os.killpg(process.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
        process.wait()


@pytest.mark.both_databases
def test_a_foreign_project_runs_tasks_beside_its_own_cluster(shop: Shop) -> None:
    started = time.monotonic()
    where = shop.run("-c", "import ledger, dashboard; print(ledger.__file__, dashboard.__file__)")
    assert str(ROOT) not in where
    shop.run("manage.py", "makemigrations", "shop")
    shop.run("manage.py", "migrate", "-v0")
    assert "No changes" in shop.run("manage.py", "makemigrations", "--check", "--dry-run")
    clusters = [
        shop.start("ledger_workers", "ledger", "--workers", "1"),
        shop.start("qcluster", "shop", SHOP_POOL=""),
    ]
    try:
        driven = shop.run("manage.py", "drive")
    except AssertionError as error:
        raise AssertionError(f"{error}\n{shop.read_logs()}") from None
    finally:
        codes = [end(process) for process in clusters]
    assert codes[0] == 0, shop.read_logs()
    assert json.loads(driven.splitlines()[-1])["pool"] is (connection.vendor == "postgresql")
    assert time.monotonic() - started < 2 * PATIENCE
