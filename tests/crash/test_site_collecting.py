"""A cluster collects by itself, in a process beside its workers."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.crash.cluster_kit import wait_for
from tests.crash.conftest import StartSite

pytestmark = [pytest.mark.both_databases, pytest.mark.django_db(transaction=True)]


def test_a_cluster_removes_what_nothing_names(start_site: StartSite, tmp_path: Path) -> None:
    store = tmp_path / "var" / "artifacts"
    (store / ".incoming").mkdir(parents=True)
    (store / "ab").mkdir()
    old, young = store / "ab" / ("ab" * 32), store / "ab" / ("ac" * 32)
    torn = store / ".incoming" / "tmptorn"
    for path in (old, young, torn):
        path.write_bytes(b"nobody's")
    for path in (old, torn):
        os.utime(path, (1, 1))
    with start_site(LONGWATCH_COLLECT_HOURS=0.0005) as cluster:
        wait_for("the old are gone", lambda: not old.exists() and not torn.exists(), 90)
        assert young.exists()
        cluster.prove_it_works_on()
