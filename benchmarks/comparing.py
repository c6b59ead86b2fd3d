"""The peers on the same work in the same sitting: ours, each of them, ours, in every round."""

from __future__ import annotations

import statistics

from benchmarks.bench import Bench, Database
from benchmarks.peers.environments import NotInstalled, find_python

RUNS = {
    "postgresql": [
        ("absurd", ""), ("langgraph", ""), ("dbos", "direct"), ("dbos", "queue"),
    ],
    "sqlite": [("dbos", "direct")],
}  # fmt: skip
"""By database: the peer, and the way it is used."""


def name_peer(peer: str, way: str) -> str:
    """What its figures are called by."""
    return f"{peer} {way}".strip()


def measure_peers(bench: Bench) -> None:
    """W1 by each peer that can be installed; ratios to the mean of our two runs around them."""
    for database in bench.databases:
        found = _find_peers(bench, database)
        if not found:
            continue
        bench.say(f"{database.name}: peers, {bench.options.rounds} rounds")
        before = bench.run_product(database, "peers ours")
        for _ in range(bench.options.rounds):
            rates = {name: _run_peer(bench, database, *run) for name, run in found.items()}
            after = bench.run_product(database, "peers ours")
            ours = statistics.mean([before, after])
            for name, rate in rates.items():
                bench.keep(database, f"peer {name}", rate)
                bench.keep(database, f"peer {name} ratio", ours / rate)
            before = after


def _find_peers(bench: Bench, database: Database) -> dict[str, tuple[str, str, str]]:
    """By name: the Python of its environment, the peer, the way. What is missing is named."""
    found = {}
    for peer, way in RUNS[database.name]:
        try:
            found[name_peer(peer, way)] = (str(find_python(peer)), peer, way)
        except NotInstalled as error:
            line = f"{peer} can't be installed: {error}"
            if line not in bench.left_out:
                bench.left_out.append(line)
                bench.say(line)
    return found


def _run_peer(bench: Bench, database: Database, python: str, peer: str, way: str) -> float:
    """One run in an empty database of its own."""
    url = database.renew(migrated=False)
    command = [python, "-m", f"benchmarks.peers.{peer}", "--url", url, "--way", way]
    return float(bench.execute(url, *command, *bench.w1)["rate"])
