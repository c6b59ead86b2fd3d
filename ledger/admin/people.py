"""How far each person sees: lanes, and whether contents."""

from __future__ import annotations

from typing import Any

from django import forms
from django.contrib import admin
from django.http import HttpRequest

from ledger.access import is_admin
from ledger.admin.base import AdminOnly
from ledger.auditing import write_entry
from ledger.errors import InvalidInput
from ledger.models import Reach
from ledger.tokens import check_lanes


class ReachForm(forms.ModelForm):  # type: ignore[type-arg]  # generic in the stubs only
    """Lanes are typed one a line."""

    lanes = forms.CharField(
        required=False,
        widget=forms.Textarea(attrs={"rows": 4}),
        help_text="One a line; empty: every lane. For them nothing exists outside of these.",
    )

    class Meta:
        model = Reach
        fields = ("user", "lanes", "payload")
        labels = {"payload": "Sees contents"}
        help_texts = {
            "payload": "Inputs, outputs, progress, questions, artifacts, logs and error texts. "
            "Without it a person sees statuses, times and names, and answers no question."
        }

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.initial["lanes"] = "\n".join(self.instance.lanes or ())

    def clean_lanes(self) -> list[str] | None:
        """The names, or None for all."""
        typed = self.cleaned_data["lanes"].strip()
        if not typed:
            return None
        try:
            return check_lanes(typed.splitlines())
        except InvalidInput as error:
            raise forms.ValidationError(error.reason) from None


@admin.register(Reach)
class ReachAdmin(AdminOnly):
    """Made and changed by admins. Who is limited in any way administers nothing."""

    form = ReachForm
    list_display = ("user", "lanes", "payload")
    list_select_related = ("user",)
    search_fields = ()

    def has_add_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        """Admins only."""
        return is_admin(request.user)

    def has_change_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        """Admins only."""
        return is_admin(request.user)

    def get_queryset(self, request: HttpRequest) -> Any:
        """All columns: the lanes are short."""
        return admin.ModelAdmin.get_queryset(self, request)

    def get_readonly_fields(self, request: HttpRequest, obj: Any = None) -> Any:
        """A reach stays its person's."""
        return ("user",) if obj else ()

    def save_model(self, request: HttpRequest, obj: Any, form: Any, change: bool) -> None:
        """Store it, on record with what was true before."""
        old = Reach.objects.filter(pk=obj.user_id).first()
        super().save_model(request, obj, form, change)
        write_entry(
            f"user:{request.user.pk}", "change_reach", f"user:{obj.user_id}",
            before=_describe(old) if old else None, after=_describe(obj),
        )  # fmt: skip


def _describe(row: Reach) -> dict[str, Any]:
    return {"lanes": row.lanes, "payload": row.payload}
