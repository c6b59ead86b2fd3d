"""What must be true before the ledger works in a project, each with its cure.

Registered with Django, so that `check`, `up` and the workers run them at their start and `doctor`
lists them: an error refuses the start, a warning is shown. `check_workers` asks the database and
is for the processes that start workers only. A lease under three heartbeats, and any other bound
that can't work, is refused by `ledger.conf` before that.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from importlib import metadata
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import psutil
from django.conf import settings
from django.core.checks import CheckMessage, Error, Warning
from django.core.exceptions import ImproperlyConfigured
from django.core.files.storage import InvalidStorageError
from django.db import DatabaseError, InterfaceError, connection

from ledger import blobs, clock, commands, keeping, registry

NETWORK = (
    "nfs", "cifs", "smb", "9p", "virtiofs", "fuse.", "ceph", "glusterfs", "lustre", "gpfs", "afs",
    "beegfs", "ocfs2", "gfs2",
)  # fmt: skip
"""File systems whose file may be open on another machine. SQLite's WAL is memory that all who open
the file share, so there it corrupts the file."""

LOCAL = ("fuse.fuse-overlayfs",)
"""The root of a container without root rights."""

LOOPBACK = ("localhost", "127.0.0.1", "::1")

TESTED = ("1.11.",)
"""Versions of the worker library that pass the kill matrix (tests/crash)."""

LARGEST_SKEW = 2.0
"""Seconds between this machine's clock and the database's from which on people are misled."""

type Mount = tuple[str, str]
"""(mount point, type of the file system)."""


def check_project(app_configs: Any = None, **options: Any) -> list[CheckMessage]:
    """Time zones, and the SQLite options without which two writers collide."""
    found: list[CheckMessage] = []
    if not settings.USE_TZ:
        found.append(
            Error(
                "USE_TZ is off, and every time in the ledger has a time zone.",
                hint="Set USE_TZ = True.",
                id="longwatch.E001",
            )
        )
    options = connection.settings_dict["OPTIONS"]
    if connection.vendor == "sqlite" and options.get("transaction_mode") != "IMMEDIATE":
        found.append(
            Warning(
                "SQLite transactions begin without the write lock, so web and workers will meet "
                "'database is locked'.",
                hint="Set OPTIONS as docs/embedding.md shows, or use PostgreSQL.",
                id="longwatch.W001",
            )
        )
    return found


def check_disk(app_configs: Any = None, **options: Any) -> list[CheckMessage]:
    """Where the SQLite file lies."""
    if connection.vendor != "sqlite":
        return []
    table = [(part.mountpoint, part.fstype) for part in psutil.disk_partitions(all=True)]
    return check_mounts(Path(connection.settings_dict["NAME"]), table)


def check_mounts(file: Path, table: Iterable[Mount]) -> list[CheckMessage]:
    """An error when `file` lies on what may be a network's, by this table of mounts."""
    kind = find_file_system(file, table)
    if not kind.startswith(NETWORK) or kind in LOCAL:
        return []
    return [
        Error(
            f"The SQLite file {file} lies on a network file system ({kind}), which corrupts it.",
            hint="Move it to a local disk (LONGWATCH_VAR), or use PostgreSQL "
            "(LONGWATCH_DATABASE_URL).",
            id="longwatch.E002",
        )
    ]


def find_file_system(path: Path, table: Iterable[Mount]) -> str:
    """The type of the file system that holds `path`; empty where the table doesn't tell."""
    place, best = path.resolve(), ("", "")
    for point, kind in table:
        # Of two on the same point the later one covers the other.
        if place.is_relative_to(point) and len(point) >= len(best[0]):
            best = (point, kind)
    return best[1]


def check_safety(app_configs: Any = None, **options: Any) -> list[CheckMessage]:
    """What must not meet strangers: the debug pages, a secret that they can guess."""
    found: list[CheckMessage] = []
    host = urlsplit(getattr(settings, "LONGWATCH_URL", "")).hostname or "localhost"
    if settings.DEBUG and host not in LOOPBACK and not host.endswith(".localhost"):
        found.append(
            Error(
                f"Debug pages would show settings and source to everybody who can reach {host}.",
                hint="Unset LONGWATCH_DEBUG, or set LONGWATCH_URL to http://localhost:PORT.",
                id="longwatch.E003",
            )
        )
    key = str(settings.SECRET_KEY)
    guessable = key.startswith("django-insecure-") or len(key) < 32 or len(set(key)) < 5
    if guessable and not settings.DEBUG:
        found.append(
            Error(
                "SECRET_KEY is a default or can be guessed; with it anybody makes a session.",
                hint="Unset LONGWATCH_SECRET_KEY: a key is made and kept in LONGWATCH_VAR. Or give "
                "it 50 random characters.",
                id="longwatch.E004",
            )
        )
    return found


def check_retention(app_configs: Any = None, **options: Any) -> list[CheckMessage]:
    """The rules of LONGWATCH_RETENTION can be read."""
    try:
        keeping.read_rules()
    except ImproperlyConfigured as error:
        hint = "See docs/operating.md, Retention."
        return [Error(str(error), hint=hint, id="longwatch.E007")]
    return []


def check_commands(app_configs: Any = None, **options: Any) -> list[CheckMessage]:
    """The commands of LONGWATCH_CHECKS: well formed, here, and there for every workflow."""
    try:
        known = commands.read_checks()
    except ImproperlyConfigured as error:
        hint = "See docs/operating.md, Commands of evaluators."
        return [Error(str(error), hint=hint, id="longwatch.E005")]
    found: list[CheckMessage] = []
    for workflow in registry.all_workflows():
        for name in workflow.list_commands():
            if name not in known:
                text = f"Workflow {workflow.name} evaluates by the command {name!r}, which is none."
                hint = f"Add {name} to LONGWATCH_CHECKS; until then those units fail."
                found.append(Warning(text, hint=hint, id="longwatch.W005"))
    for name, one in known.items():
        if one.find_program() is None:
            text = f"The program of the command {name!r}, {one.argv[0]}, is not here."
            hint = f"Install it where workers run, on {commands.find_path()}."
            found.append(Warning(text, hint=hint, id="longwatch.W006"))
    return found


def check_store(app_configs: Any = None, **options: Any) -> list[CheckMessage]:
    """Where artifacts go can be understood, and what it takes is installed. Asks nobody."""
    try:
        blobs.get_storage()
    except (ImproperlyConfigured, InvalidStorageError) as error:
        hint = "Mend LONGWATCH_ARTIFACTS; docs/operating.md has the forms of it."
        return [Error(str(error), hint=hint, id="longwatch.E006")]
    return []


def check_library(app_configs: Any = None, **options: Any) -> list[CheckMessage]:
    """The worker library's version is one that the kills were tried with."""
    version = metadata.version("django-q2")
    if version.startswith(TESTED):
        return []
    return [
        Warning(
            f"django-q2 {version} is not tested with this version of Longwatch.",
            hint=f"Install django-q2 {TESTED[-1]}*: `pip install -r requirements/run.txt`.",
            id="longwatch.W002",
        )
    ]


def check_workers() -> list[CheckMessage]:
    """What those who start workers should know; nothing of the database while it is away."""
    found: list[CheckMessage] = []
    if connection.settings_dict["OPTIONS"].get("pool"):
        found.append(
            Warning(
                "Workers leave out the connection pool that the settings ask for.",
                hint="Nothing is to be done: each holds three connections of its own. The pool "
                "serves the web side.",
                id="longwatch.W003",
            )
        )
    try:
        found += check_skew(read_skew())
    except (DatabaseError, InterfaceError):
        connection.close()  # workers wait for it
    return found


def check_skew(skew: float) -> list[CheckMessage]:
    """A warning only: leases and all that is stored go by the database's clock."""
    if skew <= LARGEST_SKEW:
        return []
    return [
        Warning(
            f"This machine's clock is {skew:.0f} s away from the database's.",
            hint="Set both by NTP. Leases go by the database's clock and are safe; logs mislead.",
            id="longwatch.W004",
        )
    ]


def read_skew() -> float:
    """Seconds between this machine's clock and the database's, less what the question took."""
    began = time.time()
    there = clock.read().timestamp()
    ended = time.time()
    return max(began - there, there - ended, 0.0)


CHECKS = (
    check_project, check_disk, check_safety, check_commands, check_retention, check_store,
    check_library,
)  # fmt: skip
"""What is registered with Django."""

TAG = "longwatch"
"""Of all of them: `manage.py check --tag longwatch`."""
