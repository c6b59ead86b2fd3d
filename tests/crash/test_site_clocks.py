"""Clocks that disagree, and one that jumps: leases live by the database's clock alone."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

import pytest
from django.db import connection

from ledger import clock
from ledger.models import StepOutput
from tests.crash.cluster_kit import SIGKILL
from tests.crash.conftest import StartSite
from tests.crash.site_kit import assert_whole, read_kinds, wait_for_status
from tests.durable import LEASE

pytestmark = [
    pytest.mark.case(13),
    pytest.mark.postgresql,  # SQLite promises one host and one clock
    pytest.mark.django_db(transaction=True),
]

Step = Callable[[float], None]

# A function that is found before the server's own: to every session its clock is another.
CLOCK = """
CREATE SCHEMA stepped;
CREATE TABLE stepped.by (seconds double precision);
INSERT INTO stepped.by VALUES (0);
CREATE FUNCTION stepped.statement_timestamp() RETURNS timestamptz STABLE LANGUAGE sql AS $$
  SELECT pg_catalog.statement_timestamp() + make_interval(secs => (SELECT seconds FROM stepped.by))
$$"""


@pytest.fixture
def step_clock(transactional_db: None) -> Iterator[Step]:
    """Sets the database's clock so many seconds off, for every session from the next one on."""
    name = connection.settings_dict["NAME"]

    def run(statement: str) -> None:
        with connection.cursor() as cursor:
            cursor.execute(statement)

    run(CLOCK)
    run(f'ALTER DATABASE "{name}" SET search_path = stepped, public, pg_catalog')
    connection.close()

    def step(seconds: float) -> None:
        run(f"UPDATE stepped.by SET seconds = {seconds:f}")
        assert abs(clock.read().timestamp() - time.time() - seconds) < 60

    yield step
    run(f'ALTER DATABASE "{name}" RESET search_path')
    connection.close()
    run("DROP SCHEMA stepped CASCADE")


@pytest.mark.parametrize("seconds", [600, -600])
def test_a_worker_whose_clock_is_off_neither_steals_nor_strands(
    seconds: float, step_clock: Step, start_site: StartSite
) -> None:
    """All workers are ten minutes off the database: a live lease is kept, a dead one taken."""
    step_clock(seconds)
    with start_site() as cluster:
        lives = cluster.submit(seconds=LEASE + 5, turns=1)
        cluster.wait_for_attempts(1, "work")
        dies = cluster.submit(seconds=1, turns=1)
        victim = cluster.wait_for_attempts(2, "work")[1]
        cluster.signal(SIGKILL, victim.pid)
        killed = time.time()
        third = cluster.wait_for_attempts(3, "work")[2]
        assert third.task == str(dies.pk)
        assert third.at - killed < LEASE + 12, "LEASE + 1 on an idle machine"
        for task in (lives, dies):
            wait_for_status(task, "completed")
            assert_whole(task, 1)
        assert read_kinds(lives) == ["submitted", "completed"]
        assert read_kinds(dies) == ["submitted", "reclaimed", "completed"]
    spans = [output.finished_at - output.started_at for output in StepOutput.objects.all()]
    assert all(0 <= span.total_seconds() < LEASE + 27 for span in spans)


@pytest.mark.parametrize("seconds", [3600, -3600])
def test_a_jump_of_the_databases_clock_disturbs_once_at_most(
    seconds: float, step_clock: Step, start_site: StartSite
) -> None:
    """A worker at work and one that is killed in that instant: its lease does not last an hour."""
    with start_site() as cluster:
        lives = cluster.submit(seconds=LEASE + 5, turns=1)
        cluster.wait_for_attempts(1, "work")
        dies = cluster.submit(seconds=1, turns=1)
        victim = cluster.wait_for_attempts(2, "work")[1]
        cluster.signal(SIGKILL, victim.pid)
        step_clock(seconds)
        for task in (dies, lives):
            wait_for_status(task, "completed")
            assert_whole(task, 1)
            assert read_kinds(task).count("reclaimed") <= 1
            assert (task.attempts, task.status) == (0, "completed")
        wait_for_status(cluster.submit(seconds=0, turns=1), "completed")
    seqs = list(lives.events.order_by("seq").values_list("kind", flat=True))
    assert (seqs[0], seqs[-1]) == ("submitted", "completed")
