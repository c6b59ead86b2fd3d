"""Databases of their own for programs that a test starts: on the ring's server, or a file."""

from __future__ import annotations

import contextlib
import uuid
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import quote

import psycopg
from django.db import connection


@contextlib.contextmanager
def make_place(folder: Path) -> Iterator[str]:
    """The address of an empty database, `sqlite:…` or `postgresql:…`; it ends with the block."""
    if connection.vendor == "sqlite":
        yield f"sqlite:///{folder / 'longwatch.sqlite3'}"
        return
    at = connection.settings_dict
    server = f"postgresql://{quote(at['USER'])}@{at['HOST']}:{at['PORT']}"
    name = f"place_{uuid.uuid4().hex[:12]}"
    with psycopg.connect(f"{server}/postgres", autocommit=True) as link:
        link.execute(f"CREATE DATABASE {name}")
        try:
            yield f"{server}/{name}"
        finally:
            link.execute(f"DROP DATABASE {name} WITH (FORCE)")
