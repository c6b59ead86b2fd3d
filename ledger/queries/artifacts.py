"""What tasks produced and clients uploaded: names, sizes, digests, lineage. Never the bytes."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from typing import Any, Final, NamedTuple
from uuid import UUID

from django.db.models import Count, Window
from django.db.models.functions import Lag, RowNumber

from ledger.errors import NotFound
from ledger.models import Artifact
from ledger.queries.paging import DEFAULT_LIMIT, Page, page_newest
from ledger.queries.seen import see_artifacts
from ledger.unitlog import LOG_TYPE

OK, CORRUPT, EXPIRED = "ok", "corrupt", "expired"
STATES: Final = (OK, CORRUPT, EXPIRED)
"""Of an artifact's bytes: as saved (as far as is known), wrong or missing, dropped by retention."""


class Version(NamedTuple):
    """The place of an artifact among those of its name in its task."""

    number: int = 1
    latest: bool = True
    before: UUID | None = None


def find_artifact(artifact_id: UUID) -> Artifact:
    """The row with its blob. Raises NotFound."""
    row = see_artifacts().select_related("blob").filter(pk=artifact_id).first()
    if row is None:
        raise NotFound("artifact", artifact_id)
    return row


def list_artifacts(
    task_id: UUID, *, limit: int = DEFAULT_LIMIT, cursor: str = ""
) -> Page[dict[str, Any]]:
    """The artifacts of a task, newest first, but for the logs of its units."""
    rows = see_artifacts().select_related("blob").filter(task=task_id).exclude(media_type=LOG_TYPE)
    page = page_newest(rows, "created_at", limit, cursor)
    versions = number_versions(page.items)
    return page.convert(lambda row: show_artifact(row, versions[row.pk]))


@dataclasses.dataclass(frozen=True, slots=True)
class Products:
    """A task's artifacts by name, the newest name first, each with its versions, newest first."""

    groups: list[list[dict[str, Any]]]
    more: bool
    """There are older ones than these."""

    @property
    def count(self) -> int:
        """How many artifacts they are."""
        return sum(map(len, self.groups))

    @property
    def stored(self) -> int:
        """Bytes that they have in the store, those of equal content once."""
        rows = [row for group in self.groups for row in group if row["state"] != EXPIRED]
        return sum({row["sha256"]: row["size"] for row in rows}.values())


def list_products(task_id: UUID) -> Products:
    """What a task made, logs left out, at most MAX_PRODUCTS of it, in one query."""
    named: dict[str, Any] = {"partition_by": ["name"], "order_by": ["created_at", "id"]}
    rows = (
        see_artifacts()
        .filter(task=task_id)
        .exclude(media_type=LOG_TYPE)
        .select_related("blob")
        .annotate(number=Window(RowNumber(), **named), before=Window(Lag("id"), **named))
        .annotate(last=Window(Count("*"), partition_by=["name"]))
        .order_by("-created_at", "-id")[: MAX_PRODUCTS + 1]
    )
    found = list(rows)
    groups: dict[str, list[dict[str, Any]]] = {}
    for row in found[:MAX_PRODUCTS]:
        version = Version(row.number, row.number == row.last, row.before)
        groups.setdefault(row.name, []).append(show_artifact(row, version))
    return Products(list(groups.values()), len(found) > MAX_PRODUCTS)


def number_versions(rows: Iterable[Artifact]) -> dict[UUID, Version]:
    """The versions of `rows`, all of one task; in one query, none for uploads."""
    named = {row.name for row in rows if row.task_id}
    of = next((row.task_id for row in rows if row.task_id), None)
    found = {row.pk: Version() for row in rows}
    if of is None:
        return found
    kept = see_artifacts().filter(task=of, name__in=named).order_by("created_at", "id")
    ids: dict[str, list[UUID]] = {name: [] for name in named}
    for name, key in kept.values_list("name", "pk"):
        ids[name].append(key)
    for keys in ids.values():
        before = None
        for number, key in enumerate(keys, 1):
            if key in found:
                found[key] = Version(number, number == len(keys), before)
            before = key
    return found


def show_artifact(row: Artifact, version: Version | None = None) -> dict[str, Any]:
    """The Artifact JSON; `row` comes with its blob."""
    version = version or number_versions([row])[row.pk]
    blob = row.blob
    proof = row.proof or {}
    return {
        "id": str(row.pk),
        "task": str(row.task_id) if row.task_id else None,
        "name": row.name,
        "version": version.number,
        "latest": version.latest,
        "step": row.step,
        "turn": row.turn,
        "round": row.round,
        "fence": row.fence,
        "media_type": row.media_type,
        "size": blob.size if blob else proof["size"],
        "sha256": blob.digest if blob else proof["sha256"],
        "state": EXPIRED if blob is None else CORRUPT if blob.corrupt_at else OK,
        "state_why": blob.corrupt_why if blob else "",
        "supersedes": str(version.before) if version.before else None,
        "copied_from": str(row.copied_from) if row.copied_from else None,
        "made_from": row.made_from or [],
        "created_at": row.created_at,
        "expired_at": row.expired_at,
    }


def list_versions(artifact_id: UUID) -> list[dict[str, Any]]:
    """The artifact and all others of its name in its task, newest first. Raises NotFound."""
    row = find_artifact(artifact_id)
    rows = [row]
    if row.task_id:
        same = see_artifacts().filter(task=row.task_id, name=row.name).select_related("blob")
        rows = list(same.order_by("-created_at", "-id")[:MAX_VERSIONS])
    versions = number_versions(rows)
    return [show_artifact(one, versions[one.pk]) for one in rows]


def name_artifacts(ids: Iterable[str]) -> list[tuple[str, str]]:
    """(id, name) of those of `ids` that the caller sees, in their order."""
    wanted = list(ids)
    named = see_artifacts().filter(pk__in=wanted).values_list("pk", "name") if wanted else ()
    found = {str(key): name for key, name in named}
    return [(key, found[key]) for key in wanted if key in found]


MAX_VERSIONS: Final = 200
MAX_PRODUCTS: Final = 200
