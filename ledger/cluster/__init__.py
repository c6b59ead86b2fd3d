"""The worker processes. The only package that names django_q: it gives the pool of processes that
is respawned and recycled; the queue, the leases, the retries and the times are the ledger's.
"""

from ledger.cluster.companions import Companion, start_companion
from ledger.cluster.pool import LedgerBroker
from ledger.cluster.supervisor import supervise

__all__ = ["Companion", "LedgerBroker", "start_companion", "supervise"]
