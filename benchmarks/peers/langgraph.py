"""LangGraph with its checkpointer for PostgreSQL, `durability="sync"`: a graph of so many nodes.

It has no queue: two processes take half of the tasks each.
"""

from __future__ import annotations

import argparse
from typing import Any, TypedDict

import psycopg
from langgraph.checkpoint.postgres import PostgresSaver
from langgraph.graph import END, START, StateGraph
from psycopg.rows import dict_row

from benchmarks import work
from benchmarks.peers import running


class State(TypedDict, total=False):
    """Of one task."""

    number: int
    output: dict[str, object]


def connect(url: str) -> psycopg.Connection[Any]:
    """As its documentation says."""
    return psycopg.connect(url, autocommit=True, prepare_threshold=0, row_factory=dict_row)


def run_worker(options: argparse.Namespace) -> None:
    """Compile the graph, run it once to be warm, then this worker's share."""
    graph: Any = StateGraph(State)
    names = [f"step-{step}" for step in range(options.steps)]
    for step, name in enumerate(names):

        def run_node(state: State, step: int = step) -> dict[str, object]:
            return {"output": work.make_output(state["number"], step)}

        graph.add_node(name, run_node)
    for before, after in zip([START, *names], [*names, END], strict=True):
        graph.add_edge(before, after)
    compiled = graph.compile(checkpointer=PostgresSaver(connect(options.url)))

    def run(number: int, thread: str = "task") -> None:
        config = {"configurable": {"thread_id": f"{thread}-{number}"}}
        compiled.invoke({"number": number}, config, durability="sync")

    run(options.worker, "warm")
    running.work_share(options, run)


def main() -> None:
    """One run in the empty database at `--url`."""
    options = running.parse_options()
    if options.worker is not None:
        return run_worker(options)
    with connect(options.url) as database:
        PostgresSaver(database).setup()
        rate = running.measure_shares(options)
        row: Any = database.execute(
            "SELECT count(*) AS stored FROM checkpoints WHERE thread_id LIKE 'task-%'"
        ).fetchone()
    running.print_rate(rate, row["stored"], options)


if __name__ == "__main__":
    main()
