"""The columns of a task: all, and those that a claim hands over."""

from ledger.models import Task

TASK_COLUMNS = [str(field.column) for field in Task._meta.concrete_fields]

CLAIM_COLUMNS = [
    "id",
    "fence",
    "lease_owner",
    "workflow",
    "workflow_version",
    "definition_digest",
    "lane",
    "title",
    "submitted_by",
    "step_index",
    "step_name",
    "turn",
    "total_steps",
    "attempts",
    "reclaims",
    "releases",
    "round",
    "repair_count",
    "max_repairs",
    "input",
    "progress",
    "feedback",
    "answer",
    "workspace",
    "limit_units",
    "limit_tokens",
    "limit_cost",
    "used_units",
    "used_tokens_in",
    "used_tokens_out",
    "used_cost",
    "parent_id",
    "ending",
    "event_seq",
    "claimed_at",
]
"""In the order of the fields of `ledger.sql.Claimed`."""
