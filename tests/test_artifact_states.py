"""Artifacts over time: versions, lineage, bytes that went bad and came back."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from ledger import artifacts, blobs, corruption, queries, registry, sql
from ledger.blobs import CorruptArtifact
from ledger.errors import NotFound, StoreUnavailable
from ledger.events import Actor
from ledger.models import Artifact, Blob, Outbox
from ledger.transitions.forks import fork_task
from tests.factories import make_unit
from tests.held import claim_new, make_context, make_workflow

pytestmark = [pytest.mark.both_databases, pytest.mark.django_db]


@pytest.fixture(autouse=True)
def store(settings: Any, tmp_path: Path) -> Path:
    settings.LONGWATCH_ARTIFACTS = str(tmp_path / "artifacts")
    settings.LONGWATCH_VAR = str(tmp_path / "var")  # no copy that another test made
    return tmp_path / "artifacts"


def save(held: Any, name: str = "report.md", content: bytes = b"hello") -> Artifact:
    return artifacts.save_artifact(held, name, content)


def read_again(artifact: Artifact) -> bytes:
    row = Artifact.objects.select_related("blob").get(pk=artifact.pk)
    with artifacts.open_content(row) as file:
        return file.read()


def spoil(store: Path, artifact: Artifact, content: bytes) -> Path:
    file = store / blobs.name_blob(str(artifact.blob_id))
    file.write_bytes(content)
    return file


def show(artifact: Artifact) -> dict[str, Any]:
    return queries.show_artifact(queries.find_artifact(artifact.pk))


def test_bytes_that_went_bad_are_on_record_and_told_once(store: Path) -> None:
    saved = save(claim_new(make_workflow(), lane="default"))
    file = spoil(store, saved, b"jello")
    for _ in range(2):
        with pytest.raises(CorruptArtifact, match=r"artifact 'report.md' .* have changed"):
            read_again(saved)
    assert (show(saved)["state"], show(saved)["state_why"]) == ("corrupt", "have changed")
    told = Outbox.objects.get(kind=corruption.ARTIFACT_CORRUPT)
    assert (told.task, told.data["artifact"]) == (saved.task_id, str(saved.pk))
    assert told.data["note"] == "report.md: its stored bytes have changed."
    file.write_bytes(b"hello")  # somebody brought the backup
    assert read_again(saved) == b"hello"
    assert (show(saved)["state"], show(saved)["state_why"]) == ("ok", "")
    file.unlink()
    with pytest.raises(CorruptArtifact, match="are missing"):
        read_again(saved)
    assert Outbox.objects.filter(kind=corruption.ARTIFACT_CORRUPT).count() == 2


def test_a_store_that_is_away_marks_nothing(store: Path) -> None:
    saved = save(claim_new(make_workflow()))
    store.rename(store.with_name("unplugged"))
    for mount_point in (False, True):
        if mount_point:
            store.mkdir()
        with pytest.raises(StoreUnavailable):
            read_again(saved)
        assert show(saved)["state"] == "ok"
    assert not Outbox.objects.exists()


@pytest.mark.parametrize("kind", ["folder", "alias"])
def test_the_same_bytes_stored_again_heal(store: Path, settings: Any, kind: str) -> None:
    if kind == "alias":  # any storage of Django's, of which only sizes are compared
        plain = {"BACKEND": "django.core.files.storage.FileSystemStorage"}
        settings.STORAGES = settings.STORAGES | {
            "longwatch": plain | {"OPTIONS": {"location": str(store), "allow_overwrite": True}}
        }
    held = claim_new(make_workflow())
    saved = save(held)
    spoil(store, saved, b"jello")
    with pytest.raises(CorruptArtifact):
        read_again(saved)
    upload = artifacts.store_upload(b"hello", "the same")
    assert upload.blob_id == saved.blob_id
    assert show(saved)["state"] == "ok"
    assert read_again(saved) == b"hello"


def test_wrong_bytes_that_nobody_read_are_replaced_too(store: Path) -> None:
    held = claim_new(make_workflow())
    spoil(store, save(held), b"jello")
    assert read_again(save(held, "again.md")) == b"hello"
    assert not Blob.objects.filter(corrupt_at__isnull=False).exists()


def test_one_name_saved_by_several_units_has_versions() -> None:
    workflow = make_workflow("one", "two")
    held = claim_new(workflow)
    made = [save(held, content=b"first")]
    held.turn = 1
    made.append(save(held, content=b"second"))
    save(held, "other.md")
    held.step_index, held.step_name, held.turn = 1, "two", 0
    made.append(save(held, content=b"third"))
    page = {one["id"]: one for one in queries.list_artifacts(held.task_id).items}
    rows = [page[str(one.pk)] for one in made]
    assert [(row["version"], row["latest"]) for row in rows] == [(1, False), (2, False), (3, True)]
    assert [row["supersedes"] for row in rows] == [None, str(made[0].pk), str(made[1].pk)]
    assert rows == [show(one) for one in made], "one by one as in the list"
    ctx = make_context(held, workflow)
    for which, content in (
        ({}, b"third"), ({"version": 1}, b"first"), ({"version": 2}, b"second"),
        ({"step": "one"}, b"second"), ({"step": "one", "turn": 0}, b"first"),
    ):  # fmt: skip
        with ctx.open_artifact("report.md", **which) as file:
            assert file.read() == content
    for wrong in ({"version": 4}, {"version": 0}, {"version": -1}, {"step": "three"}):
        with pytest.raises(NotFound):
            ctx.open_artifact("report.md", **wrong)


def test_what_a_unit_opened_is_on_record_with_what_it_made() -> None:
    workflow = make_workflow()
    held = claim_new(workflow)
    upload = artifacts.store_upload(b"rows", "rows.csv")
    ctx = make_context(held, workflow)
    before = ctx.save_artifact("before.md", b"nothing opened")
    ctx.open_artifact(str(upload.pk)).close()
    ctx.open_artifact("before.md").close()
    ctx.open_artifact("before.md").close()
    after = ctx.save_artifact("after.md", b"made of both")
    assert show(before)["made_from"] == []
    assert show(after)["made_from"] == [str(upload.pk), str(before.pk)]
    facts = ("step", "turn", "round", "fence")
    assert [show(after)[name] for name in facts] == ["one", 0, 0, held.fence]


def test_a_copy_of_a_task_says_what_its_artifacts_are_copies_of() -> None:
    workflow = make_workflow()
    held = claim_new(workflow)
    saved = save(held)
    sql.checkpoint_unit(held, make_unit(held, workflow), lease_seconds=60.0, groups=None)
    with registry.registered(workflow):
        copy, _ = fork_task(held.task_id, from_step="two", actor=Actor("cli", "test"))
    [row] = queries.list_artifacts(copy.pk).items
    assert (row["copied_from"], row["version"], row["sha256"]) == (
        str(saved.pk), 1, saved.blob_id
    )  # fmt: skip
