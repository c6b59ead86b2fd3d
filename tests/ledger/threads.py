"""Threads that begin at the same instant, each on a connection of its own."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from django.db import connections

from ledger.errors import LedgerError

PATIENCE = 90.0
"""Seconds after which threads that wait for each other are a failure."""

MOST = 9


class Crew:
    """Up to MOST threads, kept with their connections from one race to the next."""

    def __init__(self) -> None:
        self._pool = ThreadPoolExecutor(MOST)

    def __call__(self, *acts: Callable[[], Any]) -> list[Any]:
        """What each returned, or the LedgerError that it raised. Any other error is raised here."""
        # A thread waits at the barrier, so no thread gets two of the acts.
        barrier = threading.Barrier(len(acts))

        def run(act: Callable[[], Any]) -> Any:
            barrier.wait(PATIENCE)
            try:
                return act()
            except LedgerError as error:
                return error

        futures = [self._pool.submit(run, act) for act in acts]
        return [future.result(PATIENCE) for future in futures]

    def close(self) -> None:
        """End the threads and their connections."""
        self(*[connections.close_all] * MOST)
        self._pool.shutdown()


def count_wins(results: Sequence[Any]) -> int:
    """How many were not refused."""
    return sum(not isinstance(result, LedgerError) for result in results)
