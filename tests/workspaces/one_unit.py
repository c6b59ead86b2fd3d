"""`python -m tests.workspaces.one_unit NAME`: a worker that runs one unit for each line on stdin,
gives the task back as in a drain, and writes a line."""

from __future__ import annotations

import os
import sys
import time

import django


def main() -> None:
    django.setup()

    from ledger.guardian import Guardian
    from ledger.runner import open_engine, run_resident

    guardian = Guardian()
    owner = f"{sys.argv[1]}:{os.getpid()}:boot"
    engine = open_engine(owner, guardian)
    guardian.start()
    for _ in sys.stdin:
        before = engine.units
        done = run_resident(
            owner=owner,
            stop=lambda before=before: engine.units > before,
            until=time.monotonic() + 60,
            guardian=guardian,
            idle=lambda seconds: time.sleep(min(seconds, 0.05)),
        )
        sys.stdout.write(f"{done}\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
