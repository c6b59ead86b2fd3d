"""What a project must have for the ledger to work in it, found by `manage.py check`."""

from __future__ import annotations

from typing import Any

from django.conf import settings
from django.core.checks import Error, Warning
from django.db import connection


def check_project(app_configs: Any = None, **options: Any) -> list[Any]:
    """Time zones, the groups' app, and the SQLite options without which two writers collide."""
    found: list[Any] = []
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
