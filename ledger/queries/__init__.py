"""Every read model of the ledger, each with a bound on what it reads and returns.

Plain dicts in the shape of the public API, times as aware datetimes, money as decimal strings: the
API renders them as JSON and the pages as HTML, so both tell the same state.
"""

from ledger.queries.approvals import find_approval, list_approvals, show_approval
from ledger.queries.artifacts import find_artifact, list_artifacts, show_artifact
from ledger.queries.fleet import (
    Fleet,
    count_workers,
    describe_known,
    find_workflow,
    list_workers,
    list_workflows,
    load_fleet,
)
from ledger.queries.history import list_events, list_outputs, live_output
from ledger.queries.pages import (
    StepSum,
    count_waiting,
    find_output,
    list_asked,
    list_decided,
    list_from,
    list_latest_events,
    list_latest_outputs,
    list_waiting,
    name_tokens,
    read_tag,
    sum_steps,
)
from ledger.queries.paging import DEFAULT_LIMIT, MAX_LIMIT, Page
from ledger.queries.tasks import (
    COUNT_CAP,
    TaskFilter,
    count_by_status,
    find_task,
    list_stalled,
    list_tasks,
    read_revision,
    show_task,
    task_json,
)

__all__ = [
    "COUNT_CAP",
    "DEFAULT_LIMIT",
    "MAX_LIMIT",
    "Fleet",
    "Page",
    "StepSum",
    "TaskFilter",
    "count_by_status",
    "count_waiting",
    "count_workers",
    "describe_known",
    "find_approval",
    "find_artifact",
    "find_output",
    "find_task",
    "find_workflow",
    "list_approvals",
    "list_artifacts",
    "list_asked",
    "list_decided",
    "list_events",
    "list_from",
    "list_latest_events",
    "list_latest_outputs",
    "list_outputs",
    "list_stalled",
    "list_tasks",
    "list_waiting",
    "list_workers",
    "list_workflows",
    "live_output",
    "load_fleet",
    "name_tokens",
    "read_revision",
    "read_tag",
    "show_approval",
    "show_artifact",
    "show_task",
    "sum_steps",
    "task_json",
]
