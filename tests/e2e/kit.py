"""What the browser tests share: the product as a process, and a page that tolerates no error."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from tests.conftest import ROOT
from tests.pg import find_free_port

LINK = re.compile(r"http://\S+/login/link/\S+")
START_SECONDS = 240.0
"""`make up` first sets up .venv, which may be new."""


class Product:
    """`make up` with nothing but a port and a folder for its data."""

    def __init__(self, var: Path) -> None:
        self.port = find_free_port()
        kept = {k: v for k, v in os.environ.items() if not k.startswith(("LONGWATCH_", "DJANGO_"))}
        kept.pop("PORT", None)
        self.lines: list[str] = []
        self.process = subprocess.Popen(
            ["make", "up", f"PORT={self.port}"],
            cwd=ROOT,
            env=kept | {"LONGWATCH_VAR": str(var)},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )
        self.reader = threading.Thread(target=self._read_output, daemon=True)
        self.reader.start()

    def _read_output(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.lines.append(line)

    @property
    def output(self) -> str:
        """Everything it wrote so far."""
        return "".join(self.lines)

    def find_link(self) -> str:
        """The login link, as soon as it is printed."""

        def look() -> str:
            assert self.process.poll() is None, self.output
            found = LINK.search(self.output)
            return found[0] if found else ""

        return wait_until(look, START_SECONDS)

    def stop(self, seconds: float = 90) -> bool:
        """SIGTERM to make, which passes it on; True when the product itself then ended well.

        Make's own exit code says only that it was signalled.
        """
        self.process.send_signal(signal.SIGTERM)
        self.process.wait(seconds)
        self.reader.join(seconds)
        return not self.reader.is_alive() and "stopped, exit code 0" in self.output

    def kill(self) -> None:
        """Leave nothing running, whatever happened."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait(30)
        self.reader.join(30)
        assert self.process.stdout is not None
        self.process.stdout.close()


def wait_until[T](look: Callable[[], T], seconds: float) -> T:
    """What `look` returns once it is true; AssertionError after `seconds`."""
    deadline = time.monotonic() + seconds
    while True:
        found = look()
        if found:
            return found
        assert time.monotonic() < deadline, f"nothing after {seconds:g} s"
        time.sleep(0.05)


@contextlib.contextmanager
def strict_page(browser: Any, **options: Any) -> Iterator[Any]:
    """A page in a context of its own; an error in its console, a refusal of the policy included,
    fails the test. A status that a test provokes is allowed by `page.expected`.
    """
    context = browser.new_context(**({"viewport": {"width": 1440, "height": 900}} | options))
    context.set_default_timeout(20_000)
    page = context.new_page()
    page.expected = set()
    wrong: list[str] = []

    def note(message: Any) -> None:
        allowed = any(str(status) in message.text for status in page.expected)
        if message.type in {"error", "warning"} and not allowed:
            wrong.append(message.text)

    page.on("console", note)
    page.on("pageerror", lambda error: wrong.append(str(error)))
    yield page
    context.close()
    assert wrong == [], wrong
