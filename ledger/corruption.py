"""Stored bytes that are not what was saved: on record once, told once, until they are good again.

A store that is away says nothing of what is in it: StoreUnavailable passes, and marks nothing.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from typing import BinaryIO, Final

from django.db import DatabaseError, InterfaceError

from ledger import blobs, clock, outbox, sql
from ledger.blobs import CorruptArtifact
from ledger.models import Artifact, Blob, StepOutput, Task

ARTIFACT_CORRUPT: Final = "artifact_corrupt"
"""The kind of its alert."""

log = logging.getLogger(__name__)


def open_stored(digest: str, artifact: Artifact | None = None) -> BinaryIO:
    """`blobs.open_blob`, and what it finds is on record. `artifact` comes with its blob.

    Raises CorruptArtifact, which names the artifact.
    """
    try:
        file = blobs.open_blob(digest)
    except CorruptArtifact as error:
        note_corrupt(digest, error.why, artifact)
        if artifact is None:
            raise
        raise CorruptArtifact(digest, error.why, artifact.name) from None
    if artifact is not None and artifact.blob is not None and artifact.blob.corrupt_at:
        note_sound([digest])
    return file


def note_corrupt(digest: str, why: str, artifact: Artifact | None = None) -> None:
    """Put it on record, and into the outbox if it was not; an outage of the database is logged."""
    try:
        with sql.atomic():
            now = clock.read()
            found = Blob.objects.filter(digest=digest, corrupt_at__isnull=True)
            if not found.update(corrupt_at=now, corrupt_why=why[:200]):
                return
            named = Artifact.objects.filter(blob=digest).select_related("task")
            artifact = artifact or named.order_by("-created_at", "-id").first()
            data = {"note": f"The stored bytes of {digest} {why}.", "sha256": digest}
            task = artifact.task if artifact is not None else _find_owner(digest)
            if artifact is not None:
                data["note"] = f"{artifact.name}: its stored bytes {why}."
                data["artifact"] = str(artifact.pk)
            elif task is not None:
                data["note"] = (
                    f"The list of the files of task {task.pk}: its stored bytes ({digest}) {why}. "
                    "Until they are back from a backup, or the task is deleted, nothing is "
                    "collected."
                )
            outbox.post_alert(ARTIFACT_CORRUPT, now, data, task)
    except (DatabaseError, InterfaceError):
        log.exception("the stored bytes of %s %s; that is not on record", digest, why)


def _find_owner(digest: str) -> Task | None:
    """The task whose workspace that is the list of, as it is or was."""
    task = Task.objects.filter(workspace=digest).first()
    if task is None:
        unit = StepOutput.objects.filter(workspace=digest).select_related("task").first()
        task = unit.task if unit is not None else None
    return task


def note_sound(digests: Iterable[str]) -> None:
    """Take the mark off those that are good (again)."""
    marked = Blob.objects.filter(digest__in=list(digests), corrupt_at__isnull=False)
    marked.update(corrupt_at=None, corrupt_why="")


def is_marked(digest: str) -> bool:
    """Whether the bytes are known to be wrong, so that equal ones must be stored anew."""
    try:
        return Blob.objects.filter(digest=digest, corrupt_at__isnull=False).exists()
    except (DatabaseError, InterfaceError):
        return False
