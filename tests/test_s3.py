"""Artifacts in a bucket: an S3 service on loopback, and what goes wrong with one."""

from __future__ import annotations

import io
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from django.core.exceptions import ImproperlyConfigured

from ledger import artifacts, blobs, checks, s3
from ledger.errors import StoreUnavailable
from ledger.management import diagnosis
from ledger.models import Blob
from tests.conftest import ROOT
from tests.held import claim_new, make_workflow
from tests.s3 import BUCKET, KEYS, Cutter, Service

pytestmark = [pytest.mark.django_db]
HELLO = "2cf24dba5fb0a30e26e83b2ac5b9e29e1b161e5c1fa7425e73043362938b9824"


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    one = Service(tmp_path_factory.mktemp("s3")).start()
    yield one
    one.stop()


@pytest.fixture(autouse=True)
def prefix(service: Service, settings: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    for name, value in KEYS.items():
        monkeypatch.setenv(name, value)
    settings.LONGWATCH_VAR = str(tmp_path / "var")
    settings.LONGWATCH_ARTIFACTS = service.locate(tmp_path.name)
    return tmp_path.name


def read_all(digest: str) -> bytes:
    with blobs.open_blob(digest) as file:
        return file.read()


def test_what_is_saved_in_a_bucket_is_read_verified(service: Service, prefix: str) -> None:
    saved = artifacts.save_artifact(claim_new(make_workflow()), "a.txt", "hello")
    with artifacts.open_content(saved) as file:
        assert (file.read(), file.seek(1), file.read(2)) == (b"hello", 1, b"el")
    [name] = service.list_names(prefix)
    assert name.startswith(f"{prefix}/2c/{HELLO}.")
    assert Blob.objects.get().size == 5
    acl = service.client().get_object_acl(Bucket=BUCKET, Key=name)
    assert len(acl["Grants"]) == 1, "nobody but the owner"


def test_bytes_stored_anew_lie_under_a_new_name_and_mend_what_was_wrong(
    service: Service, prefix: str, tmp_path: Path
) -> None:
    blobs.store_blobs([b"hello"])
    [first] = service.list_names(prefix)
    service.client().put_object(Bucket=BUCKET, Key=first, Body=b"jello")
    with pytest.raises(blobs.CorruptArtifact, match="have changed"):
        blobs.open_blob(HELLO)
    blobs.store_blobs([b"hello"])
    assert len(service.list_names(prefix)) == 2
    assert read_all(HELLO) == b"hello"
    for name in service.list_names(prefix):
        service.client().delete_object(Bucket=BUCKET, Key=name)
    shutil.rmtree(tmp_path / "var" / "blob-cache")
    with pytest.raises(blobs.CorruptArtifact, match="are missing"):
        blobs.open_blob(HELLO)


def test_what_is_collected_between_the_list_and_the_look_is_found_under_its_newer_name(
    service: Service, prefix: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    blobs.store_blobs([b"hello"])
    [first] = service.list_names(prefix)
    real = s3.DurableObjects.list_keys

    def list_first(self: s3.DurableObjects, digest: str = "") -> Iterator[s3.Key]:
        monkeypatch.setattr(s3.DurableObjects, "list_keys", real)
        found = list(real(self, digest))
        blobs.store_blobs([b"hello"])
        service.client().delete_object(Bucket=BUCKET, Key=first)
        yield from found

    monkeypatch.setattr(s3.DurableObjects, "list_keys", list_first)
    assert read_all(HELLO) == b"hello"


@pytest.mark.parametrize("size", [0, s3.PART - 1, s3.PART, 2 * s3.PART + 5])
def test_every_size_comes_back_whole(size: int) -> None:
    content = os.urandom(1 << 16) * (size // (1 << 16) + 1)
    [stored] = blobs.store_blobs([io.BytesIO(content[:size])])
    assert stored.size == size
    assert read_all(stored.digest) == content[:size]


def test_a_download_that_breaks_off_goes_on_where_it_ended(
    service: Service, settings: Any, prefix: str
) -> None:
    content = os.urandom(3_000_000)
    [stored] = blobs.store_blobs([content])
    with Cutter(service.port, after=1_000_000) as cutter:
        settings.LONGWATCH_ARTIFACTS = (
            f"s3://{BUCKET}/{prefix}?endpoint_url=http://127.0.0.1:{cutter.port}&region=us-east-1"
        )
        assert read_all(stored.digest) == content
        assert cutter.cuts == 2


@pytest.mark.parametrize(
    ("address", "says"),
    [
        ("s3://", "no store that it knows"),
        ("gs://bucket/x", "no store that it knows"),
        ("s3://KEY:hunter2@bucket/x", "AWS_ACCESS_KEY_ID"),
        ("s3://bucket/x?secret_key=hunter2", "knows no secret_key"),
    ],
)
def test_an_address_that_cannot_be_used_is_refused_without_repeating_it(
    settings: Any, address: str, says: str
) -> None:
    settings.LONGWATCH_ARTIFACTS = address
    with pytest.raises(ImproperlyConfigured, match=says) as caught:
        blobs.get_storage()
    assert "hunter2" not in str(caught.value)
    [found] = checks.check_store()
    assert found.id == "longwatch.E006"


def test_without_the_extra_the_start_is_refused_with_the_cure(
    service: Service, prefix: str, tmp_path: Path
) -> None:
    (tmp_path / "sitecustomize.py").write_text("import sys\nsys.modules['storages'] = None\n")
    done = subprocess.run(
        [sys.executable, "manage.py", "check"], cwd=ROOT, capture_output=True, text=True,
        env={**os.environ, "LONGWATCH_ARTIFACTS": service.locate(), "PYTHONPATH": str(tmp_path),
             "DJANGO_SETTINGS_MODULE": "harness_site.settings",
             "LONGWATCH_VAR": str(tmp_path / "var")},
    )  # fmt: skip
    assert done.returncode == 1
    assert "longwatch.E006" in done.stderr
    assert "pip install longwatch[s3]" in done.stderr


def test_what_is_wrong_with_a_bucket_is_said_with_its_cure(
    service: Service, settings: Any, prefix: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings.LONGWATCH_ARTIFACTS = service.locate().replace(BUCKET, "no-such-bucket")
    for act in (lambda: blobs.store_blobs([b"x"]), lambda: blobs.open_blob(HELLO)):
        with pytest.raises(StoreUnavailable, match=r"s3://no-such-bucket does not exist\. Make"):
            act()
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", os.devnull)
    settings.LONGWATCH_ARTIFACTS = service.locate(f"{prefix}/other")
    with pytest.raises(StoreUnavailable, match="refuses our credentials"):
        blobs.store_blobs([b"x"])
    settings.LONGWATCH_ARTIFACTS = f"s3://{BUCKET}/x?endpoint_url=http://127.0.0.1:9"
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "test-key")
    with pytest.raises(StoreUnavailable, match="does not answer"):
        blobs.store_blobs([b"x"])


def test_keys_that_the_service_does_not_know_are_told_apart(settings: Any, tmp_path: Path) -> None:
    """By a service that checks them; doctor says the same."""
    strict = Service(tmp_path).start(INITIAL_NO_AUTH_ACTION_COUNT="1")
    try:
        strict.client().create_bucket(Bucket=BUCKET)
        settings.LONGWATCH_ARTIFACTS = strict.locate("x")
        with pytest.raises(StoreUnavailable, match="refuses our credentials"):
            blobs.store_blobs([b"x"])
        [found] = diagnosis._look_at_store()
        assert "refuses our credentials" in found.seen
        assert "AWS_ACCESS_KEY_ID" in found.cure
    finally:
        strict.stop()


def test_doctor_writes_and_reads_and_leaves_nothing(service: Service, prefix: str) -> None:
    assert diagnosis._look_at_store() == [diagnosis.Finding("artifacts", f"s3://{BUCKET}/{prefix}")]
    assert service.list_names(prefix) == []
