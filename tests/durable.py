"""What the products that tests start run with: short leases on databases that never meet a power
cut, or, with LONGWATCH_TEST_DURABLE=1, what the benchmarks run with.

Then every database forces its commits to the disk, and leases, heartbeats and the grace of a stop
are the product's own. What waits for the end of a lease waits 20 times as long, deadlines too.
"""

from __future__ import annotations

from ledger.conf import Tunables
from tests.pg import DURABLE as DURABLE

LEASE = Tunables().lease_seconds if DURABLE else 3.0
HEARTBEAT = Tunables().heartbeat_seconds if DURABLE else 1.0
PATIENCE = LEASE / 3.0
"""How many times as long a condition may take as with a lease of 3 s."""


def bound_leases(**more: str) -> dict[str, str]:
    """The short leases and these other bounds for a process's environment; or none of them."""
    short = {
        "LONGWATCH_LEASE_SECONDS": f"{LEASE:g}",
        "LONGWATCH_HEARTBEAT_SECONDS": f"{HEARTBEAT:g}",
    }
    return {} if DURABLE else short | more
