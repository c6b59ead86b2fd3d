"""What all pages share: admins only, lists that stay cheap on huge tables, values cut to size."""

from __future__ import annotations

import datetime as dt
import json
from typing import Any

from django.contrib import admin
from django.core.paginator import Paginator
from django.db import models
from django.http import HttpRequest
from django.urls import reverse
from django.utils.functional import cached_property
from django.utils.html import format_html

from ledger.access import is_admin
from ledger.api.edge import noting_refusals

MAX_ROWS = 2_000
"""Rows that a list pages through; beyond them one searches."""

SHOWN = 4_000
"""Characters of a long value on a page."""

_LONG = (models.JSONField, models.TextField)

_TURNS = {
    code: f"\\u{code:04x}"
    for code in (0x200E, 0x200F, *range(0x202A, 0x202F), *range(0x2066, 0x206A))
}
"""Characters that turn the direction of writing: text that hides what it says."""


class BoundedPaginator(Paginator):  # type: ignore[type-arg]  # generic in the stubs only
    """Counts no further than MAX_ROWS: a full count reads the whole table at every page."""

    @cached_property
    def count(self) -> int:
        """Rows that can be paged to."""
        rows: Any = self.object_list
        return int(rows[:MAX_ROWS].count())


class OnRecord:
    """Pages of the admin whose writes, and whose refusals, are in the audit log."""

    def changelist_view(self, request: HttpRequest, *args: Any, **kwargs: Any) -> Any:
        """The list, and what is done to the rows that are ticked."""
        with noting_refusals(request):
            return super().changelist_view(request, *args, **kwargs)  # type: ignore[misc]

    def changeform_view(self, request: HttpRequest, *args: Any, **kwargs: Any) -> Any:
        """The page of a row."""
        with noting_refusals(request):
            return super().changeform_view(request, *args, **kwargs)  # type: ignore[misc]


class AdminOnly(OnRecord, admin.ModelAdmin):  # type: ignore[type-arg]  # generic in the stubs only
    """For superusers and the group `admin`; nothing is added or deleted here."""

    paginator = BoundedPaginator
    show_full_result_count = False
    list_per_page = 50
    list_max_show_all = 0
    sortable_by = ()
    actions: Any = None
    search_help_text = (
        f"The id of a task. The list ends after {MAX_ROWS:,} rows; search for others."
    )

    def has_module_permission(self, request: HttpRequest) -> bool:
        """Whether the app is listed."""
        return is_admin(request.user)

    def has_view_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        """Whether rows are shown."""
        return is_admin(request.user)

    def has_add_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        """Never: rows come from clients and workers."""
        return False

    def has_change_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        """Never, unless a page of its own knows how."""
        return False

    def has_delete_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        """Never: the record is append-only."""
        return False

    def get_list_display(self, request: HttpRequest) -> Any:
        """The columns of a list, times to the second."""
        times = {f.name for f in self.opts.concrete_fields if isinstance(f, models.DateTimeField)}
        return [
            show_field(self.opts.get_field(name)) if name in times else name
            for name in self.list_display
        ]

    def get_object(self, request: HttpRequest, object_id: str, from_field: Any = None) -> Any:
        """The row, or None also for a key that PostgreSQL takes for an error."""
        try:
            return None if "\0" in object_id else super().get_object(request, object_id, from_field)
        except OverflowError:  # SQLite's, of a key of another table that is no integer of its
            return None

    def get_queryset(self, request: HttpRequest) -> Any:
        """Rows; a list leaves out what may be large."""
        rows = super().get_queryset(request)
        match = request.resolver_match
        if match and str(match.url_name).endswith("_changelist"):
            return rows.defer(*(f.name for f in self.opts.concrete_fields if isinstance(f, _LONG)))
        return rows


def show_field(field: Any) -> Any:
    """How a column is shown: long values cut, relations as links without a query, times to the
    second."""
    if not isinstance(field, (*_LONG, models.ForeignKey, models.DateTimeField)):
        return str(field.name)

    def show(row: Any) -> str:
        value = getattr(row, field.attname)
        if value is None or value == "":
            return "-"
        if isinstance(field, models.ForeignKey):
            return link_row(field.related_model, value)
        if isinstance(field, models.DateTimeField):
            return f"{value.astimezone(dt.UTC):%Y-%m-%d %H:%M:%S} UTC"
        return cut_value(value)

    show.__name__ = field.name
    show.short_description = field.verbose_name  # type: ignore[attr-defined]  # the admin's own way
    return show


def link_row(model: Any, key: Any) -> str:
    """A link to the page of the row with this key."""
    name = f"admin:{model._meta.app_label}_{model._meta.model_name}_change"
    return format_html('<a href="{}">{}</a>', reverse(name, args=[key]), key)


def cut_value(value: Any) -> str:
    """A text or JSON value in its own lines, at most SHOWN characters of it."""
    text = value if isinstance(value, str) else json.dumps(value, indent=2, ensure_ascii=False)
    if len(text) > SHOWN:
        text = f"{text[:SHOWN]}\n… {len(text) - SHOWN} more characters"
    return format_html('<pre tabindex="0">{}</pre>', text.translate(_TURNS))
