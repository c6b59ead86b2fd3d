"""The host's own copies of bytes: right or absent, bounded, and nothing that anybody waits for."""

from __future__ import annotations

import hashlib
import io
import os
import shutil
import signal
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from django.core.files.base import ContentFile
from django.core.files.storage import InMemoryStorage, storages

from ledger import blobcache, blobs
from ledger.errors import StoreUnavailable


@pytest.fixture(autouse=True)
def var(settings: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    settings.LONGWATCH_VAR = str(tmp_path / "var")
    monkeypatch.setattr(blobcache, "_unseen", -1)
    return tmp_path / "var"


def keep(content: bytes) -> str:
    digest, file = blobcache.copy_in(io.BytesIO(content))
    with file:
        assert file.read() == content
    assert digest == hashlib.sha256(content).hexdigest()
    return digest


def read(digest: str) -> bytes | None:
    file = blobcache.open_cached(digest)
    if file is None:
        return None
    with file:
        return file.read()


def list_all(var: Path) -> list[Path]:
    return [path for path in (var / "blob-cache").rglob("*") if path.is_file()]


def test_what_is_kept_is_found_and_what_is_damaged_is_a_miss_and_goes(var: Path) -> None:
    digest = keep(b"hello")
    assert read(digest) == b"hello"
    (var / "blob-cache" / digest[:2] / digest).write_bytes(b"hellp")
    assert read(digest) is None
    assert list_all(var) == []
    assert read(keep(b"hello")) == b"hello"


def test_what_was_used_longest_ago_gives_way(settings: Any, var: Path) -> None:
    settings.LONGWATCH_BLOB_CACHE_BYTES = 16_000
    kept = [keep(bytes([n]) * 3_000) for n in range(5)]
    for n, digest in enumerate(kept):
        os.utime(var / "blob-cache" / digest[:2] / digest, (n, n))
    assert read(kept[0]) is not None, "a use makes it young"
    keep(b"x" * 3_000)
    keep(b"y" * 3_000)
    here = [read(digest) is not None for digest in kept]
    assert here == [True, False, False, True, True]
    assert sum(path.stat().st_size for path in list_all(var)) <= 16_000


def test_what_is_too_large_is_read_and_not_kept(settings: Any, var: Path) -> None:
    settings.LONGWATCH_BLOB_CACHE_BYTES = 1_000
    keep(b"x" * 251)
    assert list_all(var) == []


def test_a_copy_that_a_killed_process_left_goes_after_an_hour(var: Path) -> None:
    child = os.fork()
    if child == 0:

        class Source(io.BytesIO):
            def read(self, *args: Any) -> bytes:
                if self.tell():
                    os.kill(os.getpid(), signal.SIGKILL)
                return super().read(10)

        blobcache.copy_in(Source(b"x" * 20))
    assert os.WTERMSIG(os.waitpid(child, 0)[1]) == signal.SIGKILL
    (left,) = list_all(var)
    blobcache.trim_cache(1 << 30)
    assert left.exists(), "its process may live"
    os.utime(left, (1, 1))
    blobcache.trim_cache(1 << 30)
    assert not left.exists()


class FarStorage(InMemoryStorage):
    """A store elsewhere that counts what is fetched."""

    fetched = 0

    def _open(self, name: str, mode: str = "rb") -> Any:
        self.fetched += 1
        return super()._open(name, mode)


@pytest.fixture
def far(settings: Any) -> FarStorage:
    settings.STORAGES = {
        **settings.STORAGES,
        "longwatch": {"BACKEND": f"{__name__}.FarStorage"},
    }
    found = storages["longwatch"]
    assert isinstance(found, FarStorage)
    return found


def test_a_store_elsewhere_is_asked_once(far: FarStorage) -> None:
    digest = blobs.store_blobs([b"far away"])[0].digest
    before = far.fetched
    for _ in range(3):
        with blobs.open_blob(digest) as file:
            assert file.read() == b"far away"
    assert far.fetched == before + 1


@pytest.mark.parametrize("when", ["made", "kept"])
def test_a_cache_that_goes_meanwhile_says_nothing_of_the_stores_bytes(
    far: FarStorage, var: Path, monkeypatch: pytest.MonkeyPatch, when: str
) -> None:
    digest = blobs.store_blobs([b"far away"])[0].digest
    owner, name = {"made": (tempfile, "mkstemp"), "kept": (os, "replace")}[when]
    real = getattr(owner, name)

    def clean(*args: Any, **options: Any) -> Any:
        monkeypatch.undo()
        shutil.rmtree(var / "blob-cache")
        return real(*args, **options)

    monkeypatch.setattr(owner, name, clean)
    if when == "made":
        with pytest.raises(StoreUnavailable, match=r"on the way to it\) is gone"):
            blobs.open_blob(digest)
    for _ in range(2):
        with blobs.open_blob(digest) as file:
            assert file.read() == b"far away"
    assert len(list_all(var)) == 1


def test_what_a_store_elsewhere_has_wrong_is_not_handed_out(far: FarStorage) -> None:
    digest = blobs.store_blobs([b"right"])[0].digest
    far.delete(blobs.name_blob(digest))
    far.save(blobs.name_blob(digest), ContentFile(b"wrong"))
    with pytest.raises(blobs.CorruptArtifact, match="have changed"):
        blobs.open_blob(digest)
    far.delete(blobs.name_blob(digest))
    with pytest.raises(blobs.CorruptArtifact, match="are missing"):
        blobs.open_blob(digest)
