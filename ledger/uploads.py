"""Uploads in pieces, for files too large to begin again: each piece is kept as it comes.

A piece goes to the store like any other bytes, so any web process or machine takes the next one,
and a restart loses none. How far an upload is stands in its row; of two pieces for one place one
wins. The last one makes the artifact, of all pieces in order.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import Any, Final
from uuid import UUID

from django.db import IntegrityError
from django.db.models.expressions import Combinable

from ledger import artifacts, blobs, canonical, clock, conf, corruption, sql
from ledger.artifacts import ContentMismatch
from ledger.errors import InvalidInput, LedgerError, NotFound, PayloadTooLarge, Unserialisable
from ledger.models import Artifact, Upload, UploadPart

SLOTS: Final = 10
"""Uploads that somebody may have open at once."""

NAME: Final = re.compile(r"(?=([0-9a-f]{8}-[0-9a-f]{4}-7[0-9a-f]{3}-[0-9a-f]{4}-[0-9a-f]{12}))")
"""What an id looks like in a text, right behind other letters too."""

MAX_PARTS: Final = 10_000
DROP: Final = 500
"""Uploads that are removed in one go."""


class TooManyUploads(LedgerError):
    """All slots of the caller are taken."""

    code = "too_many_uploads"
    status = 429

    def __init__(self) -> None:
        super().__init__(
            f"You have {SLOTS} uploads open. Finish or delete one, or wait until one expires."
        )


class WrongOffset(LedgerError):
    """A piece that does not begin where the upload stands; `offset` is where."""

    code = "wrong_offset"
    status = 409

    def __init__(self, offset: int) -> None:
        super().__init__(f"The upload stands at {offset}; go on from there.")
        self.offset = offset


class Interrupted(Exception):
    """Raised by the source of a piece that ends too early: what has come is kept."""


def begin_upload(
    name: str, size: int, actor: str, media_type: str | None = None, sha256: str = ""
) -> Upload:
    """A new, empty upload. Raises InvalidInput, PayloadTooLarge, TooManyUploads."""
    artifacts.check_name(name)
    artifacts.refuse_own(media_type)
    bound = conf.load().upload_bytes
    if size < 0:
        raise InvalidInput("size", "takes a number of bytes from 0.")
    if size > bound:
        raise PayloadTooLarge("size", f"is {size} bytes, the bound is {bound}.")
    if sha256 and not (len(sha256) == 64 and set(sha256) <= set("0123456789abcdef")):
        raise InvalidInput("sha256", "takes 64 hexadecimal digits, in lower case.")
    drop_expired(actor)
    taken = set(Upload.objects.filter(created_by=actor).values_list("slot", flat=True))
    for slot in range(SLOTS):
        if slot in taken:
            continue
        upload = Upload(
            name=name,
            media_type=artifacts.choose_media_type(name, media_type),
            size=size,
            sha256=sha256,
            slot=slot,
            created_at=clock.now(),
            created_by=actor[:200],
            expires_at=_find_end(),
        )
        try:
            with sql.atomic():
                Upload.objects.bulk_create([upload])
            return find_upload(upload.pk, actor)
        except IntegrityError:
            continue  # somebody else's request took the slot
    raise TooManyUploads


def find_upload(upload_id: UUID, actor: str) -> Upload:
    """One of the caller's own, with its artifact if it is done. Raises NotFound."""
    rows = Upload.objects.select_related("artifact__blob").filter(created_by=actor)
    found = rows.filter(pk=upload_id, expires_at__gt=clock.now()).first()
    if found is None:
        raise NotFound("upload", upload_id)
    return found


def list_uploads(actor: str) -> list[Upload]:
    """The caller's own that stand, newest first, at most 50."""
    rows = Upload.objects.select_related("artifact__blob").filter(created_by=actor)
    return list(rows.filter(expires_at__gt=clock.now()).order_by("-created_at", "-id")[:50])


def append_part(
    upload: Upload, offset: int, source: Iterable[bytes], digest: str | None = None
) -> Upload:
    """Keep a piece that begins at `offset`; the last one finishes the upload.

    A `source` that raises Interrupted has come as far as it has. `digest` is what a whole piece
    must hash to. An empty one finishes an upload that has all its bytes. Raises WrongOffset,
    PayloadTooLarge, ContentMismatch, InvalidInput.
    """
    if offset != upload.offset:
        raise WrongOffset(upload.offset)
    interrupted: list[Interrupted] = []
    if upload.artifact is None and upload.offset < upload.size:
        room = upload.size - upload.offset
        stored = blobs.store_blobs([_read_part(source, interrupted)], room, corruption.is_marked)[0]
        if digest is not None and not interrupted and stored.digest != digest:
            raise ContentMismatch(stored.digest)
        if stored.size:
            _record_part(upload, stored)
        upload = find_upload(upload.pk, upload.created_by)
    if interrupted:
        raise interrupted[0]
    return _finish(upload) if upload.offset == upload.size else upload


def drop_upload(upload: Upload) -> None:
    """End an upload; its pieces go by and by, the artifact that it became stays."""
    Upload.objects.filter(pk=upload.pk).delete()


def drop_expired(actor: str = "") -> int:
    """Remove uploads whose time is over, of `actor` or of everybody; how many."""
    rows = Upload.objects.filter(expires_at__lte=clock.now())
    keys = rows.filter(created_by=actor) if actor else rows
    some = list(keys.order_by("expires_at").values_list("pk", flat=True)[:DROP])
    if some:
        Upload.objects.filter(pk__in=some).delete()
    return len(some)


def keep_named(value: Any) -> None:
    """Note that the uploads which a JSON value names are handed to a task now: they expire as if
    they had just come. Before that is stored which names them."""
    try:
        keys = sorted(set(NAME.findall(canonical.dump_json(value))))
    except Unserialisable:  # refused by who stores it
        return
    for some in (keys[n : n + DROP] for n in range(0, len(keys), DROP)):
        rows = Artifact.objects.filter(pk__in=some, task=None, expired_at=None)
        if rows.exists():
            with sql.atomic():
                # In one order, so that two callers never wait for each other.
                held = list(rows.order_by("pk").select_for_update().values_list("pk", flat=True))
                Artifact.objects.filter(pk__in=held).update(named_at=clock.now())


def _find_end() -> Combinable:
    return clock.now(conf.load().upload_hours * 3600)


def _read_part(source: Iterable[bytes], interrupted: list[Interrupted]) -> Iterator[bytes]:
    try:
        yield from source
    except Interrupted as error:
        interrupted.append(error)


def _record_part(upload: Upload, stored: blobs.Stored) -> None:
    with sql.atomic():
        artifacts.write_blob_rows([stored])
        here = Upload.objects.filter(pk=upload.pk, offset=upload.offset)
        if not here.update(offset=upload.offset + stored.size, expires_at=_find_end()):
            raise WrongOffset(find_upload(upload.pk, upload.created_by).offset)
        if upload.parts.count() >= MAX_PARTS:
            raise InvalidInput("content", f"comes in over {MAX_PARTS} pieces; send larger ones.")
        UploadPart.objects.bulk_create(
            [UploadPart(upload=upload, offset=upload.offset, blob_id=stored.digest)]
        )


def _finish(upload: Upload) -> Upload:
    """Make the artifact. Whoever comes second, after a lost answer say, finds it made."""
    if upload.artifact is not None:
        return upload
    parts = list(upload.parts.order_by("offset").values_list("blob_id", "blob__size"))
    if sum(size for _, size in parts) != upload.size:  # another call has just finished it
        return find_upload(upload.pk, upload.created_by)
    if len(parts) == 1:
        stored = blobs.Stored(*parts[0])
    else:
        source = _read_blobs(digest for digest, _ in parts)
        stored = blobs.store_blobs([source], upload.size, corruption.is_marked)[0]
    if upload.sha256 and stored.digest != upload.sha256:
        drop_upload(upload)
        raise ContentMismatch(stored.digest)
    with sql.atomic():
        row = Upload.objects.select_for_update().filter(pk=upload.pk).first()
        if row is not None and row.artifact_id is None:
            artifact = artifacts.record_upload(stored, row.name, row.media_type, row.created_by)
            Upload.objects.filter(pk=row.pk).update(
                artifact=artifact, slot=None, expires_at=_find_end()
            )
            UploadPart.objects.filter(upload=row).delete()
    return find_upload(upload.pk, upload.created_by)


def _read_blobs(digests: Iterable[str]) -> Iterator[bytes]:
    for digest in digests:
        with blobs.open_blob(digest) as file:
            yield from iter(lambda: file.read(blobs.CHUNK), b"")
