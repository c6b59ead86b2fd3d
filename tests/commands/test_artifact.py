"""`manage.py artifact`: put again is the same upload, get is whole or nothing."""

from __future__ import annotations

import io
import os
from pathlib import Path
from typing import Any

import pytest
from django.core.management import CommandError, call_command

from ledger import artifacts, blobs
from ledger.management import storing
from ledger.models import Artifact
from tests.held import claim_new, make_workflow

pytestmark = pytest.mark.django_db


@pytest.fixture(autouse=True)
def store(settings: Any, tmp_path: Path) -> Path:
    settings.LONGWATCH_ARTIFACTS = str(tmp_path / "artifacts")
    return tmp_path / "artifacts"


def run(*args: str) -> str:
    out = io.StringIO()
    call_command("artifact", *args, stdout=out)
    return out.getvalue().strip()


def test_a_file_goes_in_and_comes_out_as_it_was(tmp_path: Path, store: Path) -> None:
    source, target = tmp_path / "rows.csv", tmp_path / "out.csv"
    source.write_bytes(b"a,b\n1,2\n")
    key = run("put", str(source))
    assert run("put", str(source)) == key, "put again after a lost answer: the same upload"
    assert run("put", str(source), "--name", "other.csv") != key
    assert Artifact.objects.get(pk=key).name == "rows.csv"
    run("get", key, "-o", str(target))
    assert target.read_bytes() == source.read_bytes()
    (store / blobs.name_blob(str(Artifact.objects.get(pk=key).blob_id))).write_bytes(b"lies")
    target.write_bytes(b"as before")
    with pytest.raises(CommandError, match=r"rows.csv.* have changed"):
        run("get", key, "-o", str(target))
    assert target.read_bytes() == b"as before"
    assert not list(tmp_path.glob(".*.part"))
    run("get", run("put", str(source)), "-o", str(target))
    assert target.read_bytes() == source.read_bytes(), "put again heals"


def test_what_is_no_file_is_written_to_and_never_replaced(tmp_path: Path) -> None:
    """As root, `-o /dev/null` put a file in its place, for all of the machine."""
    source, real, link, pipe = (tmp_path / name for name in ("x", "real", "link", "pipe"))
    source.write_bytes(b"bytes")
    real.write_bytes(b"as before")
    link.symlink_to("real")
    os.mkfifo(pipe)
    key = run("put", str(source))
    reading = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    try:
        run("get", key, "-o", str(pipe))
        assert os.read(reading, 100) == b"bytes"
    finally:
        os.close(reading)
    assert pipe.is_fifo()
    run("get", key, "-o", str(link))
    assert (link.is_symlink(), real.read_bytes()) == (True, b"bytes")
    for wrong in (tmp_path, tmp_path / "no" / "such", source / "below"):
        with pytest.raises(CommandError, match=r"--output: .* can't be written: [A-Z]"):
            run("get", key, "-o", str(wrong))
    assert sorted(tmp_path.glob(".*")) == []


def test_a_store_that_comes_back_is_waited_for(
    tmp_path: Path, store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = tmp_path / "x"
    source.write_bytes(b"x")
    artifacts.store_upload(b"first", "first")
    store.rename(tmp_path / "unplugged")
    waits = []

    def bring_back(seconds: float) -> None:
        waits.append(seconds)
        if len(waits) == 2:
            (tmp_path / "unplugged").rename(store)

    monkeypatch.setattr(storing.time, "sleep", bring_back)
    assert Artifact.objects.filter(pk=run("put", str(source))).exists()
    assert waits == [1.0, 4.0]


def test_what_a_task_made_is_listed_in_lines(tmp_path: Path) -> None:
    held = claim_new(make_workflow())
    saved = artifacts.save_artifact(held, "two\nlines \x1b[31m\u202ered", b"hello")
    [line] = run("list", str(held.task_id)).splitlines()
    assert line == f"{saved.pk}  ok                  5  v1  two lines [31mred"
    for args in (("list", "x"), ("get", "x"), ("get", str(held.task_id)), ("put", str(tmp_path)),
                 ("put", str(tmp_path / "none"))):  # fmt: skip
        with pytest.raises(CommandError):
            run(*args)
