"""`python -m tests.agents.deadly_host NAME`: a host whose workers die in the middle of units.

For each line on stdin, a number, it forks a worker that runs one unit and dies at that many
instants from its start, if the unit has as many; of a negative one right before the checkpoint
otherwise; 0 lets it live. The product knows nothing of it: `sys.monitoring` tells when one of the
functions begins or returns.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from typing import Any

import django

TOOL = 4


def list_instants() -> tuple[list[Any], Any]:
    """The functions whose begin and return are instants, and the one that comes before the
    checkpoint: what is announced and recorded of answers and calls, each tool, each artifact."""
    from harness_site.workflows.code_task import _agents, checking
    from ledger.agents.kits.files import _Files
    from ledger.agents.recording import Recorder
    from ledger.context import Context

    where = [
        Context._begin_effect, Context._finish_effect, Context.save_artifact, Context.handoff,
        Recorder.wrap_tool_execute, _Files.edit_file, checking.run_check, _agents.tick_item,
    ]  # fmt: skip
    return [fn.__code__ for fn in where], Context.snapshot_workspace.__code__


def die_at(count: int) -> None:
    """Kill this process at the instant of that number."""
    codes, last = list_instants()
    monitoring, events, seen = sys.monitoring, sys.monitoring.events, 0

    def strike(code: Any, *_: Any) -> None:
        nonlocal seen
        seen += 1
        if seen >= abs(count) or (count < 0 and code is last):
            os.kill(os.getpid(), signal.SIGKILL)

    monitoring.use_tool_id(TOOL, "deadly")
    for event in (events.PY_START, events.PY_RETURN):
        monitoring.register_callback(TOOL, event, strike)
    for code in codes:
        monitoring.set_local_events(TOOL, code, events.PY_START | events.PY_RETURN)
    monitoring.set_local_events(TOOL, last, events.PY_START)


def run_unit(name: str, count: int) -> int:
    """Be a worker for one unit; how many were run."""
    from ledger.guardian import Guardian
    from ledger.runner import open_engine, run_resident

    guardian = Guardian()
    owner = f"{name}:{os.getpid()}:boot"
    engine = open_engine(owner, guardian)
    guardian.start()
    if count:
        die_at(count)
    return run_resident(
        owner=owner, stop=lambda: engine.units > 0, until=time.monotonic() + 60,
        guardian=guardian, idle=lambda seconds: time.sleep(min(seconds, 0.05)),
    )  # fmt: skip


def main() -> None:
    """Fork a worker for each line, and say how it ended."""
    django.setup()
    from django.db import connections

    from ledger.workflows import load_all

    load_all()
    list_instants()  # which loads all that a worker needs, before the fork
    for line in sys.stdin:
        connections.close_all()
        pid = os.fork()
        if not pid:
            try:
                os._exit(0 if run_unit(sys.argv[1], int(line)) == 1 else 3)
            finally:
                os._exit(4)
        status = os.waitpid(pid, 0)[1]
        print(os.waitstatus_to_exitcode(status), flush=True)  # noqa: T201


if __name__ == "__main__":
    main()
