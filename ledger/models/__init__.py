"""The tables. Constraints and indexes live here; behaviour lives in `transitions`."""

from ledger.models.alerts import AlertCondition, AlertDelivery, AlertRule, Outbox
from ledger.models.approvals import Approval, ApprovalLook, ApprovalVote
from ledger.models.artifacts import Artifact, Blob, Upload, UploadPart
from ledger.models.bulk import BulkItem, BulkOperation
from ledger.models.effects import Effect
from ledger.models.handoffs import Handoff
from ledger.models.history import Event, Reservation, Spend, StepOutput
from ledger.models.hours import Hour, HourSum
from ledger.models.lane import Lane
from ledger.models.logs import LiveLog
from ledger.models.mailbox import Signal
from ledger.models.people import ApiToken, AuditEntry, Preference, Reach, Visit
from ledger.models.tallies import Tally
from ledger.models.task import Task
from ledger.models.views import SavedView
from ledger.models.worker import Worker

__all__ = [
    "AlertCondition",
    "AlertDelivery",
    "AlertRule",
    "ApiToken",
    "Approval",
    "ApprovalLook",
    "ApprovalVote",
    "Artifact",
    "AuditEntry",
    "Blob",
    "BulkItem",
    "BulkOperation",
    "Effect",
    "Event",
    "Handoff",
    "Hour",
    "HourSum",
    "Lane",
    "LiveLog",
    "Outbox",
    "Preference",
    "Reach",
    "Reservation",
    "SavedView",
    "Signal",
    "Spend",
    "StepOutput",
    "Tally",
    "Task",
    "Upload",
    "UploadPart",
    "Visit",
    "Worker",
]
