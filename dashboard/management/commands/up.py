"""`manage.py up`: the whole product in the foreground, web and workers, stopped by one Ctrl-C."""

from __future__ import annotations

import errno
import os
import secrets
import socket
import sys
from pathlib import Path
from typing import Any

from django.conf import settings
from django.contrib.auth import get_user_model
from django.core.management import call_command
from django.core.management.base import CommandError, CommandParser

from dashboard.login import LINK_SECONDS, make_link
from ledger import client
from ledger.checks import check_workers
from ledger.cluster import start_companion, supervise
from ledger.errors import LedgerError
from ledger.management.terminal import LedgerCommand
from ledger.models import Task
from ledger.transitions.deleting import DEMO as DEMO_ACTOR
from ledger.transitions.deleting import KEY

HOST = "127.0.0.1"
DEMO: tuple[tuple[str, str, dict[str, Any]], ...] = (
    ("report", "A first report", {"subject": "long-running work", "sources": ["the README"]}),
    ("modernise", "Modernise simplejson", {"distribution": "simplejson", "pause": 1.0}),
)
"""Workflow, title, input. The pause between units lets people see them go by."""


class Command(LedgerCommand):
    """Migrate, first admin, demo, web and workers."""

    help = (
        "Run Longwatch in the foreground: migrate, print a one-time login link, start web and "
        "workers. Ctrl-C or SIGTERM drains both; a later second one gives leases back at once."
    )

    requires_system_checks = "__all__"

    def add_arguments(self, parser: CommandParser) -> None:
        """Port, workers, demo."""
        parser.add_argument("--port", type=int, default=int(os.environ.get("PORT") or 8000))
        parser.add_argument("--workers", type=int, default=None, help="LONGWATCH_WORKERS, or 2")
        parser.add_argument("--no-demo", action="store_true", help="leave an empty ledger empty")

    def handle(self, *args: Any, **options: Any) -> None:
        """Raises SystemExit with the code of the workers: 0 drained, 69 or 70 something died."""
        if options["workers"] is not None and options["workers"] < 1:
            raise CommandError("--workers takes a number from 1.")
        port = options["port"]
        _check_port(port)
        url = _choose_url(port)
        call_command("migrate", interactive=False, verbosity=0)
        for warning in check_workers():
            self.hint(str(warning))
        if not settings.DEBUG:
            call_command("collectstatic", interactive=False, verbosity=0)
        if not options["no_demo"]:
            self._submit_demo()
        admin = _find_admin()
        link = f"{url}{make_link(admin)}"
        text = (
            f"Longwatch is ready at {url}\n"
            f"Sign in as {admin.get_username()} (once, within {LINK_SECONDS // 60} minutes): {link}"
        )
        web = start_companion("the web server", _make_web_command(port), _make_web_env(port, text))
        sys.exit(supervise(workers=options["workers"], companions=[web]))

    def _submit_demo(self) -> None:
        """Two tasks to look at, in a ledger that has none. Their keys make it happen once."""
        if Task.objects.exists():
            return
        for workflow, title, data in DEMO:
            key = f"{KEY}{workflow}"
            try:
                client.submit(workflow, data, key, title=title, tags=["demo"], actor=DEMO_ACTOR)
            except LedgerError as error:
                self.hint(f"The demo lacks its task {workflow}: {error}")


def _check_port(port: int) -> None:
    """Raise CommandError, with the cure, when the web server could not listen there."""
    if not 1 <= port <= 65_535:
        raise CommandError(f"--port {port} is no port; give one from 1 to 65535.")
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((HOST, port))
            probe.listen()
        except OSError as error:
            why = "is in use" if error.errno == errno.EADDRINUSE else f"refused: {error.strerror}"
            raise CommandError(
                f"Port {port} {why}. Stop the other program, or take another port: "
                f"`make up PORT={port + 1 if port < 65_535 else 8001}`."
            ) from None


def _choose_url(port: int) -> str:
    """The site's address; unless LONGWATCH_URL says otherwise it follows --port."""
    if "LONGWATCH_URL" not in os.environ:
        settings.LONGWATCH_URL = f"http://localhost:{port}"
    return str(settings.LONGWATCH_URL).rstrip("/")


def _make_web_command(port: int) -> list[str]:
    config = Path(settings.BASE_DIR) / "gunicorn.conf.py"
    module, _, name = settings.WSGI_APPLICATION.rpartition(".")
    where = ["--bind", f"{HOST}:{port}", "--chdir", str(settings.BASE_DIR)]
    return [sys.executable, "-m", "gunicorn", "--config", str(config), *where, f"{module}:{name}"]


def _make_web_env(port: int, text: str) -> dict[str, str]:
    return os.environ | {"PORT": str(port), "LONGWATCH_READY_TEXT": text}


def _find_admin() -> Any:
    """The first active superuser, made when there is none; its password is nobody's."""
    users: Any = get_user_model()._default_manager
    found = users.filter(is_superuser=True, is_active=True).order_by("pk").first()
    if found is not None:
        return found
    name = "admin"
    if users.filter(**{users.model.USERNAME_FIELD: name}).exists():
        name = f"admin-{secrets.token_hex(3)}"
    return users.create_superuser(name, password=None)
