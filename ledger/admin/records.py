"""The append-only tables, workers and tokens: to be read; a token can be revoked."""

from __future__ import annotations

import datetime as dt
from typing import Any

from django.contrib import admin, messages
from django.http import HttpRequest, HttpResponse
from django.utils.cache import add_never_cache_headers

from ledger.admin.base import AdminOnly, show_field
from ledger.errors import LedgerError
from ledger.models import (
    AlertCondition,
    AlertDelivery,
    AlertRule,
    ApiToken,
    Approval,
    ApprovalLook,
    ApprovalVote,
    Artifact,
    AuditEntry,
    Blob,
    BulkItem,
    BulkOperation,
    Effect,
    Event,
    Handoff,
    Hour,
    HourSum,
    Lane,
    LiveLog,
    Outbox,
    Preference,
    Reservation,
    SavedView,
    Signal,
    Spend,
    StepOutput,
    Tally,
    Upload,
    UploadPart,
    Visit,
    Worker,
)
from ledger.tokens import revoke_token, rotate_token


class RecordAdmin(AdminOnly):
    """A table that people read: every column, none of them editable."""

    hidden: tuple[str, ...] = ()

    def get_fields(self, request: HttpRequest, obj: Any = None) -> Any:
        """Every column, in the order of the table."""
        return [show_field(f) for f in self.opts.concrete_fields if f.name not in self.hidden]


class OfTask(RecordAdmin):
    """Rows of a task, newest first, found by its id."""

    ordering = ("-id",)
    search_fields = ("task__id__exact",)


@admin.register(StepOutput)
class OutputAdmin(OfTask):
    """Accepted outputs."""

    list_display = ("id", "task_id", "seq", "step_name", "turn", "round", "superseded_in_round",
                    "worker", "fence", "finished_at")  # fmt: skip


@admin.register(Event)
class EventAdmin(OfTask):
    """What happened."""

    list_display = ("id", "task_id", "seq", "kind", "actor", "step", "turn", "fence", "at")


@admin.register(Spend)
class SpendAdmin(OfTask):
    """Tokens and money, in nano-units."""

    list_display = ("id", "task_id", "key", "tokens_in", "tokens_out", "cost", "stale", "at")


@admin.register(Reservation)
class ReservationAdmin(OfTask):
    """Amounts announced for calls, money in nano-units; an open one counts as used."""

    list_display = ("id", "task_id", "key", "state", "tokens", "cost", "step", "turn", "at")


@admin.register(Effect)
class EffectAdmin(OfTask):
    """Actions on the outside world. They are settled on the task's page."""

    list_display = ("id", "task_id", "name", "step", "turn", "round", "status", "tries", "late",
                    "begun_at", "done_at")  # fmt: skip


@admin.register(Handoff)
class HandoffAdmin(OfTask):
    """What units were told of the work before them."""

    list_display = ("id", "task_id", "step", "turn", "round", "fence", "digest", "at")


@admin.register(LiveLog)
class LiveLogAdmin(OfTask):
    """Ends of logs: of what runs, and of attempts that were lost or given back."""

    list_display = ("id", "task_id", "step", "turn", "fence", "size", "at")


@admin.register(Signal)
class SignalAdmin(OfTask):
    """What was sent to tasks; read when `consumed_seq` is set."""

    list_display = ("id", "task_id", "name", "by", "at", "consumed_seq")


@admin.register(Approval)
class ApprovalAdmin(OfTask):
    """Questions. They are answered on the approvals page, by who may."""

    list_display = ("id", "task_id", "subject", "status", "risk", "decided_by", "requested_at")


@admin.register(ApprovalVote)
class VoteAdmin(RecordAdmin):
    """Votes on questions."""

    ordering = ("-id",)
    search_fields = ("approval__task__id__exact",)
    list_display = ("id", "approval_id", "by", "decision", "at", "voided_at")


@admin.register(Artifact)
class ArtifactAdmin(OfTask):
    """Names of stored bytes."""

    list_display = ("id", "task_id", "name", "step", "media_type", "created_by", "created_at",
                    "expired_at")  # fmt: skip


@admin.register(Blob)
class BlobAdmin(RecordAdmin):
    """Stored bytes, by digest."""

    ordering = ("digest",)
    search_fields = ("digest__exact",)
    search_help_text = "A SHA-256"
    list_display = ("digest", "size", "created_at", "corrupt_at", "corrupt_why")


@admin.register(Upload)
class UploadAdmin(RecordAdmin):
    """Files on their way in, in pieces."""

    list_display = ("id", "name", "offset", "size", "created_by", "created_at", "expires_at",
                    "artifact_id")  # fmt: skip


@admin.register(UploadPart)
class UploadPartAdmin(RecordAdmin):
    """Pieces of uploads."""

    ordering = ("-id",)
    search_fields = ("upload__id__exact",)
    list_display = ("id", "upload_id", "offset", "blob_id")


@admin.register(AuditEntry)
class AuditAdmin(RecordAdmin):
    """Who did what."""

    search_fields = ("task__exact",)
    list_display = ("id", "at", "actor", "action", "target", "allowed")


@admin.register(Worker)
class WorkerAdmin(RecordAdmin):
    """Worker processes; no task depends on a row here."""

    list_display = ("owner", "units", "draining", "started_at", "seen_at", "stopped_at")


@admin.register(Hour)
class HourAdmin(RecordAdmin):
    """Which hours are summed, and where a task changed since."""

    list_display = ("hour", "changed")


@admin.register(HourSum)
class HourSumAdmin(RecordAdmin):
    """What ended in the hours of the last days."""

    list_display = ("hour", "lane", "workflow", "version", "status", "took", "tasks", "cost")


@admin.register(Tally)
class TallyAdmin(RecordAdmin):
    """Running totals behind /metrics."""

    list_display = ("name", "workflow", "detail", "value")


@admin.register(Lane)
class LaneAdmin(RecordAdmin):
    """What is set for lanes; it is changed on their page."""

    list_display = ("name", "weight", "cap", "rate", "per", "burst", "paused", "updated_at")


@admin.register(ApiToken)
class TokenAdmin(RecordAdmin):
    """API tokens. `manage.py token create` makes one, here it ends."""

    hidden = ("digest",)
    actions = ("rotate_tokens", "revoke_tokens")
    list_display = ("name", "scopes", "lanes", "payload", "created_by", "created_at",
                    "expires_at", "last_used_at", "owner", "revoked_at")  # fmt: skip

    def get_queryset(self, request: HttpRequest) -> Any:
        """All columns: there are few tokens, and their scopes are short."""
        return admin.ModelAdmin.get_queryset(self, request)

    @admin.action(description="Rotate the selected token: the old one ends in 24 hours")
    def rotate_tokens(self, request: HttpRequest, queryset: Any) -> None:
        """The new one is shown this once, to who asked."""
        chosen = list(queryset[:2])
        if len(chosen) != 1:
            self.message_user(request, "Choose one token.", messages.ERROR)
            return
        try:
            _, text = rotate_token(
                str(chosen[0].pk), by=f"user:{request.user.pk}", overlap=dt.timedelta(hours=24)
            )
        except LedgerError as error:
            self.message_user(request, str(error), messages.ERROR)
            return
        # Into this answer, not into the message of a next one: that would be kept in a cookie.
        request.new_token = text  # type: ignore[attr-defined]

    def changelist_view(self, request: HttpRequest, *args: Any, **kwargs: Any) -> Any:
        """The list; after a rotation the new token instead, which is kept nowhere."""
        response = super().changelist_view(request, *args, **kwargs)
        if text := getattr(request, "new_token", ""):
            response = HttpResponse(f"{text}\n", content_type="text/plain")
            add_never_cache_headers(response)
        return response

    @admin.action(description="Revoke the selected tokens for good")
    def revoke_tokens(self, request: HttpRequest, queryset: Any) -> None:
        """End each, on record."""
        by = f"user:{request.user.pk}"
        ended = [row for row in queryset if revoke_token(row.pk, by=by)]
        self.message_user(request, f"{len(ended)} revoked.", messages.SUCCESS)


@admin.register(AlertRule)
class AlertRuleAdmin(RecordAdmin):
    """Who is told of what; made and changed on the page Alerts. Keys are not shown."""

    hidden = ("secret", "old_secret", "target")
    list_display = ("name", "channel", "kinds", "enabled", "failures", "next_at", "removed_at")


@admin.register(AlertDelivery)
class AlertDeliveryAdmin(RecordAdmin):
    """What was sent, waits, or was given up."""

    list_display = ("id", "rule_id", "seq", "state", "attempts", "created_at", "error")


@admin.register(Outbox)
class OutboxAdmin(RecordAdmin):
    """What people may be told of."""

    list_display = ("id", "kind", "task", "at", "routed_at")


@admin.register(AlertCondition)
class AlertConditionAdmin(RecordAdmin):
    """What is so just now, and was told when it began."""

    list_display = ("key", "kind", "since")


@admin.register(SavedView)
class SavedViewAdmin(RecordAdmin):
    """Views of the task list that people keep."""

    list_display = ("name", "owner", "shared", "updated_at")


@admin.register(Visit)
class VisitAdmin(RecordAdmin):
    """When people looked last."""

    list_display = ("actor", "seen_at", "since")


@admin.register(Preference)
class PreferenceAdmin(RecordAdmin):
    """How people like the pages; each sets it on the page Settings."""

    list_display = ("user", "zone", "theme", "density", "keys")
    list_select_related = ("user",)


@admin.register(BulkOperation)
class BulkOperationAdmin(RecordAdmin):
    """One action on many tasks."""

    list_display = ("id", "action", "status", "total", "actor", "created_at", "finished_at")


@admin.register(BulkItem)
class BulkItemAdmin(RecordAdmin):
    """What came of it for each task."""

    list_display = ("id", "operation_id", "task", "outcome", "status_seen", "done_at", "why")
    search_fields = ("task__exact",)


@admin.register(ApprovalLook)
class ApprovalLookAdmin(RecordAdmin):
    """Which questions people were shown."""

    list_display = ("approval", "by", "at")
