"""Collecting: what nothing names goes, from a folder and from a bucket, and no upload is met by
it, at whatever instant it comes."""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from django.db import DatabaseError, InterfaceError, connection

from ledger import artifacts, blobs, collecting, corruption, s3
from ledger.management import diagnosis
from ledger.models import Artifact, Blob, Outbox, StepOutput, Task
from ledger.stores import GOING
from ledger.workspaces import write_manifest
from tests.factories import make_workflow, submit
from tests.s3 import BUCKET, KEYS, Service
from tests.settings import RING

pytestmark = [pytest.mark.both_databases, pytest.mark.django_db(transaction=True)]
AGO = "2001-01-01T00:00:00Z"


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    one = Service(tmp_path_factory.mktemp("s3")).start()
    yield one
    one.stop()


@pytest.fixture(autouse=True)
def keys(monkeypatch: pytest.MonkeyPatch, settings: Any, tmp_path: Path) -> None:
    for name, value in KEYS.items():
        monkeypatch.setenv(name, value)
    settings.LONGWATCH_VAR = str(tmp_path / "var")


@pytest.fixture(params=["folder", "bucket"] if RING == "sqlite" else ["folder"])
def kind(request: pytest.FixtureRequest, settings: Any, tmp_path: Path) -> str:
    settings.LONGWATCH_ARTIFACTS = str(tmp_path / "artifacts")
    if request.param == "bucket":
        service = request.getfixturevalue("service")
        settings.LONGWATCH_ARTIFACTS = service.locate(tmp_path.name)
    return str(request.param)


def forget(saved: Artifact) -> None:
    """Nobody names it any more, and its row is of long ago."""
    Artifact.objects.filter(pk=saved.pk).delete()
    Blob.objects.filter(digest=saved.blob_id).update(created_at=AGO)


def age(store: Any, digest: str) -> None:
    """Its bytes are older than a second, by the store's clock."""
    if isinstance(store, blobs.DurableFiles):
        os.utime(store.path(blobs.name_blob(digest)), (1, 1))
        return
    until = time.monotonic() + 30
    while any((store.read_time() - key.modified).total_seconds() <= 2 for key in store.list_keys()):
        assert time.monotonic() < until
        time.sleep(0.05)


def read_stored(digest: str) -> bytes:
    """From the store itself."""
    store = blobs.get_storage()
    with contextlib.closing(store.fetch(digest)) as file:
        return bytes(file.read(1 << 20))


CALLS = ("mark_live", "delete_row", "remove", "clean")
"""What a collector calls on its way, before each of which an upload comes."""


@pytest.mark.parametrize("name", CALLS)
def test_an_upload_of_the_same_bytes_is_safe_at_every_instant(
    kind: str, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = blobs.get_storage()
    old = artifacts.store_upload(b"the same", "old")
    forget(old)
    age(store, old.blob_id)
    came: list[Artifact] = []

    def come() -> None:
        came.append(artifacts.store_upload(b"the same", "new"))

    meet(kind, name, come, monkeypatch)
    collecting.collect_files(1)
    monkeypatch.undo()
    for name, value in KEYS.items():
        monkeypatch.setenv(name, value)
    assert came, "the collector did not come by"
    assert read_stored(came[0].blob_id) == b"the same"
    assert Blob.objects.filter(digest=came[0].blob_id).exists()
    collecting.collect_files(1)
    assert read_stored(came[0].blob_id) == b"the same"


def meet(kind: str, name: str, come: Callable[[], None], patch: pytest.MonkeyPatch) -> None:
    """Have `come` called before a call of the collector's."""
    owner: Any = collecting
    if name == "remove":
        owner, name = (os, "replace") if kind == "folder" else (s3.DurableObjects, "remove_key")
    elif name == "clean":
        owner, name = (Path, "unlink") if kind == "folder" else (s3.DurableObjects, "abort_uploads")
    real = getattr(owner, name)
    calls: list[int] = []

    def call(*args: Any, **options: Any) -> Any:
        calls.append(1)
        if len(calls) == 1:
            come()
        return real(*args, **options)

    patch.setattr(owner, name, call)


def test_what_nobody_names_goes_and_the_rest_stays(kind: str) -> None:
    store = blobs.get_storage()
    kept = artifacts.store_upload(b"kept", "kept")
    again = artifacts.store_upload(b"kept", "kept")
    lost = artifacts.store_upload(b"lost", "lost")
    forget(lost)
    assert collecting.collect_files(3600) == (0, 0, 1)
    for one in (kept, lost):
        age(store, one.blob_id)
    Blob.objects.update(created_at=AGO)
    gone = collecting.collect_files(1)
    assert gone == ((2, 8, 0) if kind == "bucket" else (1, 4, 0)), "equal bytes are kept once"
    assert collecting.collect_files(1) == (0, 0, 0)
    assert list(Blob.objects.values_list("digest", flat=True)) == [again.blob_id]
    assert read_stored(kept.blob_id) == b"kept"


def test_uploads_in_parts_that_died_are_ended(service: Service, settings: Any) -> None:
    settings.LONGWATCH_ARTIFACTS = service.locate("parts")
    client = service.client()
    for key in ("parts/aa/x", "other/aa/x"):
        client.create_multipart_upload(Bucket=BUCKET, Key=key)
    [begun, _] = [
        one["Initiated"] for one in client.list_multipart_uploads(Bucket=BUCKET)["Uploads"]
    ]
    store = blobs.get_storage()
    assert store.abort_uploads(begun) == 0
    collecting.collect_files(3600)  # this service dates them in 2010
    [left] = client.list_multipart_uploads(Bucket=BUCKET)["Uploads"]
    assert left["Key"] == "other/aa/x", "what is not ours is not touched"


def test_a_second_collector_is_turned_away(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    refused: list[collecting.NotCollectable] = []

    def collect_too() -> set[str]:
        with pytest.raises(collecting.NotCollectable) as caught:
            collecting.collect_files()
        refused.append(caught.value)
        return set()

    monkeypatch.setattr(collecting, "mark_live", collect_too)
    collecting.collect_files()
    assert len(refused) == 1


def test_a_file_that_a_collector_looks_at_can_be_read(settings: Any, tmp_path: Path) -> None:
    settings.LONGWATCH_ARTIFACTS = str(tmp_path / "artifacts")
    saved = artifacts.store_upload(b"aside", "a")
    path = Path(blobs.get_storage().path(blobs.name_blob(saved.blob_id)))
    path.rename(f"{path}{GOING}")
    with artifacts.open_content(saved) as file:
        assert file.read() == b"aside"
    assert collecting.collect_files(3600) == (0, 0, 0)
    assert path.exists(), "the next collector puts back what a dead one left"


@pytest.mark.postgresql
def test_a_collector_that_loses_its_session_ends_and_the_next_one_begins(
    settings: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings.LONGWATCH_ARTIFACTS = str(tmp_path / "artifacts")
    lost = artifacts.store_upload(b"lost", "lost")
    forget(lost)
    age(blobs.get_storage(), lost.blob_id)
    real = collecting.mark_live

    def lose() -> set[str]:
        live = real()
        with connection.cursor() as cursor, contextlib.suppress(DatabaseError):
            cursor.execute("SELECT pg_terminate_backend(pg_backend_pid())")
        return live

    monkeypatch.setattr(collecting, "mark_live", lose)
    with pytest.raises((DatabaseError, InterfaceError)):
        collecting.collect_files(1)
    monkeypatch.setattr(collecting, "mark_live", real)
    connection.close()
    assert read_stored(lost.blob_id) == b"lost", "nothing goes that the ledger can't be asked of"
    assert collecting.collect_files(1) == (0, 0, 1), "put back, as if it had just come"
    age(blobs.get_storage(), lost.blob_id)
    assert collecting.collect_files(1).files == 1


@pytest.mark.parametrize("place", ["now", "before"])
def test_a_list_of_files_that_cannot_be_read_stops_collecting_and_is_told_with_its_task(
    settings: Any, tmp_path: Path, place: str
) -> None:
    settings.LONGWATCH_ARTIFACTS = str(tmp_path / "artifacts")
    store = blobs.get_storage()
    task = submit(make_workflow())
    [tree] = blobs.store_blobs([write_manifest({})])
    artifacts.write_blob_rows([tree])
    if place == "now":
        Task.objects.filter(pk=task.pk).update(workspace=tree.digest)
    else:
        StepOutput.objects.create(
            task=task, seq=1, step_index=0, step_name="a", turn=0, round=0, output={}, fence=1,
            started_at=AGO, finished_at=AGO, workspace=tree.digest,
        )  # fmt: skip
    lost = artifacts.store_upload(b"lost", "lost")
    forget(lost)
    age(store, lost.blob_id)
    path = Path(store.path(blobs.name_blob(tree.digest)))
    good = path.read_bytes()
    path.write_bytes(b"spoilt")
    for _ in range(2):
        with pytest.raises(blobs.CorruptArtifact, match=tree.digest):
            collecting.collect_files(1)
    assert read_stored(lost.blob_id) == b"lost"
    told = Outbox.objects.get(kind=corruption.ARTIFACT_CORRUPT)
    assert told.task == task.pk
    assert f"the files of task {task.pk}: its stored bytes ({tree.digest})" in told.data["note"]
    assert "from a backup, or the task is deleted, nothing is collected" in told.data["note"]
    path.write_bytes(good)
    assert collecting.collect_files(1).files == 1
    assert not Blob.objects.filter(corrupt_at__isnull=False).exists()


def test_collectors_in_a_loop_meet_no_uploader_even_two_at_once(
    settings: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Bytes that grow old and unnamed again and again, while they are looked at without a pause.
    Two collectors, as when the first has lost its lock with its session."""
    monkeypatch.setattr(collecting, "being_alone", contextlib.nullcontext)
    settings.LONGWATCH_ARTIFACTS = str(tmp_path / "artifacts")
    over, errors, rounds = threading.Event(), [], []
    store = blobs.get_storage()

    def upload(number: int) -> None:
        try:
            while not over.is_set():
                saved = artifacts.store_upload(b"%d" % number, "a")
                with artifacts.open_content(saved) as file:
                    assert file.read() == b"%d" % number
                forget(saved)
                path = store.path(blobs.name_blob(saved.blob_id))
                with contextlib.suppress(FileNotFoundError):
                    os.utime(path, (1, 1))
                until = time.monotonic() + (len(rounds) % 3 == 0)
                while os.path.exists(path) and time.monotonic() < until:
                    time.sleep(0.001)  # now and then a collector is the first
                rounds.append(1)
        except BaseException as error:
            errors.append(error)
        finally:
            connection.close()

    def collect(removed: list[int]) -> None:
        try:
            until = time.monotonic() + 60
            while not over.is_set() and time.monotonic() < until:
                removed.append(collecting.collect_files(3600).files)
                if sum(map(sum, gone)) >= 6 and len(rounds) >= 40:
                    break
        except BaseException as error:
            errors.append(error)
        finally:
            connection.close()

    gone: list[list[int]] = [[], []]
    crew = [threading.Thread(target=upload, args=(n,)) for n in range(3)]
    pair = [threading.Thread(target=collect, args=(one,)) for one in gone]
    for one in crew + pair:
        one.start()
    for one in pair:
        one.join(70)
    over.set()
    for one in crew:
        one.join(30)
    assert errors == []
    assert sum(map(sum, gone)) >= 6


def test_doctor_reads_every_byte_from_the_store_itself(
    settings: Any, tmp_path: Path, kind: str
) -> None:
    saved = [artifacts.store_upload(content, "a") for content in (b"good", b"bad", b"gone")]
    for one in saved:
        artifacts.open_content(one).close()  # of a bucket the host has a copy from here on
    assert "all 3 are in the store" in diagnosis._look_at_bytes()[0].seen
    store = blobs.get_storage()
    bad, gone = saved[1].blob_id, saved[2].blob_id
    if isinstance(store, blobs.DurableFiles):
        Path(store.path(blobs.name_blob(bad))).write_bytes(b"wrong")
        os.unlink(store.path(blobs.name_blob(gone)))
    else:
        [name] = [key.name for key in store.list_keys(bad)]
        store.client.put_object(Bucket=BUCKET, Key=name, Body=b"wrong")
        [name] = [key.name for key in store.list_keys(gone)]
        store.remove_key(name)
    seen = " ".join(finding.seen for finding in diagnosis._look_at_bytes())
    assert "2 of 3 are not in the store" in seen
    assert f"{bad} (3 bytes) have changed" in seen
    assert f"{gone} (4 bytes) are missing" in seen
    assert set(Blob.objects.filter(corrupt_at__isnull=False).values_list("digest", flat=True)) == {
        bad, gone,
    }  # fmt: skip
    for content in (b"bad", b"gone"):
        artifacts.store_upload(content, "healed")
    assert "all 3 are in the store" in diagnosis._look_at_bytes()[0].seen
