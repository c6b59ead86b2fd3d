"""What people can be told of, and by which ways."""

from __future__ import annotations

from typing import Final

from ledger.corruption import ARTIFACT_CORRUPT
from ledger.outbox import LOST_TWICE
from ledger.outcomes import RISKS as RISKS

EMAIL, WEBHOOK, APPRISE = "email", "webhook", "apprise"
CHANNELS: Final = {
    EMAIL: "E-mail", WEBHOOK: "Signed webhook", APPRISE: "Other service (apprise)",
}  # fmt: skip

TEST = "test"
STALLED, NO_WORKER, LIMIT_NEAR, QUEUE_OLD = "stalled", "no_worker", "limit_near", "queue_old"
APPROVALS: Final = frozenset({"approval_requested", "approval_reminded"})

KINDS: Final = {
    "approval_requested": "Approval asked for",
    "approval_reminded": "Approval still open",
    "dead": "Task gave up",
    "failed": "Task failed",
    "cancelled": "Task cancelled",
    LOST_TWICE: "Second worker lost at one step",
    ARTIFACT_CORRUPT: "Artifact corrupt",
    STALLED: "Task stalled",
    NO_WORKER: "No worker for what is queued",
    LIMIT_NEAR: "Most of a limit used",
    QUEUE_OLD: "Queue waits too long",
}
"""Kind -> what it is called. The last four are so for a while, and told when they begin."""
