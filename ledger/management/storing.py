"""Files between a terminal and the store: put again after a failure, never half there."""

from __future__ import annotations

import os
import shutil
import sys
import time
from pathlib import Path
from typing import BinaryIO, Final

from ledger import artifacts, blobs
from ledger.errors import InvalidInput, StoreUnavailable
from ledger.events import Actor
from ledger.models import Artifact

WAITS: Final = (1.0, 4.0, 15.0)
"""Seconds between the tries to reach a store that is away."""


def put_file(path: Path, name: str, actor: Actor) -> Artifact:
    """Upload a file; tried again while the store is away. Bytes that came are not stored twice.

    The same file under the same name, put by the same account, is the upload that it was before.
    """
    for wait in (*WAITS, None):
        try:
            # Resolved: a link that the caller names is the caller's own business.
            with blobs.open_regular(path.resolve()) as file:
                before = _find_same(blobs.hash_file(file), name, actor)
            return before or artifacts.store_upload(path.resolve(), name, actor=str(actor))
        except (ValueError, FileNotFoundError, PermissionError) as error:
            raise InvalidInput("file", f"{path} can't be read: {error}.") from error
        except StoreUnavailable:
            if wait is None:
                raise
            time.sleep(wait)
    raise AssertionError


def _find_same(digest: str, name: str, actor: Actor) -> Artifact | None:
    rows = Artifact.objects.filter(task=None, name=name, blob=digest, created_by=str(actor)[:200])
    found = rows.select_related("blob").order_by("-created_at", "-id").first()
    return found if found is not None and is_good(found) else None


def is_good(artifact: Artifact) -> bool:
    """Whether its bytes are there, all of them."""
    try:
        artifacts.open_content(artifact).close()
    except blobs.CorruptArtifact:
        return False
    return True


def get_file(artifact: Artifact, target: Path | None) -> None:
    """Write its bytes, verified, to `target`, whole or not at all; without one to stdout.

    A device or a pipe is written to, and a link followed: none of them is replaced by a file.
    """
    with artifacts.open_content(artifact) as source:
        if target is None:
            shutil.copyfileobj(source, sys.stdout.buffer, blobs.CHUNK)
            sys.stdout.buffer.flush()
            return
        try:
            _write_out(source, target)
        except OSError as error:
            raise InvalidInput(
                "--output", f"{target} can't be written: {error.strerror}."
            ) from error


def _write_out(source: BinaryIO, target: Path) -> None:
    if target.exists() and not target.is_file():
        with target.open("wb") as file:
            shutil.copyfileobj(source, file, blobs.CHUNK)
        return
    target = target.resolve()
    part = target.with_name(f".{target.name[:200]}.{os.getpid()}.part")
    try:
        with part.open("xb") as file:
            shutil.copyfileobj(source, file, blobs.CHUNK)
            file.flush()
            os.fsync(file.fileno())
        os.replace(part, target)
    finally:
        part.unlink(missing_ok=True)
