"""What `doctor` looks at, one function each: what it saw, and the cure of what is wrong."""

from __future__ import annotations

import dataclasses
import shutil
from collections.abc import Callable
from pathlib import Path

from django.core.checks import CheckMessage
from django.core.exceptions import ImproperlyConfigured
from django.core.files.storage import InvalidStorageError
from django.db import DatabaseError, InterfaceError, connection
from django.db.migrations.executor import MigrationExecutor

from ledger import blobs, checks, conf, corruption, queries, registry, sql
from ledger.errors import StoreUnavailable
from ledger.management.terminal import explain_database_error
from ledger.models import Blob

MOST_NAMED = 20
LEAST_FREE = 1 << 30
"""Bytes of disk below which an artifact may not fit."""


@dataclasses.dataclass(frozen=True, slots=True)
class Finding:
    """What one look showed; `cure` is empty when all is well."""

    subject: str
    seen: str
    cure: str = ""


def diagnose(*, deep: bool = False) -> list[Finding]:
    """Every look, in order; without a database only what needs none. `deep` reads all bytes."""
    found = [
        *_look_at_database(),
        *_look_at_project(),
        *_look_at_store(),
        *_look_at_workflows(),
    ]
    if not found[0].cure:
        looks = (*_NEEDS_TABLES, _look_at_bytes) if deep else _NEEDS_TABLES
        found += [finding for look in looks for finding in _try(look)]
    return found


def _try(look: Callable[[], list[Finding]]) -> list[Finding]:
    try:
        return look()
    except (DatabaseError, InterfaceError) as error:
        connection.close()
        return [Finding("database", "refuses a query", explain_database_error(error))]


def _look_at_database() -> list[Finding]:
    try:
        connection.ensure_connection()
        plan = MigrationExecutor(connection)
        missing = plan.migration_plan(plan.loader.graph.leaf_nodes())
    except (DatabaseError, InterfaceError) as error:
        return [Finding("database", "does not answer", explain_database_error(error))]
    place = connection.settings_dict
    name = f"{connection.display_name} {'.'.join(map(str, connection.get_database_version()))}"
    if missing:
        names = ", ".join(f"{migration.app_label}.{migration.name}" for migration, _ in missing[:3])
        return [Finding("database", f"lacks migrations: {names}", "Run `manage.py migrate`.")]
    return [Finding("database", f"{name}, {place['NAME']}")]


def _look_at_project() -> list[Finding]:
    """The system checks, which the workers' start goes by too."""
    found = [_show(message) for check in checks.CHECKS for message in check()]
    return found or [Finding("settings", "fit")]


def _show(message: CheckMessage) -> Finding:
    return Finding("settings", f"{message.msg} ({message.id})", str(message.hint))


def _look_at_store() -> list[Finding]:
    """By a write and a read; of a folder also the room that is left."""
    try:
        store = blobs.get_storage()
        store.probe()
        free = shutil.disk_usage(store.place).free if Path(store.place).is_dir() else None
    except (ImproperlyConfigured, InvalidStorageError) as error:
        return [Finding("artifacts", "are not configured", str(error))]
    except StoreUnavailable as error:
        return [Finding("artifacts", f"{error.place} {error.what}", error.cure)]
    if free is None:
        return [Finding("artifacts", store.place)]
    seen = f"{store.place}, {free / (1 << 30):.1f} GiB free"
    return [Finding("artifacts", seen, "Free some disk." if free < LEAST_FREE else "")]


def _look_at_bytes() -> list[Finding]:
    """Whether each blob on record is in the store, and is what it was; what is not is marked."""
    found, count = [], 0
    try:
        for row in Blob.objects.order_by("digest").iterator():
            count += 1
            if why := blobs.find_fault(row.digest):
                if not Blob.objects.filter(digest=row.digest).exists():
                    continue  # collected meanwhile
                corruption.note_corrupt(row.digest, why)
                found.append(f"{row.digest} ({row.size} bytes) {why}")
            elif row.corrupt_at is not None:
                corruption.note_sound([row.digest])
    except StoreUnavailable as error:
        return [Finding("bytes", f"can't be read: {error.what}", error.cure)]
    if not found:
        return [Finding("bytes", f"all {count} are in the store, and are what was stored")]
    cure = "Restore the store from a backup, or run again what made them: the same bytes heal it."
    return [
        Finding("bytes", f"{len(found)} of {count} are not in the store as they were stored", cure),
        *(Finding("bytes", one, cure) for one in found[:MOST_NAMED]),
    ]


def _look_at_workflows() -> list[Finding]:
    registry.load_all()
    found = [
        Finding("workflows", f"{name} can't be imported: {why}", "Repair that module.")
        for name, why in registry.load_errors.items()
    ]
    names = ", ".join(f"{wf.name} {wf.version}" for wf in registry.all_workflows())
    cure = "" if names else "Write one with `manage.py new_workflow NAME`."
    return [*found, Finding("workflows", names or "none is known", cure)]


def _look_at_clock() -> list[Finding]:
    skew = checks.read_skew()
    if found := checks.check_skew(skew):
        return [Finding("clock", f"is {skew:.0f} s away from the database's", str(found[0].hint))]
    return [Finding("clock", "agrees with the database's")]


def _look_at_workers() -> list[Finding]:
    fleet = queries.load_fleet()
    if not fleet.live:
        cure = "Run `manage.py up`, or `manage.py qcluster` beside the web service."
        return [Finding("workers", "none beats", cure)]
    found = [Finding("workers", f"{fleet.live} beat")]
    for lane, workflow, version in sql.list_groups()[: queries.MAX_LIMIT]:
        if why := fleet.find_obstacle(workflow, version):
            seen = f"tasks of {workflow} {version} wait in lane {lane}: {why}"
            cure = "Start or undrain a worker that has this version, or cancel the tasks."
            found.append(Finding("workers", seen, cure))
    return found


def _look_at_tasks() -> list[Finding]:
    counts = queries.count_by_status()
    seen = ", ".join(f"{count} {status}" for status, count in counts.items() if count) or "none"
    found = [Finding("tasks", seen)]
    for task in queries.list_stalled(5):
        cure = f"Look at it: `manage.py watch {task['id']}`; retry takes it from its worker."
        since = f"{task['last_progress_at']:%Y-%m-%d %H:%M:%S}"
        found.append(Finding("tasks", f"{task['id']} made no progress since {since}", cure))
    return found


def _look_at_bounds() -> list[Finding]:
    now = conf.load()
    lease = f"lease {now.lease_seconds:g} s, heartbeat {now.heartbeat_seconds:g} s"
    return [Finding("bounds", f"{lease}, {now.workers} workers")]


_NEEDS_TABLES = (_look_at_bounds, _look_at_clock, _look_at_workers, _look_at_tasks)
