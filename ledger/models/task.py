"""The task: the durable record that everything else hangs on."""

from __future__ import annotations

from django.db import models
from django.db.models import F, Q
from django.db.models.functions import Abs, Least
from django.db.models.lookups import Exact, GreaterThanOrEqual, IsNull

from ledger import states
from ledger.ids import make_id
from ledger.models.oneof import OneOf

# PostgreSQL reads, plans and prepares the text of every check for each statement that writes a
# row: as one comparison for each column and one list for each rule they were 87 of the 285
# microseconds of a checkpoint there. So each column stands once where it can.
_LEASED_IFF = Q(
    Exact(Q(status=states.RUNNING), IsNull(F("lease_until"), False)),
    Exact(Q(lease_owner=""), IsNull(F("lease_until"), True)),
)
_UNFINISHED, _FINISHED = sorted(states.UNFINISHED), sorted(states.FINISHED)
_FINISHED_IFF = Q(OneOf("status", _UNFINISHED, Q(finished_at__isnull=True), _FINISHED))
_WALL_COUNTS = Q(OneOf("status", sorted(states.WALL_RUNS))) & ~Q(
    OneOf("status_reason", sorted(states.TIMERS))
)
_WALL_IFF = Q(
    Exact(IsNull(F("wall_left"), True), _WALL_COUNTS),
    Exact(IsNull(F("wall_left"), False), IsNull(F("wall_until"), True)),
)
# `round` is as large as `repair_count` at least.
_INTEGERS = Least(
    "attempts", "reclaims", "releases", "repair_count", "max_repairs", "step_index", "turn",
    "total_steps", "children_open", F("round") - F("repair_count"), 100 - Abs("priority"),
)  # fmt: skip
_COUNTERS = Least(
    "fence", "used_units", "used_tokens_in", "used_tokens_out", "used_cost", "limit_units",
    "limit_tokens", "limit_cost", "reserved_tokens", "reserved_cost", "event_seq", "revision",
    "beat", _INTEGERS,
)  # fmt: skip
_COUNTERS_OK = Q(GreaterThanOrEqual(_COUNTERS, 0))


class Task(models.Model):
    """What a client submitted: input, position, progress, limits, lease and outcome.

    Money (`*_cost`) is in nano-units, times are the database's, `rank` is microseconds.
    """

    id = models.UUIDField(primary_key=True, default=make_id, editable=False)
    workflow = models.CharField(max_length=100)
    workflow_version = models.CharField(max_length=50)
    definition_digest = models.CharField(max_length=64)
    lane = models.CharField(max_length=100, default="default")
    priority = models.SmallIntegerField(default=0)
    rank = models.BigIntegerField()
    title = models.CharField(max_length=200, blank=True, default="")
    tags = models.JSONField(default=list, blank=True)
    submitted_by = models.CharField(max_length=200)
    # Of a workflow with a concurrency bound: the value that tasks share their places by, and how
    # many places; a task holds one from its first claim for as long as it is queued or runs.
    # A completed one's `held_key` stands, and says nothing.
    concurrency_key = models.CharField(max_length=200, null=True, blank=True)  # noqa: DJ001  NULL: no bound
    concurrency_limit = models.IntegerField(null=True, blank=True)
    held_key = models.CharField(max_length=200, null=True, blank=True)  # noqa: DJ001  NULL: holds none
    idempotency_key = models.CharField(max_length=200, null=True, blank=True)  # noqa: DJ001  NULL: no key, exempt from uniqueness
    body_digest = models.CharField(max_length=64)
    input = models.JSONField()

    status = models.CharField(max_length=16)
    status_reason = models.CharField(max_length=40, blank=True, default="")
    error = models.JSONField(null=True, blank=True)
    step_index = models.IntegerField(default=0)
    step_name = models.CharField(max_length=100)
    turn = models.IntegerField(default=0)
    total_steps = models.IntegerField()
    progress = models.JSONField(default=dict, blank=True)
    progress_done = models.FloatField(null=True, blank=True)
    progress_total = models.FloatField(null=True, blank=True)
    progress_note = models.CharField(max_length=500, blank=True, default="")
    result = models.JSONField(null=True, blank=True)
    answer = models.JSONField(null=True, blank=True)
    workspace = models.CharField(max_length=64, blank=True, default="")

    available_at = models.DateTimeField()
    lease_owner = models.CharField(max_length=200, blank=True, default="")
    lease_until = models.DateTimeField(null=True, blank=True)
    fence = models.BigIntegerField(default=0)
    claimed_at = models.DateTimeField(null=True, blank=True)
    attempts = models.IntegerField(default=0)
    reclaims = models.IntegerField(default=0)
    releases = models.IntegerField(default=0)
    round = models.IntegerField(default=0)
    repair_count = models.IntegerField(default=0)
    max_repairs = models.IntegerField()
    feedback = models.JSONField(null=True, blank=True)

    limit_units = models.BigIntegerField()
    limit_tokens = models.BigIntegerField()
    limit_cost = models.BigIntegerField()
    limit_wall = models.FloatField()
    # Exactly one of the two is set: while the wall limit counts it is a point in time, so that
    # neither a claim nor a checkpoint has to add anything up; while it stands, seconds left.
    wall_until = models.DateTimeField(null=True, blank=True)
    wall_left = models.FloatField(null=True, blank=True)
    deadline_at = models.DateTimeField(null=True, blank=True)
    used_units = models.BigIntegerField(default=0)
    used_tokens_in = models.BigIntegerField(default=0)
    used_tokens_out = models.BigIntegerField(default=0)
    used_cost = models.BigIntegerField(default=0)
    # Announced for calls under way, and for those whose outcome nobody reported. Like what is used,
    # a parent's has its children's in it.
    reserved_tokens = models.BigIntegerField(default=0, db_default=0)
    reserved_cost = models.BigIntegerField(default=0, db_default=0)
    # What a used-up limit does, "dead" or "ask", and whether the submitter may answer then: stored,
    # since a sweep or a web process may not have the workflow's code.
    on_limit = models.CharField(max_length=10, default="dead", db_default="dead")
    self_approval = models.BooleanField(default=False, db_default=False)

    cancel_requested = models.BooleanField(default=False)
    cancel_by = models.CharField(max_length=200, blank=True, default="")
    pause_requested = models.BooleanField(default=False)
    pause_by = models.CharField(max_length=200, blank=True, default="")
    stall_after = models.FloatField()
    last_progress_at = models.DateTimeField()
    parent = models.ForeignKey(
        "self", models.PROTECT, null=True, blank=True, related_name="children", db_index=False
    )
    # Of a child: the number of the parent's output that spawned it, and whether the parent has
    # counted its end. Of a parent: its unfinished children spawned up to there are to be ended.
    parent_seq = models.BigIntegerField(null=True, blank=True)
    parent_told = models.BooleanField(default=False, db_default=False)
    children_open = models.IntegerField(default=0)
    copied_from = models.ForeignKey(
        "self", models.PROTECT, null=True, blank=True, related_name="copies", db_index=False
    )
    cascade_upto = models.BigIntegerField(null=True, blank=True)
    # What a task that waits for a signal or for children waits for, and what then; the question
    # of one that waits for people is in its own table.
    waits = models.JSONField(null=True, blank=True)
    # Of a task that undoes its effects first: how it then ends, `{status, reason, error, actor,
    # data}`, the last being what its last event says. It stays while a failed compensation has
    # made it dead.
    ending = models.JSONField(null=True, blank=True)
    event_seq = models.BigIntegerField(default=0)
    revision = models.BigIntegerField(default=1)
    beat = models.BigIntegerField(default=0)
    created_at = models.DateTimeField()
    started_at = models.DateTimeField(null=True, blank=True)
    finished_at = models.DateTimeField(null=True, blank=True)
    updated_at = models.DateTimeField()
    # When a person first opened its page after its end: what gave up is kept until then.
    seen_at = models.DateTimeField(null=True, blank=True)
    # By retention: since when its contents are going, and, once they are gone, after how many days.
    thinned_at = models.DateTimeField(null=True, blank=True)
    thinned_days = models.FloatField(null=True, blank=True)

    class Meta:
        db_table = "longwatch_task"
        ordering = ("-created_at", "-id")
        # Nothing that a heartbeat, a report or an in-slice checkpoint writes is indexed, so those
        # stay heap-only updates on PostgreSQL.
        indexes = (
            models.Index(
                fields=["lane", "workflow", "workflow_version", "rank", "id"],
                condition=Q(status=states.QUEUED),
                name="longwatch_task_claim",
            ),
            models.Index(
                fields=["lane", "workflow", "workflow_version", "concurrency_key", "rank", "id"],
                condition=Q(
                    status=states.QUEUED, concurrency_key__isnull=False, held_key__isnull=True
                ),
                name="longwatch_task_keyed",
            ),
            models.Index(
                fields=["lane", "workflow", "workflow_version", "rank", "id"],
                condition=Q(status=states.QUEUED, held_key__isnull=False),
                name="longwatch_task_begun",
            ),
            models.Index(
                fields=["workflow", "held_key"],
                condition=Q(held_key__isnull=False, finished_at__isnull=True),
                name="longwatch_task_holding",
            ),
            models.Index(
                fields=["available_at", "id"],
                condition=Q(status=states.SCHEDULED),
                name="longwatch_task_due",
            ),
            models.Index(
                fields=["available_at", "id"],
                condition=Q(status=states.WAITING),
                name="longwatch_task_waiting",
            ),
            models.Index(
                fields=["priority"],
                condition=Q(status=states.WAITING, status_reason=states.BUDGET),
                name="longwatch_task_budget",
            ),
            models.Index(
                fields=["id"], condition=Q(status=states.RUNNING), name="longwatch_task_running"
            ),
            # Of what runs its holder judges the time. By the owner, which no checkpoint and no
            # heartbeat changes.
            models.Index(
                fields=["wall_until"],
                condition=Q(wall_until__isnull=False, lease_owner=""),
                name="longwatch_task_overdue",
            ),
            models.Index(
                fields=["deadline_at"],
                condition=Q(deadline_at__isnull=False, finished_at__isnull=True),
                name="longwatch_task_deadline",
            ),
            models.Index(
                fields=["parent"],
                condition=Q(parent__isnull=False),
                name="longwatch_task_parent",
            ),
            models.Index(
                fields=["copied_from"],
                condition=Q(copied_from__isnull=False),
                name="longwatch_task_copied",
            ),
            models.Index(
                fields=["parent"],
                condition=Q(parent__isnull=False, finished_at__isnull=False, parent_told=False),
                name="longwatch_task_untold",
            ),
            models.Index(
                fields=["id"],
                condition=Q(cascade_upto__isnull=False),
                name="longwatch_task_cascade",
            ),
            models.Index(fields=["created_at", "id"], name="longwatch_task_created"),
            models.Index(fields=["status", "created_at", "id"], name="longwatch_task_status"),
            # What code of the same process submits is nobody's own.
            models.Index(
                fields=["submitted_by", "created_at"],
                condition=~Q(submitted_by="system"),
                name="longwatch_task_mine",
            ),
            models.Index(
                fields=["finished_at"],
                condition=Q(finished_at__isnull=False),
                name="longwatch_task_finished",
            ),
        )
        constraints = (
            models.CheckConstraint(condition=_LEASED_IFF, name="longwatch_task_lease_iff_running"),
            models.CheckConstraint(condition=_FINISHED_IFF, name="longwatch_task_finished_iff"),
            models.CheckConstraint(condition=_WALL_IFF, name="longwatch_task_wall_iff"),
            models.CheckConstraint(condition=_COUNTERS_OK, name="longwatch_task_counters"),
            models.UniqueConstraint(
                fields=["submitted_by", "idempotency_key"],
                condition=Q(idempotency_key__isnull=False),
                name="longwatch_task_key",
            ),
        )

    def __str__(self) -> str:
        return f"{self.id} {self.title or self.workflow}"
