"""The page of a task's raw row."""

from __future__ import annotations

from typing import Any

from django.contrib import admin
from django.http import HttpRequest
from django.urls import reverse
from django.utils.html import format_html_join

from ledger import conf, states
from ledger.access import is_admin
from ledger.admin.base import AdminOnly, show_field
from ledger.admin.forms import TaskForm
from ledger.models import (
    Approval,
    Artifact,
    AuditEntry,
    Effect,
    Event,
    Handoff,
    LiveLog,
    Reservation,
    Signal,
    Spend,
    StepOutput,
    Task,
)

RECORDS = (StepOutput, Event, Spend, Reservation, Effect, Handoff, LiveLog, Signal, Approval,
           Artifact, AuditEntry)  # fmt: skip

_ERROR, _RESULT, _ANSWER = (
    show_field(Task._meta.get_field(name)) for name in ("error", "result", "answer")
)
_TIMES = [
    show_field(Task._meta.get_field(f"{name}_at"))
    for name in ("created", "started", "claimed", "finished", "updated")
]

HELD = (
    "A worker holds this task. Saving takes it away: the unit in hand is not charged, its late "
    "output is refused, and it runs again. To lose no work, pause the task first."
)
FINAL = "This task is final. Its title and tags can be changed, nothing else."


class StatusFilter(admin.SimpleListFilter):
    """By status: the known ones, since asking the table which there are would read all of it."""

    title = "status"
    parameter_name = "status"

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, str]]:
        """Every status."""
        return [(status, status) for status in states.STATUSES]

    def queryset(self, request: HttpRequest, queryset: Any) -> Any:
        """The tasks in the chosen one."""
        return queryset.filter(status=self.value()) if self.value() else queryset


@admin.register(Task)
class TaskAdmin(AdminOnly):
    """Tasks: a raw edit is one guarded write of the ledger."""

    list_display = ("id", "title", "workflow", "workflow_version", "lane", "status",
                    "status_reason", "step_name", "updated_at")  # fmt: skip
    list_filter = (StatusFilter,)
    search_fields = ("id__exact",)
    readonly_fields = ("record", "shown_lease", _ERROR, _RESULT, _ANSWER,
                       "shown_used", "id", "workflow", "status_reason", "total_steps", "round",
                       "fence", "submitted_by", "idempotency_key", *_TIMES)  # fmt: skip

    def has_change_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        """Admins only."""
        return is_admin(request.user)

    def get_form(self, request: HttpRequest, obj: Any = None, change: bool = False,
                 **kwargs: Any) -> Any:  # fmt: skip
        """The form, for who asks."""
        return type("TaskForm", (TaskForm,), {"request": request})

    def get_fieldsets(self, request: HttpRequest, obj: Any = None) -> Any:
        """What stands where; the first part says what saving does."""
        status = obj.status if obj else ""
        note = HELD if status == states.RUNNING else FINAL if status in states.FINAL else ""
        return (
            ("Edit", {"fields": ("reason", "revision"), "description": note}),
            ("Position", {"fields": (
                ("status", "status_reason"), "available_at", "shown_lease",
                ("step_name", "step_index", "turn"), ("workflow", "workflow_version"),
                "pause_requested", "cancel_requested")}),
            ("Labels", {"fields": ("title", "tags", ("lane", "priority"))}),
            ("Data", {"fields": ("input", "progress", "feedback", _ERROR, _RESULT,
                                 _ANSWER)}),
            ("Bounds", {"fields": (
                ("limit_units", "limit_tokens", "limit_cost"), ("limit_wall", "stall_after"),
                "deadline_at", "shown_used", ("max_repairs", "repair_count", "round"),
                ("attempts", "reclaims", "releases"))}),
            ("Record", {"fields": (
                "record", "id", "submitted_by", "idempotency_key", "fence", "total_steps",
                *_TIMES)}),
        )  # fmt: skip

    def save_form(self, request: HttpRequest, form: Any, change: bool) -> Any:
        """The row that was edited: the form's last check has written it."""
        return form.instance

    def save_model(self, request: HttpRequest, obj: Any, form: Any, change: bool) -> None:
        """Nothing is left to do; a write of the whole row would undo what others wrote since."""

    def save_related(self, request: HttpRequest, form: Any, formsets: Any, change: bool) -> None:
        """Nothing, as above."""

    @admin.display(description="Records")
    def record(self, task: Task) -> str:
        """Links to the rows of this task in the append-only tables."""
        links = (
            (reverse(f"admin:{model._meta.app_label}_{model._meta.model_name}_changelist"),
             task.pk, model._meta.verbose_name_plural)
            for model in RECORDS
        )  # fmt: skip
        return format_html_join(" · ", '<a href="{}?q={}">{}</a>', links)

    @admin.display(description="Lease")
    def shown_lease(self, task: Task) -> str:
        """Who holds it until when."""
        if task.lease_until is None:
            return "-"
        return f"{task.lease_owner} until {task.lease_until:%Y-%m-%d %H:%M:%S} UTC"

    @admin.display(description="Used")
    def shown_used(self, task: Task) -> str:
        """Units, tokens and money so far."""
        money = conf.format_money(task.used_cost)
        tokens = f"{task.used_tokens_in} tokens in, {task.used_tokens_out} out"
        return f"{task.used_units} units, {tokens}, {money} spent"
