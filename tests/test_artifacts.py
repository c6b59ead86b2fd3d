"""Artifacts: bytes first, then a fenced row; verified when read; values that spill into them."""

from __future__ import annotations

import io
import os
import socket
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from django.db import connection

from ledger import artifacts, blobs, canonical, uploads
from ledger.errors import (
    InvalidInput,
    LeaseLost,
    NotFound,
    PayloadTooLarge,
    StoreUnavailable,
    Unserialisable,
)
from ledger.events import Actor
from ledger.ids import make_id
from ledger.models import Artifact, Blob
from ledger.transitions.operators import retry_task
from ledger.unitlog import LOG_TYPE
from tests.held import claim, claim_new, make_context, make_workflow

pytestmark = [pytest.mark.both_databases, pytest.mark.django_db]
HELLO = "2cf24dba5fb0a30e26e83b2ac5b9e29e1b161e5c1fa7425e73043362938b9824"


@pytest.fixture(autouse=True)
def store(settings: Any, tmp_path: Path) -> Path:
    settings.LONGWATCH_ARTIFACTS = str(tmp_path / "artifacts")
    return tmp_path / "artifacts"


def list_files(store: Path) -> list[str]:
    return sorted(str(path.relative_to(store)) for path in store.rglob("*") if path.is_file())


def read_all(artifact: Artifact) -> bytes:
    with artifacts.open_content(artifact) as file:
        return file.read()


def test_every_kind_of_source_is_stored_once_under_its_digest(store: Path, tmp_path: Path) -> None:
    held = claim_new(make_workflow())
    (tmp_path / "file").write_bytes(b"hello")
    sources = [b"hello", "hello", tmp_path / "file", io.BytesIO(b"hello"), iter([b"hel", b"lo"])]
    saved = [artifacts.save_artifact(held, f"n{i}", s) for i, s in enumerate(sources)]
    assert {one.blob_id for one in saved} == {HELLO}
    assert {read_all(one) for one in saved} == {b"hello"}
    assert list_files(store) == [f"2c/{HELLO}"]
    blob = Blob.objects.get()
    assert (blob.digest, blob.size) == (HELLO, 5)


def test_the_row_says_who_made_it_where() -> None:
    held = claim_new(make_workflow())
    saved = artifacts.save_artifact(held, "report.md", "# hi")
    assert (saved.task_id, saved.step, saved.step_index, saved.turn) == (held.task_id, "one", 0, 0)
    assert (saved.media_type, saved.fence) == ("text/markdown", held.fence)
    assert saved.created_by == f"worker:{held.owner}"
    assert (
        artifacts.save_artifact(held, "x", b"", "no type\r\nX: y").media_type == artifacts.ANY_TYPE
    )


def test_a_worker_that_lost_its_task_adds_nothing() -> None:
    workflow = make_workflow()
    held = claim_new(workflow)
    retry_task(held.task_id, actor=Actor("user", "1"))
    with pytest.raises(LeaseLost):
        artifacts.save_artifact(held, "late.txt", b"late")
    assert not Artifact.objects.exists()


def test_the_same_unit_run_again_replaces_what_its_lost_attempt_left() -> None:
    workflow = make_workflow()
    held = claim_new(workflow)
    first = artifacts.save_artifact(held, "a.patch", b"one")
    retry_task(held.task_id, actor=Actor("user", "1"))
    held = claim(workflow)
    same = artifacts.save_artifact(held, "a.patch", b"one")
    assert (same.id, same.fence) == (first.id, held.fence)
    other = artifacts.save_artifact(held, "a.patch", b"two")
    assert other.id != first.id, "an id keeps meaning the same bytes"
    assert [row.blob_id for row in Artifact.objects.all()] == [other.blob_id]


def test_an_artifact_is_found_by_id_or_by_its_newest_name() -> None:
    held = claim_new(make_workflow())
    old = artifacts.save_artifact(held, "a", b"old")
    held.turn = 1
    new = artifacts.save_artifact(held, "a", b"new")
    assert artifacts.find_artifact("a", held.task_id) == new
    assert artifacts.find_artifact(str(old.id), held.task_id) == old
    assert artifacts.find_artifact(old.id, held.task_id) == old
    for ref in ("b", str(make_id()), make_id()):
        with pytest.raises(NotFound, match="no artifact"):
            artifacts.find_artifact(ref, held.task_id)


def test_another_tasks_artifact_is_not_found_and_an_upload_is() -> None:
    workflow = make_workflow()
    theirs = artifacts.save_artifact(claim_new(workflow), "a", b"theirs")
    mine = claim_new(workflow)
    upload = artifacts.store_upload(io.BytesIO(b"up"), "in.tar.gz", actor="token:1")
    assert artifacts.find_artifact(str(upload.id), mine.task_id) == upload
    for ref in (str(theirs.id), "in.tar.gz"):
        with pytest.raises(NotFound):
            artifacts.find_artifact(ref, mine.task_id)


def test_an_upload_has_a_bound_and_leaves_nothing_when_refused(settings: Any, store: Path) -> None:
    settings.LONGWATCH_UPLOAD_BYTES = 10
    assert artifacts.store_upload(b"0123456789", "ok").blob.size == 10
    before = list_files(store)
    with pytest.raises(PayloadTooLarge, match="larger than 10 bytes"):
        artifacts.store_upload(iter([b"01234", b"56789", b"x"]), "big")
    assert list_files(store) == before
    assert Artifact.objects.count() == 1


@pytest.mark.parametrize(
    "name",
    [
        "../../x",
        "/etc/passwd",
        "a\\b",
        "CON",
        "x. ",
        "-rf",
        "😀",
        "é",
        "e\u0301",
        "line\nbreak",
        "x" * 255,
    ],
)
def test_a_name_is_a_label_and_never_a_path(store: Path, name: str) -> None:
    saved = artifacts.save_artifact(claim_new(make_workflow()), name, b"hello")
    assert artifacts.find_artifact(name, saved.task_id).name == name
    assert list_files(store) == [f"2c/{HELLO}"]


@pytest.mark.parametrize("name", ["", "x" * 256, "a\x00b", "\ud800", 5])
def test_a_name_that_no_database_holds_is_refused(store: Path, name: Any) -> None:
    with pytest.raises(InvalidInput) as caught:
        artifacts.save_artifact(claim_new(make_workflow()), name, b"x")
    assert caught.value.field == "name"
    assert not store.exists()


def test_only_regular_files_are_sources(store: Path, tmp_path: Path) -> None:
    (tmp_path / "real").write_text("secret")
    (tmp_path / "link").symlink_to(tmp_path / "real")
    os.mkfifo(tmp_path / "fifo")
    held = claim_new(make_workflow())
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(tmp_path / "socket"))
        for name in ("link", "fifo", "", "missing", "socket"):
            with pytest.raises((ValueError, OSError)):
                artifacts.save_artifact(held, "x", tmp_path / name)
    with pytest.raises(TypeError, match="binary mode"):
        artifacts.save_artifact(held, "x", io.StringIO("text"))  # type: ignore[arg-type]
    assert list_files(store) == []


def test_changed_or_missing_bytes_are_never_handed_out(store: Path) -> None:
    saved = artifacts.save_artifact(claim_new(make_workflow()), "x", b"hello")
    file = store / blobs.name_blob(HELLO)
    file.write_bytes(b"jello")
    with pytest.raises(blobs.CorruptArtifact, match="have changed"):
        artifacts.open_content(saved)
    file.unlink()
    with pytest.raises(blobs.CorruptArtifact, match="are missing"):
        artifacts.open_content(saved)
    file.write_bytes(b"hell")  # cut off: saving the same again mends it
    blobs.store_blobs([b"hello"])
    assert read_all(saved) == b"hello"


def test_a_large_file_is_believed_only_while_nobody_has_touched_it(
    store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(blobs, "LARGE", 1)
    saved = artifacts.save_artifact(claim_new(make_workflow()), "x", b"hello")
    file, hashed = store / blobs.name_blob(HELLO), list[str]()
    real = blobs.hash_file
    monkeypatch.setattr(blobs, "hash_file", lambda file: hashed.append("") or real(file))
    wait_for_tick(file, tmp_path)
    assert (read_all(saved), read_all(saved), len(hashed)) == (b"hello", b"hello", 1)
    wait_for_tick(file, tmp_path)
    facts = file.stat()
    file.write_bytes(b"jello")
    os.utime(file, ns=(facts.st_atime_ns, facts.st_mtime_ns))
    with pytest.raises(blobs.CorruptArtifact, match="have changed"):
        artifacts.open_content(saved)


def wait_for_tick(file: Path, folder: Path) -> None:
    """Until what is written now has another time than the file."""
    until = time.monotonic() + 10
    while (folder / "tick").write_bytes(b"") or (
        (folder / "tick").stat().st_ctime_ns <= file.stat().st_ctime_ns
    ):
        assert time.monotonic() < until


def test_a_store_that_fails_leaves_no_row_and_no_half_file(
    store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    held = claim_new(make_workflow())

    def refuse(handle: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", refuse)
    with pytest.raises(StoreUnavailable, match=f"{store} is full. Free some disk"):
        artifacts.save_artifact(held, "x", b"hello")
    monkeypatch.undo()
    assert list_files(store) == []
    assert not Artifact.objects.exists()


# --- Values ---------------------------------------------------------------------------------------


def test_the_largest_values_spill_until_the_rest_fits() -> None:
    held = claim_new(make_workflow())
    data = {"small": 1, "large": "x" * 5_000, "larger": ["y" * 9_000], "medium": "z" * 2_000}
    fitted = artifacts.fit_values(held, data, 4_000)
    assert set(fitted) == set(data)
    assert [key for key in data if fitted[key] == data[key]] == ["small", "medium"]
    assert len(canonical.dump_json(fitted)) <= 4_000
    assert artifacts.resolve(fitted, held.task_id) == data
    names = set(Artifact.objects.values_list("name", flat=True))
    assert names == {"$output.large.json", "$output.larger.json"}


def test_a_value_that_spills_replaces_no_artifact_of_the_step() -> None:
    workflow = make_workflow()
    held = claim_new(workflow)
    ctx = make_context(held, workflow)
    saved = ctx.save_artifact("output.draft.json", b"the step's own")
    data = {"draft": "x" * 5_000}
    fitted = artifacts.fit_values(held, data, 1_000)
    assert artifacts.resolve(fitted, held.task_id) == data
    with ctx.open_artifact(saved.pk) as file:
        assert file.read() == b"the step's own"


@pytest.mark.parametrize("kind", [artifacts.VALUE_TYPE, f"{LOG_TYPE}; charset=utf-8"])
def test_what_is_the_ledgers_own_is_made_by_nobody_else(kind: str) -> None:
    workflow = make_workflow()
    ctx = make_context(claim_new(workflow), workflow)
    for save in (
        lambda: ctx.save_artifact("$log-a-0-f1.txt", b"x"),
        lambda: ctx.save_artifact("a.txt", b"x", kind.upper()),
        lambda: artifacts.store_upload(b"x", "a.txt", kind),
        lambda: uploads.begin_upload("a.txt", 1, "cli:test", kind),
    ):
        with pytest.raises(InvalidInput, match="the ledger's own"):
            save()
    assert not Artifact.objects.exists()


def test_what_fits_stays_as_it_is() -> None:
    held = claim_new(make_workflow())
    assert artifacts.fit_values(held, {"a": "x" * 50}, 100) == {"a": "x" * 50}
    assert not Artifact.objects.exists()


def test_very_many_small_values_spill_as_one() -> None:
    held = claim_new(make_workflow())
    data = {f"key{n}": n for n in range(1_000)}
    fitted = artifacts.fit_values(held, data, 4_000, "progress")
    assert list(fitted) == ["$artifact"]
    assert artifacts.resolve(fitted, held.task_id) == data
    assert artifacts.open_whole(fitted, held.task_id) == data
    assert artifacts.open_whole({"a": 1}, held.task_id) == {"a": 1}


def test_a_key_of_any_length_and_kind_can_spill() -> None:
    held = claim_new(make_workflow())
    data = {"k" * 1_000: "x" * 5_000, "../é\n": "y" * 5_000, "a.patch": "z" * 5_000}
    fitted = artifacts.fit_values(held, data, 3_000)
    assert artifacts.resolve(fitted, held.task_id) == data
    assert not Artifact.objects.exclude(name__endswith=".json").exists()


def test_a_value_that_is_no_json_is_told_with_its_path() -> None:
    held = claim_new(make_workflow())
    with pytest.raises(Unserialisable, match=r"output\.a\[0\]: nan is not a JSON number"):
        artifacts.fit_values(held, {"a": [float("nan")] * 5_000}, 100)


def test_only_the_ledgers_own_references_are_opened() -> None:
    workflow = make_workflow()
    theirs = artifacts.spill(claim_new(workflow), "v", {"secret": 1})
    held = claim_new(workflow)
    own = {"$artifact": str(artifacts.save_artifact(held, "plain.json", b"{}").id)}
    invented = {"$artifact": str(make_id())}
    for reference in (theirs, own, invented, {"$artifact": "../x"}, {"$artifact": 5}):
        assert artifacts.resolve({"v": reference}, held.task_id) == {"v": reference}
        assert artifacts.resolve(reference, held.task_id) == reference


@pytest.mark.django_db(transaction=True)
def test_threads_of_a_unit_that_save_one_name_at_once_leave_one_artifact() -> None:
    held = claim_new(make_workflow())
    failed: list[Exception] = []

    def save(name: str, gate: threading.Barrier, content: str) -> None:
        try:
            gate.wait(20)
            artifacts.save_artifact(held, name, content)
        except Exception as error:
            failed.append(error)
        finally:
            connection.close()

    for n in range(8):
        gate = threading.Barrier(3)
        threads = [threading.Thread(target=save, args=(f"{n}", gate, text)) for text in "aab"]
        for one in threads:
            one.start()
        for one in threads:
            one.join(60)
    assert not failed
    assert sorted(Artifact.objects.values_list("name", flat=True)) == list("01234567")
