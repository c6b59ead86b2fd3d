"""A worker killed at every instant around an artifact's write and a checkpoint of files: no row
without its bytes, no half of them for anybody, and what was left lying is collected."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ledger import blobs, clock, collecting, s3
from ledger.access import SCOPES
from ledger.models import Artifact, Blob, StepOutput, Task
from ledger.registry import registered
from ledger.runner import Engine, run_attempt
from ledger.testing import _OwnLane
from ledger.tokens import make_token
from ledger.transitions.submit import submit_task
from ledger.transitions.sweeps import reclaim_task
from ledger.workspaces import read_manifest
from tests.api.conftest import Api
from tests.conftest import ROOT
from tests.crash.cluster_kit import wait_for
from tests.crash.instants import SIZES, make_bytes, make_flow
from tests.factories import CLIENT
from tests.s3 import BUCKET, KEYS, Service
from tests.settings import RING

PROOF = bool(os.environ.get("LONGWATCH_TEST_PROOF"))
SHARP = {"fsync", "replace", "commit", "wait_c", "unlink", "sendall"}
pytestmark = [pytest.mark.both_databases, pytest.mark.django_db(transaction=True)]


class Killer:
    """The process that forks workers and has them killed."""

    def __init__(self, environment: dict[str, str], log: Path) -> None:
        self.log = log
        with log.open("w") as file:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "tests.crash.instants"], cwd=ROOT, text=True, stderr=file,
                stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                env=environment | {"DJANGO_SETTINGS_MODULE": "harness_site.settings"},
            )  # fmt: skip

    def run(self, lane: str, at: int, told: Path) -> str:
        """How that unit's process ended."""
        assert self.process.stdin
        assert self.process.stdout
        self.process.stdin.write(f"{lane} {at} {told}\n")
        self.process.stdin.flush()
        return self.process.stdout.readline().strip()

    def close(self) -> None:
        self.process.kill()
        self.process.communicate()


@pytest.fixture(params=["folder", "bucket"] if PROOF or RING == "sqlite" else ["folder"])
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def killer(
    kind: str, site_env: dict[str, str], settings: Any, tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> Iterator[Killer]:  # fmt: skip
    settings.LONGWATCH_VAR = str(tmp_path / "var")
    settings.LONGWATCH_ARTIFACTS = str(tmp_path / "artifacts")
    service = Service(tmp_path).start() if kind == "bucket" else None
    if service:
        for name, value in KEYS.items():
            monkeypatch.setenv(name, value)
        settings.LONGWATCH_ARTIFACTS = service.locate("kills")
    one = Killer(
        site_env | KEYS | {"LONGWATCH_ARTIFACTS": settings.LONGWATCH_ARTIFACTS}, tmp_path / "log"
    )
    yield one
    one.close()
    if service:
        service.stop()


def submit(seed: object, size: int) -> Task:
    task, _ = submit_task(
        workflow=make_flow(), input={"seed": str(seed), "size": size}, actor=CLIENT,
        lane=f"instant-{seed}",
    )  # fmt: skip
    return task


class Eye:
    """Looks at all that the store holds and all that the ledger names, each byte once."""

    def __init__(self) -> None:
        self.whole: dict[object, str] = {}
        self.api = Api(make_token("eye", SCOPES, created_by="cli:test")[1])

    def list_stored(self) -> dict[object, str]:
        """Every blob that a reader could be given, by its digest; each is what that says."""
        store = blobs.get_storage()
        found: dict[object, str] = {}
        if isinstance(store, blobs.DurableFiles):
            for path in Path(store.location).glob("??/*"):
                key: object = (path, path.stat().st_mtime_ns)
                found[key] = self.whole.get(key) or hashlib.sha256(path.read_bytes()).hexdigest()
                assert found[key] == path.name
        else:
            for key in store.list_keys():
                if key not in self.whole:
                    with contextlib.closing(s3.Download(store, key)) as body:
                        read = b"".join(iter(lambda: body.read(1 << 20), b""))
                    assert hashlib.sha256(read).hexdigest() == key.digest
                found[key] = key.digest
        self.whole = found
        return found

    def list_named(self) -> set[str]:
        """What a row or a tree of files names."""
        named = set(Blob.objects.values_list("digest", flat=True))
        named |= set(Artifact.objects.values_list("blob_id", flat=True))
        for table in (Task, StepOutput):
            for tree in table._default_manager.exclude(workspace="").values_list(
                "workspace", flat=True
            ):
                named |= {tree, *(one.digest for one in read_manifest(tree).values())}
        return named

    def assert_whole(self, task: Task) -> None:
        """What is named is there, what is there is whole, and a client gets no other bytes."""
        assert self.list_named() <= set(self.list_stored().values())
        for one in Artifact.objects.filter(task=task):
            answer = self.api.client.get(
                f"/api/v1/artifacts/{one.pk}/content", headers=self.api.headers
            )
            assert answer.status_code == 200
            content = b"".join(answer.streaming_content)  # type: ignore[attr-defined]
            assert content == make_bytes(task.input["seed"], task.input["size"])


def go_on(task: Task) -> Task:
    """Another worker takes over when the lease is over, and ends the task."""
    task.refresh_from_db()
    clock.offset += 61
    try:
        if task.status == "running":
            reclaim_task(task.pk, 60.0)
        engine = Engine(f"next:{os.getpid()}:{task.pk}")
        engine.picker = _OwnLane(task.lane)
        with registered(make_flow()):
            held = engine.claim()
            while held is not None:
                held = run_attempt(engine, held)
    finally:
        clock.offset -= 61
    task.refresh_from_db()
    return task


def choose_instants(seen: list[str]) -> list[int]:
    """In the long form all of them. Else a few of those around what makes bytes count, other ones
    on each database, and fewer of the rest."""
    if PROOF:
        return list(range(len(seen)))
    sharp = [n for n, what in enumerate(seen) if what.split()[1] in SHARP]
    rest = [n for n, what in enumerate(seen) if what.split()[1] not in SHARP]
    shift = 2 if RING == "sqlite" else 1  # over this, so that both of "before" and "after" come
    count = 12 if len(seen) < 400 else 7  # of a bucket: each takes seconds
    few = [some[shift :: max(2, len(some) // count)] for some in (sharp, rest)]
    return sorted([*few[0], *few[1][::2]])


@pytest.mark.timeout(3600)
def test_a_kill_at_any_instant_leaves_no_row_without_its_bytes(
    killer: Killer, kind: str, tmp_path: Path
) -> None:
    told, size, eye = tmp_path / "told", SIZES[kind], Eye()
    for seed in ("first", "second"):  # the first one makes folders
        task = submit(seed, size)
        assert killer.run(task.lane, -1, told) == "ended 0", killer.log.read_text()
    instants = choose_instants(json.loads(told.read_text()))
    assert len(instants) >= 8
    killed = 0
    for at in instants:
        task = submit(at, size)
        killed += killer.run(task.lane, at, told) == "killed"
        eye.assert_whole(task)
        go_on(task)
        assert (task.status, task.result, task.reclaims) == ("completed", {"same": True}, 0)
        eye.assert_whole(task)
    assert killed > 0.85 * len(instants), "a few are too late: the course varies a little"
    assert_collected(eye)


def assert_collected(eye: Eye) -> None:
    """Once it is old, all that nobody names is gone, and nothing else."""
    store = blobs.get_storage()
    Blob.objects.update(created_at="2001-01-01T00:00:00Z")
    if isinstance(store, blobs.DurableFiles):
        root = Path(store.location)
        for path in [*root.glob("??/*"), *(root / ".incoming").glob("*")]:
            os.utime(path, (1, 1))
    else:
        wait_for("all keys are old", lambda: all(
            (store.read_time() - key.modified).total_seconds() > 2 for key in store.list_keys()
        ))  # fmt: skip
    removed = collecting.collect_files(1)
    assert removed.files > 0
    live = collecting.mark_live()
    left = list(eye.list_stored().values())
    assert sorted(left) == sorted(live)
    if isinstance(store, blobs.DurableFiles):
        assert not list((Path(store.location) / ".incoming").iterdir())
    else:
        assert not store.client.list_multipart_uploads(Bucket=BUCKET).get("Uploads")
