"""Workers on two hosts, each in a network of its own, and the database in a third. Lines are cut.

The longer form (LONGWATCH_TEST_PROOF) cuts for minutes, at random, under load.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import random
import statistics
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from django.db import connection

from ledger.models import Event, StepOutput, Task
from ledger.workflows import Workflow
from tests.crash.cluster_kit import SIGTERM, wait_for
from tests.crash.flows import paced
from tests.crash.host_flows import DEADLINE, hosted
from tests.crash.netns import NETWORK, Network, find_lack
from tests.crash.site_kit import SiteCluster, assert_whole, wait_for_status
from tests.outages.conftest import QUICK
from tests.pg import Cluster

pytestmark = [
    pytest.mark.postgresql, pytest.mark.hosts, pytest.mark.django_db(transaction=True),
    pytest.mark.timeout(900),
]  # fmt: skip

PROOF = bool(os.environ.get("LONGWATCH_TEST_PROOF"))
CUTS, TURNS, LONGEST = (24, 40, 15.0) if PROOF else (1, 10, 1.0)
A, B = "a", "b"


@dataclasses.dataclass
class Hosts:
    """Two hosts with two workers each."""

    network: Network
    sites: dict[str, SiteCluster]
    folder: Path

    def submit(self, workflow: Workflow, **pace: Any) -> Task:
        """A task with a sink of its own."""
        site = self.sites[A]
        sink, site.sink = site.sink, self.folder / f"sink-{time.monotonic_ns()}"
        site.sink.touch()
        try:
            return site.submit(workflow, **pace)
        finally:
            site.sink = sink

    def find_host(self, task: Task) -> str:
        """Which host holds the task; "" for none."""
        task.refresh_from_db()
        return task.lease_owner.partition(":")[0].removeprefix("host-")

    def find_listeners(self) -> set[str]:
        """Hosts whose workers are told of what is queued."""
        found = ask("SELECT client_addr::text FROM pg_stat_activity WHERE query LIKE 'LISTEN%%'")
        addresses = {row[0].partition("/")[0] for row in found}
        return {host for host in self.sites if self.network.find_address(host) in addresses}

    def wait_until_back(self, host: str) -> None:
        """Its workers do what the others do, by themselves."""

        def look() -> bool:
            task = wait_for_status(self.submit(paced, seconds=0.1, turns=1), "completed")
            return task.outputs.filter(worker__startswith=f"host-{host}:").exists()

        wait_for(f"host {host} works again", look, 60)


def ask(statement: str) -> list[Any]:
    with connection.cursor() as cursor:
        cursor.execute(statement, [])
        return list(cursor.fetchall())


@pytest.fixture
def hosts(site_env: dict[str, str], tmp_path: Path) -> Iterator[Hosts]:
    """Both at work, on a database that they reach by their lines alone. The test itself reaches it
    by its socket, which is a file."""
    assert not (lack := find_lack()), lack
    place = connection.settings_dict
    kept = {name: place[name] for name in ("HOST", "PORT", "NAME")}
    with Network(A, B) as network, network_server(network, kept) as server:
        connection.close()
        place.update(HOST=str(server.folder), PORT=str(server.port), NAME="postgres")
        try:
            with contextlib.ExitStack() as stack:
                sites = {host: start_host(stack, network, host, server, site_env, tmp_path)
                         for host in (A, B)}  # fmt: skip
                yield Hosts(network, sites, tmp_path)
        finally:
            connection.close()
            place.update(kept)


@contextlib.contextmanager
def network_server(network: Network, source: dict[str, Any]) -> Iterator[Cluster]:
    """A server in the database's namespace, with the tables of the test's own database."""
    server = Cluster(listen_addresses="*")
    with (server.data / "pg_hba.conf").open("a") as file:
        file.write(f"host all all {NETWORK} trust\n")
    try:
        with network.inside("db"):
            server.start()
        dump = [server.binaries / "pg_dump", "-h", source["HOST"], "-p", str(source["PORT"]),
                "-U", "postgres", "--no-owner", source["NAME"]]  # fmt: skip
        load = [server.binaries / "psql", "-q", "-h", server.folder, "-p", str(server.port),
                "-U", "postgres", "-v", "ON_ERROR_STOP=1", "postgres"]  # fmt: skip
        text = subprocess.run(dump, capture_output=True, check=True, timeout=60).stdout
        subprocess.run(load, input=text, check=True, timeout=60, stdout=subprocess.DEVNULL)
        yield server
    finally:
        server.close()


def start_host(
    stack: contextlib.ExitStack, network: Network, host: str, server: Cluster,
    environment: dict[str, str], folder: Path,
) -> SiteCluster:  # fmt: skip
    """Two workers there. Each host has a disk of its own, and a store that both see."""
    bounds = "" if PROOF else f"?{QUICK}"
    site = SiteCluster(
        folder, environment,
        LONGWATCH_DATABASE_URL="postgresql://postgres@"
        f"{network.find_database(host)}:{server.port}/postgres{bounds}",
        LONGWATCH_VAR=str(folder / f"disk-{host}"), LONGWATCH_ARTIFACTS=str(folder / "store"),
        LONGWATCH_WORKFLOWS="tests.crash.flows,tests.crash.host_flows",
        LONGWATCH_UNIT_MARGIN_SECONDS=1,
    )  # fmt: skip
    with network.inside(host):
        return stack.enter_context(site)


def read_stops(task: Task) -> list[tuple[str, float]]:
    """How attempts at it were stopped, and when."""
    file = Path(f"{task.input['sink']}.stopped")
    lines = file.read_text().splitlines() if file.exists() else []
    return [(line.split()[0], float(line.split()[1])) for line in lines]


def read_begins(task: Task) -> list[float]:
    """When attempts at it began."""
    return [float(line.split()[4]) for line in Path(task.input["sink"]).read_text().splitlines()]


def let_go(task: Task) -> None:
    Path(f"{task.input['sink']}.go").touch()


def check_one_cut(
    hosts: Hosts, cut_off: str, cut: Callable[[str], None], heal: Callable[[str], None]
) -> None:
    """A host with work in hand loses its line: others take its tasks over and go on, it stops what
    it does, and once the line is whole it works again."""
    tasks = [hosts.submit(hosted) for _ in range(4)]
    wait_for("all are held", lambda: all(hosts.find_host(task) for task in tasks))
    lost = [task for task in tasks if hosts.find_host(task) == cut_off]
    assert len(lost) == 2, "each host took as many as it has workers"
    cut(cut_off)
    for task in tasks:
        if task not in lost:
            let_go(task)
            wait_for_status(task, "completed")
    for task in lost:
        wait_for("another takes it over", lambda: len(read_begins(task)) >= 2)  # noqa: B023
        wait_for("who was cut off stops", lambda: read_stops(task))  # noqa: B023
        (_, stopped), *_ = read_stops(task)
        assert stopped - read_begins(task)[0] < DEADLINE + 5, "at its deadline, on a busy machine"
        let_go(task)
        wait_for_status(task, "completed")
        other = B if cut_off == A else A
        assert [row.worker.partition(":")[0] for row in task.outputs.all()] == [f"host-{other}"]
    assert hosts.sites[cut_off].process.poll() is None
    heal(cut_off)
    hosts.wait_until_back(cut_off)
    for task in lost:
        kinds = list(Event.objects.filter(task=task).values_list("kind", flat=True))
        assert "reclaimed" in kinds
        assert StepOutput.objects.filter(task=task).count() == 1


def shake_lines(hosts: Hosts) -> None:
    """Lines are cut and mended at random under load: each unit is accepted once, and one that was
    begun again had lost its lease."""
    seed = random.SystemRandom().randrange(10**6)
    print(f"seed {seed}")  # noqa: T201
    chance, net = random.Random(seed), hosts.network
    ways = [(net.silence, net.hear), (net.take_down, net.put_up)]
    tasks = []
    for _ in range(CUTS):
        more = [hosts.submit(paced, seconds=0.1, turns=TURNS) for _ in range(4)]
        tasks += more
        wait_for("they are under way", lambda: read_begins(more[0]))  # noqa: B023
        host, (cut, heal) = chance.choice([A, B]), chance.choice(ways)
        until = time.monotonic() + chance.uniform(0.2, LONGEST)
        cut(host)
        wait_for("the cut has lasted", lambda: time.monotonic() > until)  # noqa: B023
        heal(host)
    for task in tasks:
        wait_for_status(task, "completed")
        assert_whole(task, TURNS)
        kinds = list(Event.objects.filter(task=task).values_list("kind", flat=True))
        again = len(read_begins(task)) - task.outputs.count()
        assert again <= kinds.count("reclaimed") + kinds.count("released"), kinds
        assert "attempt_failed" not in kinds, "a cut is nobody's fault"
    for host in hosts.sites:
        hosts.wait_until_back(host)


def test_a_host_that_is_cut_off_loses_its_work_to_others_and_comes_back_by_itself(
    hosts: Hosts,
) -> None:
    wait_for("both listen", lambda: hosts.find_listeners() == {A, B})
    waits = []
    for _ in range(5):
        task = wait_for_status(hosts.submit(paced, seconds=0, turns=1), "completed")
        assert task.started_at is not None
        waits.append((task.started_at - task.created_at).total_seconds())
    assert statistics.median(waits) < 0.3, "they are told across the network, and don't look"
    check_one_cut(hosts, A, hosts.network.silence, hosts.network.hear)
    check_one_cut(hosts, B, hosts.network.take_down, hosts.network.put_up)
    shake_lines(hosts)
    for site in hosts.sites.values():
        site.signal(SIGTERM)
    for site in hosts.sites.values():
        assert site.wait_for_exit() == 0
