"""A store of artifacts that is full, read-only or gone: waited for, then dead with the cure."""

from __future__ import annotations

import logging
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from ledger import blobs
from ledger.access import SCOPES
from ledger.errors import StoreUnavailable
from ledger.models import Artifact, Blob
from ledger.testing import Ended, run
from ledger.tokens import make_token
from ledger.workflows import Workflow
from tests.api.conftest import Api
from tests.s3 import BUCKET, KEYS, Service

pytestmark = [pytest.mark.both_databases, pytest.mark.django_db(transaction=True)]

SAYS = {
    "full": "is full. Free some disk",
    "read-only": "is read-only. Mount it for writing",
    "gone": "is gone, or empty. Mount it",
}


def call(*command: str | Path) -> bool:
    try:
        return subprocess.run(command, capture_output=True).returncode == 0
    except FileNotFoundError:
        return False


class Disk:
    """A small file system of the test's own, at `place` through a second mount. Where mounting is
    refused the folder itself is taken away, whatever is asked for."""

    def __init__(self, folder: Path) -> None:
        self.place, self.behind = folder / "store", folder / "behind"
        self.place.mkdir()
        self.behind.mkdir()
        self.real = call("mount", "-t", "tmpfs", "-o", "size=1m", "none", self.behind)
        self.mend: Callable[[], object] = lambda: None
        if self.real:
            assert call("mount", "--bind", self.behind, self.place)

    def close(self) -> None:
        self.mend()
        if self.real:
            assert call("umount", self.place)
            assert call("umount", self.behind)

    def name_trouble(self, kind: str) -> str:
        """What is said of it, as far as this machine lets it happen."""
        return f"The artifact store {self.place} {SAYS[kind if self.real else 'gone']}"

    def break_down(self, kind: str) -> None:
        if not self.real:
            self.place.rename(self.behind / "away")
            self.place.mkdir()
            self._mend_by(lambda: (self.place.rmdir(), (self.behind / "away").rename(self.place)))
        elif kind == "full":
            ballast = self.behind / "ballast"
            call("dd", "if=/dev/zero", f"of={ballast}", "bs=4096")  # until it is refused
            self._mend_by(ballast.unlink)
        elif kind == "read-only":
            assert call("mount", "-o", "remount,bind,ro", self.place)
            self._mend_by(lambda: call("mount", "-o", "remount,bind,rw", self.place))
        else:
            assert call("umount", self.place)
            self._mend_by(lambda: call("mount", "--bind", self.behind, self.place))

    def _mend_by(self, act: Callable[[], object]) -> None:
        def mend() -> None:
            self.mend = lambda: None
            assert act() is not False

        self.mend = mend


@pytest.fixture
def disk(settings: Any, tmp_path: Path) -> Iterator[Disk]:
    one = Disk(tmp_path)
    settings.LONGWATCH_VAR = str(tmp_path / "var")
    settings.LONGWATCH_ARTIFACTS = str(one.place)
    [stored] = blobs.store_blobs([b"before"])
    Blob.objects.create(digest=stored.digest, size=6, created_at="2026-01-01T00:00:00Z")
    yield one
    one.close()


class Mender(logging.Handler):
    """Mends the store when a unit first says that it waits for it."""

    def __init__(self, act: Callable[[], object]) -> None:
        super().__init__()
        self.act, self.waited = act, 0

    def emit(self, record: logging.LogRecord) -> None:
        if "trying again" in record.getMessage():
            self.waited += 1
            self.act()


@pytest.fixture
def mender() -> Iterator[Mender]:
    one = Mender(lambda: None)
    log = logging.getLogger("ledger.durability")
    log.addHandler(one)
    yield one
    log.removeHandler(one)


def make_flow(break_down: Callable[[], object], at: str, retries: int = 3) -> Workflow:
    """One step, that meets the trouble at an artifact or at the checkpoint of its files."""
    flow = Workflow("keeps")

    def keep(ctx: Any) -> dict[str, Any]:
        if at == "checkpoint":
            (ctx.workspace / "file").write_bytes(b"f" * 100_000)
        break_down()
        if at == "artifact":
            ctx.save_artifact("a", b"a" * 100_000)
        return {}

    flow.step(keep, retries=retries)
    return flow


@pytest.mark.parametrize("at", ["artifact", "checkpoint"])
@pytest.mark.parametrize("kind", SAYS)
def test_a_store_that_comes_back_in_time_charges_nobody(
    disk: Disk, mender: Mender, kind: str, at: str
) -> None:
    mender.act = lambda: disk.mend()
    ended = run(make_flow(lambda: disk.break_down(kind), at))
    assert ended.status == "completed"
    assert mender.waited
    assert "attempt_failed" not in ended.kinds
    for digest in Blob.objects.values_list("digest", flat=True):
        blobs.open_blob(digest).close()


@pytest.mark.parametrize("at", ["artifact", "checkpoint"])
@pytest.mark.parametrize("kind", SAYS)
def test_a_store_that_stays_away_is_the_reason_of_the_dead(
    disk: Disk, settings: Any, kind: str, at: str
) -> None:
    settings.LONGWATCH_STORE_SECONDS = 0.1
    broken: list[object] = []

    def break_once() -> None:
        if not broken:
            broken.append(disk.break_down(kind))

    # A later attempt at the checkpoint meets it when it reads the files it had, or at the write.
    assert_dead(run(make_flow(break_once, at)), disk.name_trouble(kind), runs=4)
    assert not Artifact.objects.exists()
    disk.mend()
    assert [path.name for path in disk.place.rglob("*") if path.is_file()] == [
        Blob.objects.get().digest
    ]


def assert_dead(ended: Ended, says: str, runs: int) -> None:
    assert (ended.status, ended.reason) == ("dead", "retries_exhausted")
    assert ended.task["error"]["type"] == "StoreUnavailable"
    assert ended.task["error"]["message"].startswith(says)
    assert ended.kinds.count("attempt_failed") == runs


@pytest.mark.parametrize("kind", SAYS)
def test_a_client_is_asked_to_come_back(disk: Disk, kind: str) -> None:
    api = Api(make_token("all", SCOPES, created_by="cli:test")[1])
    path = "/api/v1/artifacts?name=a"

    def upload() -> Any:
        return api.client.post(path, b"x" * 50_000, "application/octet-stream", headers=api.headers)

    disk.break_down(kind)
    answer = upload()
    assert (answer.status_code, answer.json()["code"]) == (503, "store_unavailable")
    assert answer.headers["Retry-After"]
    assert str(disk.place) not in answer.text, "where it lies is for the log"
    disk.mend()
    answer = upload()
    assert answer.status_code == 201
    disk.break_down("gone")
    content = f"/api/v1/artifacts/{answer.json()['id']}/content"
    gone = api.client.get(content, headers=api.headers)
    assert gone.status_code == 503, "bytes that can't be had now are not called corrupt"
    disk.mend()
    whole = api.client.get(content, headers=api.headers)
    assert b"".join(whole.streaming_content) == b"x" * 50_000  # type: ignore[attr-defined]


@pytest.fixture
def service(settings: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Service]:
    for name, value in KEYS.items():
        monkeypatch.setenv(name, value)
    one = Service(tmp_path).start()
    settings.LONGWATCH_VAR = str(tmp_path / "var")
    settings.LONGWATCH_ARTIFACTS = one.locate()
    yield one
    one.stop()


def test_a_bucket_is_waited_for_and_then_named(
    service: Service, mender: Mender, settings: Any
) -> None:
    mender.act = lambda: service.process is None and service.start()
    ended = run(make_flow(service.stop, "artifact"))
    assert (ended.status, mender.waited > 0) == ("completed", True)
    assert "attempt_failed" not in ended.kinds
    settings.LONGWATCH_STORE_SECONDS = 0
    for bucket in ("no-such-bucket", BUCKET):
        says = f"The artifact store s3://{bucket} "
        says += "does not answer. See" if bucket == BUCKET else "does not exist. Make the bucket"
        settings.LONGWATCH_ARTIFACTS = service.locate().replace(BUCKET, bucket)
        if bucket == BUCKET:
            service.stop()
        mender.act = lambda: None
        assert_dead(run(make_flow(lambda: None, "artifact", retries=1)), says, runs=2)
    with pytest.raises(StoreUnavailable):
        blobs.open_blob("0" * 64)
