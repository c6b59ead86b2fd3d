"""`manage.py storage` tells what the ledger takes of the disk."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from django.core.management import call_command
from django.db import connection

from tests.crash.past import fill_past
from tests.emptying import list_tables

pytestmark = [pytest.mark.both_databases, pytest.mark.django_db]


def test_every_table_and_a_task_of_each_workflow_is_measured(
    settings: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    settings.LONGWATCH_VAR = str(tmp_path / "var")
    settings.LONGWATCH_ARTIFACTS = str(tmp_path / "artifacts")
    if connection.vendor == "postgresql":  # the room of rows that other tests have left
        with connection.cursor() as cursor:
            cursor.execute(f"TRUNCATE {', '.join(list_tables())}")
    fill_past(300, days=1, steps=4)
    if connection.vendor == "postgresql":
        with connection.cursor() as cursor:
            cursor.execute("ANALYZE longwatch_task, longwatch_step_output, longwatch_artifact")
    call_command("storage", json=True)
    shown = json.loads(capsys.readouterr().out)
    tables = {table["name"]: table for table in shown["tables"]}
    assert tables["longwatch_task"]["rows"] == 300
    outputs = tables["longwatch_step_output"]
    assert outputs["rows"] == 1200
    text = 8 * len("some 300 bytes of what a step leaves ")
    assert 1200 * text < outputs["size"] < 1200 * (text + 1000)
    assert outputs["indexes"] > 1200 * 16
    (flow,) = shown["workflows"]
    assert (flow["workflow"], flow["tasks"], flow["units"]) == ("past", 200, 4)
    assert 4 * text < flow["rows"] < 4 * (text + 2000) + 6000
    assert flow["files"] == sum(len(f"of s{n}") for n in range(4))
    assert shown["files"]["number"] == 4
    call_command("storage")
    said = capsys.readouterr().out
    assert "longwatch_step_output" in said
    assert "past" in said.splitlines()[-1]


@pytest.mark.postgresql
@pytest.mark.django_db(transaction=True)
def test_a_table_that_was_emptied_is_told_for_the_room_that_it_takes(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Retention leaves it so, and only VACUUM FULL gives it back."""
    with connection.cursor() as cursor:
        cursor.execute(
            "INSERT INTO longwatch_visit (actor, seen_at) "
            "SELECT repeat('x', 60) || n, now() FROM generate_series(1, 20000) AS n"
        )
        cursor.execute("DELETE FROM longwatch_visit")
        cursor.execute("VACUUM (ANALYZE) longwatch_visit")
    call_command("storage", json=True)
    tables = {one["name"]: one for one in json.loads(capsys.readouterr().out)["tables"]}
    try:
        assert tables["longwatch_visit"]["rows"] == 0
        assert tables["longwatch_visit"]["indexes"] > 500_000
        call_command("storage")
        assert "longwatch_visit" in capsys.readouterr().out
    finally:
        with connection.cursor() as cursor:
            cursor.execute("VACUUM FULL longwatch_visit")
