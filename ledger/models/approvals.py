"""Questions to people, and their votes."""

from __future__ import annotations

from django.db import models
from django.db.models import Q

from ledger.ids import make_id
from ledger.models.task import Task

OPEN = "open"
APPROVED = "approved"
REJECTED = "rejected"
SENT_BACK = "sent_back"
EXPIRED = "expired"
VOID = "void"
QUESTION = "question"
LIMIT = "limit"
"""The two kinds: what a step asks, and what the engine asks when a limit is used up."""
KINDS = (QUESTION, LIMIT)
STATUSES = (OPEN, APPROVED, REJECTED, SENT_BACK, EXPIRED, VOID)


class Approval(models.Model):
    """A question that a task waits on. `digest` binds an answer to what was shown."""

    id = models.UUIDField(primary_key=True, default=make_id, editable=False)
    task = models.ForeignKey(Task, models.PROTECT, related_name="approvals")
    kind = models.CharField(max_length=10, default=QUESTION, db_default=QUESTION)
    step = models.CharField(max_length=100)
    step_index = models.IntegerField()
    turn = models.IntegerField()
    round = models.IntegerField()
    status = models.CharField(max_length=16, default=OPEN)
    subject = models.CharField(max_length=500)
    body = models.TextField(blank=True, default="")
    payload = models.JSONField(null=True, blank=True)
    attached = models.JSONField(null=True, blank=True)
    """Artifacts to be shown: a list `artifacts`, and a pair `diff`; each `{id, name, media_type,
    size, sha256}`."""

    risk = models.CharField(max_length=10, default="low")
    risk_by = models.CharField(max_length=10, default="step", db_default="step")
    """Who set the risk: `step`, or `workflow` where its floor is higher than what the step said."""

    outside_effect = models.BooleanField(default=False)
    money = models.BooleanField(default=False)
    form = models.JSONField(null=True, blank=True)
    proposal = models.JSONField(null=True, blank=True)
    digest = models.CharField(max_length=64)
    votes_needed = models.IntegerField(default=1)
    assignees = models.JSONField(null=True, blank=True)  # None: whoever may approve
    self_approval = models.BooleanField(default=False)

    # What the answer leads to is stored with the question, so that a process without the
    # workflow's code (web, sweeper) can act on it: the step after this one ("" on a last step)
    # and the names of all steps.
    then = models.CharField(max_length=10, default="next")
    next_step = models.CharField(max_length=100, blank=True, default="")
    steps = models.JSONField(default=list)
    send_back_to = models.CharField(max_length=100, blank=True, default="")
    on_reject = models.CharField(max_length=100, default="fail")
    on_expiry = models.CharField(max_length=100, default="dead")

    decision = models.CharField(max_length=16, blank=True, default="")
    values = models.JSONField(null=True, blank=True)
    comment = models.TextField(blank=True, default="")
    decided_by = models.CharField(max_length=200, blank=True, default="")
    requested_at = models.DateTimeField()
    expires_at = models.DateTimeField()
    # Who is asked next, `[[assignees, seconds], …]`, and how many of them were asked already.
    escalation = models.JSONField(null=True, blank=True)
    level = models.IntegerField(default=0, db_default=0)
    remind_seconds = models.FloatField(null=True, blank=True)
    remind_at = models.DateTimeField(null=True, blank=True)
    reminders = models.IntegerField(default=0, db_default=0)
    decided_at = models.DateTimeField(null=True, blank=True)
    applied_at = models.DateTimeField(null=True, blank=True)

    class Meta:
        db_table = "longwatch_approval"
        ordering = ("-requested_at", "-id")
        indexes = (
            models.Index(
                fields=["expires_at"], condition=Q(status=OPEN), name="longwatch_approval_expiry"
            ),
            models.Index(
                fields=["remind_at"],
                condition=Q(status=OPEN, remind_at__isnull=False),
                name="longwatch_approval_remind",
            ),
            models.Index(fields=["requested_at", "id"], name="longwatch_approval_list"),
            models.Index(
                fields=["decided_at", "id"],
                condition=Q(decided_at__isnull=False),
                name="longwatch_approval_decided",
            ),
            models.Index(
                fields=["step", "decided_at"],
                condition=Q(decided_at__isnull=False),
                name="longwatch_approval_step",
            ),
        )
        constraints = (
            models.UniqueConstraint(
                fields=["task"], condition=Q(status=OPEN), name="longwatch_approval_one_open"
            ),
            models.CheckConstraint(
                condition=Q(status__in=STATUSES), name="longwatch_approval_status_known"
            ),
            models.CheckConstraint(
                condition=Q(status=OPEN, decided_at__isnull=True)
                | (~Q(status=OPEN) & Q(decided_at__isnull=False)),
                name="longwatch_approval_decided_iff",
            ),
        )

    def __str__(self) -> str:
        return self.subject


class ApprovalVote(models.Model):
    """One person's vote on one request."""

    approval = models.ForeignKey(Approval, models.PROTECT, related_name="votes")
    by = models.CharField(max_length=200)
    decision = models.CharField(max_length=16)
    values = models.JSONField(null=True, blank=True)
    comment = models.TextField(blank=True, default="")
    at = models.DateTimeField()
    voided_at = models.DateTimeField(null=True, blank=True)

    class Meta:
        db_table = "longwatch_approval_vote"
        constraints = (
            models.UniqueConstraint(
                fields=["approval", "by"],
                condition=Q(voided_at__isnull=True),
                name="longwatch_vote_once",
            ),
        )

    def __str__(self) -> str:
        return f"{self.by}: {self.decision}"


class ApprovalLook(models.Model):
    """That a person was shown a question, and when last: what was revised since is told apart."""

    approval = models.ForeignKey(Approval, models.PROTECT, related_name="looks")
    by = models.CharField(max_length=200)
    at = models.DateTimeField()

    class Meta:
        db_table = "longwatch_approval_look"
        constraints = (
            models.UniqueConstraint(fields=["approval", "by"], name="longwatch_look_once"),
        )

    def __str__(self) -> str:
        return self.by
