"""Raw rows for admins: tasks through one guarded write, everything else to be read only."""

from ledger.admin.people import ReachAdmin
from ledger.admin.records import RecordAdmin
from ledger.admin.task import TaskAdmin

__all__ = ["ReachAdmin", "RecordAdmin", "TaskAdmin"]
