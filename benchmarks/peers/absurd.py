"""Absurd: its queue with two workers, every setting at its default. Its SQL is absurdctl's."""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import psycopg
from absurd_sdk import Absurd

from benchmarks import work, workers
from benchmarks.peers import running


def make_app(url: str) -> Any:
    """Its client, with the task of so many steps."""
    app = Absurd(url, queue_name="default")

    @app.register_task("flow")
    def run_flow(params: dict[str, int], context: Any) -> dict[str, int]:
        number = params["number"]
        for step in range(params["steps"]):
            context.step(f"step-{step}", lambda step=step: work.make_output(number, step))
        return {"number": number}

    return app


def measure(app: Any, database: psycopg.Connection[Any], options: argparse.Namespace) -> float:
    """Steps per second from the first task spawned to the last one completed."""

    def is_done() -> bool:
        row: Any = database.execute(
            "SELECT count(*) FROM absurd.t_default WHERE state = 'completed'"
        ).fetchone()
        return bool(row[0] == options.tasks)

    def spawn(number: int) -> None:
        app.spawn("flow", {"number": number, "steps": options.steps})

    return running.measure_queue(options, spawn, is_done)


def main() -> None:
    """One run in the empty database at `--url`."""
    options = running.parse_options()
    if options.worker is not None:
        app = make_app(options.url)
        print(workers.READY, flush=True)
        app.start_worker(worker_id=f"w{options.worker}")
        return
    around = os.environ | {"ABSURD_DATABASE_URL": options.url, "PGDATABASE": options.url}
    tool = Path(sys.executable).parent / "absurdctl"
    subprocess.run([tool, "init"], env=around, check=True, stdout=subprocess.DEVNULL)
    app = make_app(options.url)
    app.create_queue("default")
    with psycopg.connect(options.url, autocommit=True) as database:
        rate = measure(app, database, options)
        row: Any = database.execute("SELECT count(*) FROM absurd.c_default").fetchone()
    running.print_rate(rate, row[0], options)


if __name__ == "__main__":
    main()
