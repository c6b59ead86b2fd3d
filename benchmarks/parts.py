"""The parts of a benchmark on the work that every runner does; README.md says what each is."""

from __future__ import annotations

import statistics

from benchmarks.bench import SLICE_ZERO, Bench, Database
from benchmarks.comparing import measure_peers
from benchmarks.databases import PostgreSQL
from benchmarks.loads import measure_idle, measure_many, measure_w3

LATENCY_ROUNDS = 3
"""Of W2: each takes 8 s whatever is measured, and its medians hardly move."""
ANSWER_ROUNDS = 2
"""Half a minute each."""
TREE_ROUNDS = 2
"""Each of seven checkpoints."""
COMMIT_ROUNDS = 3
"""Two runs each, of a count that hardly moves; each waits 11 s for the server to have counted."""


def measure_w1(bench: Bench) -> None:
    """Steps per second of the product, each run between two of the raw loop; commits per unit."""
    for database in bench.databases:
        shapes = {"": {}} if database.name == "sqlite" else {"": {}, " slice 0": SLICE_ZERO}
        bench.say(f"{database.name}: W1, {bench.options.rounds} rounds")
        before = bench.run_reference(database)
        for _ in range(bench.options.rounds):
            for name, settings in shapes.items():
                rate = bench.run_product(database, f"w1 ours{name}", **settings)
                after = bench.run_reference(database)
                bench.keep(database, f"w1 ratio{name}", rate / statistics.mean([before, after]))
                before = after
        if isinstance(database, PostgreSQL):
            _count_commits(bench, database)


def _count_commits(bench: Bench, database: PostgreSQL) -> None:
    """What the server counts for each unit: of a run of twice the tasks less one of them, as the
    peers' are counted, so that no start, end or idle look is part of it; and of the whole of one,
    from the first submission on until all is stopped and counted."""
    tasks, steps = bench.options.tasks, bench.options.steps
    units = tasks * steps
    for _ in range(min(bench.options.rounds, COMMIT_ROUNDS)):
        runs = []
        for count in (tasks, 2 * tasks):
            sizes = (f"--tasks={count}", f"--steps={steps}")
            found = bench.run(database, "benchmarks.product", "commits", *sizes)
            commits, fsyncs = database.count_commits()
            runs.append((commits - found["commits"] - found["polls"], fsyncs - found["fsyncs"]))
            bench.keep(database, "hot", database.read_hot_share())
        one, two = runs
        bench.keep(database, "commits", (two[0] - one[0]) / units)
        bench.keep(database, "commits whole", one[0] / units)
        bench.keep(database, "fsyncs", (two[1] - one[1]) / units)


def measure_w2(bench: Bench) -> None:
    """From a submission to the first instruction; a bare LISTEN loop first, where there is one."""
    rounds = min(bench.options.rounds, LATENCY_ROUNDS)
    for database in bench.databases:
        bench.say(f"{database.name}: W2, {rounds} rounds")
        runs = {"w2 ours": "benchmarks.product"}
        if database.name == "postgresql":
            runs = {"w2 raw": "benchmarks.raw_postgresql", **runs}
        for _ in range(rounds):
            for label, module in runs.items():
                bench.keep_quantiles(database, label, module, "w2", bench.options.latencies)


def measure_answers(bench: Bench) -> None:
    """From an answer by the API to the first instruction of the next unit."""
    for database in bench.databases:
        bench.say(f"{database.name}: answers")
        for _ in range(min(bench.options.rounds, ANSWER_ROUNDS)):
            bench.keep_quantiles(
                database, "answers", "benchmarks.product", "answers", bench.options.answers
            )


def measure_tree(bench: Bench) -> None:
    """A checkpoint of a large workspace beside hashing it."""
    tree = f"--distribution={bench.options.tree}"
    for database in bench.databases:
        bench.say(f"{database.name}: a large workspace")
        for _ in range(min(bench.options.rounds, TREE_ROUNDS)):
            _keep_tree(bench, database, tree)


def _keep_tree(bench: Bench, database: Database, tree: str) -> None:
    for name, value in bench.run(database, "benchmarks.checkpoint", tree).items():
        bench.keep(database, f"tree {name}", value)


PARTS = {
    "w1": measure_w1,
    "peers": measure_peers,
    "w2": measure_w2,
    "w3": measure_w3,
    "many": measure_many,
    "idle": measure_idle,
    "answers": measure_answers,
    "tree": measure_tree,
}
"""By the name that `--only` takes, in the order of a whole run."""
