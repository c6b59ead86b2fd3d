"""`manage.py` in a process of its own, and the whole product by `manage.py up`."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from tests.conftest import ROOT
from tests.pg import find_free_port

PATIENCE = 90.0

type Manage = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def manage(site_env: dict[str, str]) -> Manage:
    """Run one command to its end."""

    def run(*arguments: str, **more: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "manage.py", *arguments],
            cwd=ROOT,
            env=site_env | more,
            capture_output=True,
            text=True,
            timeout=PATIENCE,
            check=False,
        )

    return run


class Product:
    """A running `manage.py up` in a process group of its own."""

    def __init__(self, env: dict[str, str], log: Path, *arguments: str, root: Path = ROOT) -> None:
        self.port = find_free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self.log = log
        with log.open("wb") as file:
            self.process = subprocess.Popen(
                [sys.executable, "manage.py", "up", "--port", str(self.port), *arguments],
                cwd=root, env=env, stdin=subprocess.DEVNULL, stdout=file, stderr=file,
                process_group=0,
            )  # fmt: skip
        self.seen: dict[int, psutil.Process] = {}

    def wait_until_ready(self) -> str:
        """The login link, once it is printed."""
        self.wait_for(lambda: "Sign in as" in self.read_log(), "not ready")
        self.note_processes()
        found = re.search(r"http://\S+/login/link/\S+", self.read_log())
        assert found
        return found[0].replace("localhost", "127.0.0.1")

    def read_log(self) -> str:
        return self.log.read_text(errors="replace")

    def wait_for(self, condition: Callable[[], bool], otherwise: str) -> None:
        deadline = time.monotonic() + PATIENCE
        while not condition():
            assert self.process.poll() is None, f"it ended:\n{self.read_log()}"
            assert time.monotonic() < deadline, f"{otherwise}:\n{self.read_log()}"
            time.sleep(0.05)

    def fetch(self, path: str) -> tuple[int, str]:
        """Status and body."""
        try:
            with urllib.request.urlopen(self.url + path, timeout=20) as answer:
                return answer.status, answer.read().decode()
        except urllib.error.HTTPError as error:
            with error:
                return error.code, error.read().decode()

    def note_processes(self) -> None:
        for process in psutil.Process(self.process.pid).children(recursive=True):
            self.seen[process.pid] = process

    def stop(self, *, group: bool = False, number: int = signal.SIGTERM) -> int:
        """Signal the main process, or all of its group; its exit code."""
        self.note_processes()
        (os.killpg if group else os.kill)(self.process.pid, number)
        return self.process.wait(PATIENCE)

    def list_left_over(self) -> list[psutil.Process]:
        """What still runs of all that was seen, a moment after the end."""
        _, alive = psutil.wait_procs(list(self.seen.values()), timeout=10)
        return alive

    def close(self) -> None:
        if self.process.poll() is None:
            self.note_processes()
            self.process.kill()
            self.process.wait()
        for process in self.list_left_over():
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()


@pytest.fixture
def start(site_env: dict[str, str], tmp_path: Path) -> Iterator[Callable[..., Product]]:
    """Start products; whatever a test leaves running is ended."""
    products: list[Product] = []

    def run(*arguments: str, **more: str) -> Product:
        log = tmp_path / f"up-{len(products)}.log"
        products.append(Product(site_env | more, log, *arguments))
        return products[-1]

    yield run
    for product in products:
        product.close()
