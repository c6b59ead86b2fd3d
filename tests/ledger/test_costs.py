"""What a unit costs on PostgreSQL, as the server counts it: one commit, and no index is written."""

from __future__ import annotations

import dataclasses

import pytest
from django.db import connection

from ledger import conf
from ledger.models import StepOutput
from ledger.runner import Engine, run_attempt
from ledger.workflows import registered
from tests.factories import OWNER, make_workflow, submit

pytestmark = [pytest.mark.postgresql, pytest.mark.django_db(transaction=True)]
TASKS, STEPS = 20, 10
UNITS = TASKS * STEPS


def read_counters() -> dict[str, int]:
    """Commits of this database, updates of tasks, and those that wrote no index."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_stat_force_next_flush()")
        cursor.execute(
            "SELECT d.xact_commit, t.n_tup_upd, t.n_tup_hot_upd FROM pg_stat_user_tables t, "
            "pg_stat_database d WHERE relname = 'longwatch_task' AND datname = current_database()"
        )
        return dict(zip(("commits", "updates", "hot"), cursor.fetchone(), strict=True))


@pytest.mark.parametrize("slice_seconds", [60.0, 0.0], ids=["one slice", "released each time"])
def test_a_unit_costs_one_commit(slice_seconds: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """Claims and looks for work are counted too, of which a slow machine takes no more than a fast
    one here."""
    monkeypatch.setattr("ledger.picking.FRESH_SECONDS", 600.0)
    flow = make_workflow(steps=STEPS)
    engine = Engine(OWNER, dataclasses.replace(conf.load(), slice_seconds=slice_seconds))
    with registered(flow):
        before = read_counters()
        for _ in range(TASKS):
            submit(flow)
        while (held := engine.claim()) is not None:
            while held is not None:
                held = run_attempt(engine, held)
        after = read_counters()
    assert StepOutput.objects.count() == UNITS
    spent = {name: after[name] - before[name] for name in after}
    assert UNITS <= spent["commits"] - TASKS <= 1.15 * UNITS, "beside the submissions"
    if slice_seconds:
        checkpoints = UNITS - TASKS
        assert spent["updates"] <= 1.05 * (checkpoints + 2 * TASKS)
        assert spent["hot"] >= 0.9 * checkpoints
