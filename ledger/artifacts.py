"""Artifacts: what a task produced, by name, and uploads that wait to be an input.

Bytes go to the store first (`blobs`), then the row is written under the holder's fence, so a row
never names bytes that are not there and a worker that lost its task adds nothing to it. A unit
that runs again replaces the artifacts of its lost attempt. Values too large to stand in a row
are artifacts too, of the media type VALUE_TYPE, and stand as `{"$artifact": id}`.
"""

from __future__ import annotations

import dataclasses
import json
import mimetypes
import re
from typing import TYPE_CHECKING, Any, BinaryIO
from uuid import UUID

from ledger import auditing, blobs, canonical, clock, conf, corruption, queries, sql
from ledger.durability import require_durable
from ledger.errors import ArtifactExpired, InvalidInput, NotFound, Unserialisable
from ledger.ids import make_id
from ledger.models import Artifact, Blob

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from django.db.models import QuerySet

    from ledger.blobs import Source, Stored
    from ledger.sql import Claimed

MAX_NAME = 255
REFERENCE = "$artifact"
OWN = "$"
"""What names of the ledger's own artifacts begin with, so that they replace none of a step's."""

VALUE_TYPE = "application/vnd.longwatch.value+json"
ANY_TYPE = "application/octet-stream"
SMALL_VALUE = 1_024
"""Bytes below which a value is not worth an artifact of its own."""

MAX_MADE_FROM = 100
"""Opened artifacts that are kept with what a unit makes."""

_MEDIA_TYPE = re.compile(r"[\w.+-]+/[\w.+-]+(; ?[\w.+-]+=[\w.+-]+)*", re.ASCII)


def save_artifact(
    claimed: Claimed, name: str, source: Source, media_type: str | None = None
) -> Artifact:
    """Store `source` as an artifact of the running unit, durable when this returns.

    The name is a label: any text of 1 to 255 characters, shown as it is, never a path of ours.
    The same name again in this unit replaces its content. Raises InvalidInput for a bad name,
    LeaseLost, and what `blobs.store_blobs` raises.
    """
    return record_artifact(claimed, name, store_bytes(name, source), media_type)


def store_bytes(name: str, source: Source) -> Stored:
    """The first half of `save_artifact`: reads `source`, once, and asks no database."""
    require_durable("save_artifact()")
    check_name(name)
    return blobs.store_blobs([source], is_marked=corruption.is_marked)[0]


def record_artifact(
    claimed: Claimed,
    name: str,
    stored: Stored,
    media_type: str | None = None,
    made_from: list[str] | None = None,
) -> Artifact:
    """The second half, which may be repeated: the row that names the bytes. Raises LeaseLost.

    `made_from` are the ids of the artifacts that the unit has opened.
    """
    key = {
        "task_id": claimed.task_id,
        "step_index": claimed.step_index,
        "turn": claimed.turn,
        "round": claimed.round,
        "name": name,
    }
    facts = {
        "step": claimed.step_name,
        "blob_id": stored.digest,
        "media_type": choose_media_type(name, media_type),
        "fence": claimed.fence,
        "made_from": made_from or None,
        "expired_at": None,
        "proof": None,
        "created_at": clock.now(),
        "created_by": f"worker:{claimed.owner}"[:200],
    }
    with sql.hold_task(claimed.lease, "artifact"):
        write_blob_rows([stored])
        same = Artifact.objects.filter(**key).select_related("blob")
        if not _replace(same, facts):
            Artifact.objects.bulk_create([Artifact(**key, **facts)], ignore_conflicts=True)
        found = same.get()
        if found.blob_id != stored.digest:  # another thread of the unit came between
            _replace(same, facts)
            found = same.get()
        return found


def _replace(same: QuerySet[Artifact], facts: dict[str, Any]) -> bool:
    """Whether there was one. Other bytes are another artifact: an id keeps meaning the same content
    for ever."""
    equal = same.filter(blob_id=facts["blob_id"])
    return bool(equal.update(**facts) or same.update(id=make_id(), **facts))


class ContentMismatch(InvalidInput):
    """What came is not what its sender says it is."""

    code = "content_mismatch"

    def __init__(self, digest: str) -> None:
        super().__init__("content", f"hashes to {digest} (SHA-256), which is not what you said.")


def store_upload(
    stream: Source,
    name: str,
    media_type: str | None = None,
    actor: str = "system:",
    digest: str | None = None,
) -> Artifact:
    """Store an upload that no task owns yet; `digest` (SHA-256, hex) is what it must hash to.

    Raises InvalidInput, PayloadTooLarge, ContentMismatch.
    """
    check_name(name)
    refuse_own(media_type)
    bound = conf.load().upload_bytes
    stored = blobs.store_blobs([stream], bound, corruption.is_marked)[0]
    if digest is not None and stored.digest != digest:
        raise ContentMismatch(stored.digest)
    with sql.atomic():
        artifact = record_upload(stored, name, choose_media_type(name, media_type), actor)
    return Artifact.objects.select_related("blob").get(pk=artifact.pk)


def record_upload(stored: Stored, name: str, media_type: str, actor: str) -> Artifact:
    """The row of an upload whose bytes are in the store, on the audit log; in a transaction."""
    write_blob_rows([stored])
    artifact = Artifact(
        name=name,
        media_type=media_type,
        blob_id=stored.digest,
        created_at=clock.now(),
        created_by=actor[:200],
    )
    Artifact.objects.bulk_create([artifact])
    auditing.audit_upload(actor, artifact, stored.size)
    return artifact


def write_blob_rows(stored: Iterable[Stored]) -> None:
    """Record blobs whose bytes were just stored, which heals those that were marked corrupt.

    A row that is there gets the time of now, and is held: a collector then leaves it, or has taken
    it away before. In one order, so that two writers of the same never wait for each other.
    """
    rows = [
        Blob(digest=one.digest, size=one.size, created_at=clock.now())
        for one in sorted(set(stored))
    ]
    Blob.objects.bulk_create(
        rows,
        update_conflicts=True,
        unique_fields=["digest"],
        update_fields=["created_at"],
        batch_size=500,
    )
    corruption.note_sound(row.digest for row in rows)


def find_artifact(
    ref: UUID | str,
    task_id: UUID | None,
    *,
    version: int | None = None,
    step: str | None = None,
    turn: int | None = None,
) -> Artifact:
    """A task's artifact by id or (its newest) by name, or an upload by id.

    By id also those of the tasks that it was copied from, as its outputs may name them. Another
    task's artifacts are not found: a submitter may not read through a task's eyes. By name also
    its `version` (from 1), or the newest of a `step`, of a `turn`. Raises NotFound,
    ArtifactExpired.
    """
    rows = Artifact.objects.select_related("blob")
    found = None
    if isinstance(ref, UUID) or _is_id(ref):
        found = rows.filter(pk=ref).first()
        if found is not None and found.task_id not in {None, task_id}:
            known = task_id is not None and found.task_id in queries.list_lineage(task_id)
            found = found if known else None
    if found is None and task_id is not None and not isinstance(ref, UUID):
        wanted = {"step": step, "turn": turn}
        named = rows.filter(
            task_id=task_id, name=ref, **{k: v for k, v in wanted.items() if v is not None}
        )
        if version is None:
            found = named.order_by("-created_at", "-id").first()
        elif version > 0:
            found = next(iter(named.order_by("created_at", "id")[version - 1 : version]), None)
    if found is None:
        raise NotFound("artifact", ref)
    require_blob(found)
    return found


def require_blob(artifact: Artifact) -> Blob:
    """The blob of an artifact. Raises ArtifactExpired once retention has dropped its bytes."""
    if artifact.blob is None:
        assert artifact.expired_at is not None
        raise ArtifactExpired(artifact.name, artifact.expired_at)
    return artifact.blob


def open_content(artifact: Artifact) -> BinaryIO:
    """Its bytes as an open, seekable binary file, verified; `artifact` comes with its blob.

    Raises CorruptArtifact, which is on record from then on, and ArtifactExpired.
    """
    return corruption.open_stored(require_blob(artifact).digest, artifact)


def check_name(name: str) -> None:
    """Raise InvalidInput unless `name` can be an artifact's name."""
    if not isinstance(name, str) or not 1 <= len(name) <= MAX_NAME:
        raise InvalidInput("name", f"takes 1 to {MAX_NAME} characters.")
    try:
        canonical.check_json(name, "name")
    except Unserialisable as error:
        raise InvalidInput("name", f"{error.why}.") from error


def refuse_own(media_type: str | None, name: str = "") -> None:
    """Raise InvalidInput for what only the ledger's own artifacts, values and logs, are called."""
    if name.startswith(OWN):
        raise InvalidInput("name", f"begins with {OWN!r}, as only the ledger's own do.")
    if "/vnd.longwatch." in (media_type or "").lower():
        raise InvalidInput(
            "media_type", f"{media_type} is the ledger's own; give another, or none."
        )


def spill(claimed: Claimed, name: str, value: Any) -> dict[str, str]:
    """Store a JSON value as an artifact and return the reference that stands for it."""
    return _spill_text(claimed, name, canonical.dump_json(value, name))


def _spill_text(claimed: Claimed, name: str, text: str) -> dict[str, str]:
    return {REFERENCE: str(save_artifact(claimed, _name_value(name), text, VALUE_TYPE).id)}


def fit_values(
    claimed: Claimed, data: dict[str, Any], bound: int, name: str = "output"
) -> dict[str, Any]:
    """`data` with its largest values spilled, so that its JSON has at most `bound` bytes.

    Where very many small values make it large, the whole is spilled as one. Each is written as
    text once: that keeps the interpreter's lock, 10 ms/MB on a busy machine, from the heartbeat.
    Raises Unserialisable.
    """
    return _fit(lambda part, text: _spill_text(claimed, part, text), data, bound, name)


@dataclasses.dataclass(frozen=True, slots=True)
class Spilled:
    """A value whose bytes are in the store and whose row is still to be written."""

    id: UUID
    name: str
    stored: Stored


def fit_loose(data: dict[str, Any], bound: int, name: str) -> tuple[dict[str, Any], list[Spilled]]:
    """`fit_values` for a task that nobody holds; the caller records what was spilled."""
    spilled: list[Spilled] = []

    def spill_loose(part: str, text: str) -> dict[str, str]:
        label = _name_value(part)
        spilled.append(Spilled(make_id(), label, store_bytes(label, text)))
        return {REFERENCE: str(spilled[-1].id)}

    return _fit(spill_loose, data, bound, name), spilled


def _fit(
    spill_text: Callable[[str, str], dict[str, str]], data: dict[str, Any], bound: int, name: str
) -> dict[str, Any]:
    canonical.check_json(data, name)
    texts = {key: canonical.dump_json(part, f"{name}.{key}") for key, part in data.items()}
    keys = sum(len(canonical.dump_json(key)) for key in texts)
    total = keys + sum(map(len, texts.values())) + 2 * len(texts) + 1  # "{", ":" and ",", or "}"
    fitted = dict(data)
    for key in sorted(texts, key=lambda key: len(texts[key]), reverse=True):
        text = texts.pop(key)
        if total <= bound or len(text) <= SMALL_VALUE:
            break
        fitted[key] = spill_text(f"{name}.{key}", text)
        total -= len(text) - len(canonical.dump_json(fitted[key]))
    return fitted if total <= bound else dict(spill_text(name, canonical.dump_json(data, name)))


def resolve(value: Any, task_id: UUID) -> Any:
    """`value` with the references in it, or among a dict's own values, opened.

    Only values that the ledger spilled for this task are: a step may well return the id of an
    artifact under the same key, and what a model wrote there is nobody's instruction.
    """
    if not isinstance(value, dict):
        return value
    if _is_reference(value):
        opened = _open_value(value, task_id)
        return opened if opened is value else resolve(opened, task_id)
    return {
        key: _open_value(part, task_id) if _is_reference(part) else part
        for key, part in value.items()
    }


def open_whole(data: dict[str, Any], task_id: UUID) -> dict[str, Any]:
    """`data` itself, or what it stands for when it was spilled as one: before merging into it."""
    return _open_value(data, task_id) if _is_reference(data) else data


def _open_value(reference: dict[str, Any], task_id: UUID) -> Any:
    values = Artifact.objects.select_related("blob").filter(media_type=VALUE_TYPE)
    found = values.filter(pk=reference[REFERENCE]).first()
    if found is None or (
        found.task_id != task_id and found.task_id not in queries.list_lineage(task_id)
    ):
        return reference
    with open_content(found) as file:
        return json.load(file)


def read_reference(value: Any) -> str:
    """The id of the artifact that `value` stands for; empty when it is a value itself."""
    return str(value[REFERENCE]) if _is_reference(value) else ""


def _is_reference(value: Any) -> bool:
    if not isinstance(value, dict) or len(value) != 1 or REFERENCE not in value:
        return False
    return _is_id(value[REFERENCE])


def _is_id(text: object) -> bool:
    try:
        return str(UUID(text)) == text  # type: ignore[arg-type]
    except (AttributeError, TypeError, ValueError):
        return False


def _name_value(name: str) -> str:
    if len(name) > 200:
        name = f"{name[:150]}~{canonical.digest_json(name)[:16]}"
    return f"{OWN}{name}.json"


def choose_media_type(name: str, given: str | None) -> str:
    """The type that is given, if it is one, else what the name ends in, else ANY_TYPE."""
    guess = given or mimetypes.guess_type(name)[0] or ANY_TYPE
    return guess if len(guess) <= 100 and _MEDIA_TYPE.fullmatch(guess) else ANY_TYPE
