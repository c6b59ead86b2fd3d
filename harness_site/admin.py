"""People and roles, without a shell: users, and the groups that say what they may do."""

from __future__ import annotations

from typing import Any

from django.contrib import admin
from django.contrib.auth.admin import GroupAdmin, UserAdmin
from django.contrib.auth.models import Group, User
from django.forms import CheckboxSelectMultiple
from django.http import HttpRequest

from ledger.access import ROLES, is_admin
from ledger.auditing import write_entry

admin.site.unregister([User, Group])


class ByRole:
    """Admins do everything but delete: whom the record names stays known; deactivate instead."""

    def has_module_permission(self, request: HttpRequest) -> bool:
        """Whether the app is listed."""
        return is_admin(request.user)

    def has_view_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        """Whether rows are shown."""
        return is_admin(request.user)

    def has_add_permission(self, request: HttpRequest) -> bool:
        """Whether rows can be added."""
        return is_admin(request.user)

    def has_change_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        """Whether this row can be changed."""
        return is_admin(request.user)

    def has_delete_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        """Never."""
        return False


@admin.register(User)
class PersonAdmin(ByRole, UserAdmin):  # type: ignore[type-arg]  # generic in the stubs only
    """Users. Their groups are their roles; only a superuser makes or changes superusers."""

    list_display = ("username", "email", "is_active", "is_superuser", "last_login")
    list_filter = ("is_active", "groups")
    filter_horizontal = ()
    fieldsets = (
        (None, {"fields": ("username", "password")}),
        ("Person", {"fields": ("first_name", "last_name", "email")}),
        ("Roles", {
            "fields": ("is_active", "groups", "is_superuser"),
            "description": "viewer reads, approver also answers, operator also submits and steers, "
                           "admin also edits raw rows and people. Which lanes a person sees, and "
                           "whether contents, is on the page Reach of people.",
        }),
        ("Dates", {"fields": ("last_login", "date_joined")}),
    )  # fmt: skip
    readonly_fields = ("last_login", "date_joined")

    def formfield_for_manytomany(self, db_field: Any, request: HttpRequest, **kwargs: Any) -> Any:
        """Roles are ticked."""
        widget = CheckboxSelectMultiple
        return super().formfield_for_manytomany(db_field, request, **{**kwargs, "widget": widget})

    def get_readonly_fields(self, request: HttpRequest, obj: Any = None) -> Any:
        """Superuser is what only superusers give."""
        fixed = super().get_readonly_fields(request, obj)
        return fixed if request.user.is_superuser else (*fixed, "is_superuser")

    def has_change_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        """An admin can't set a superuser's password and become one."""
        if obj is not None and obj.is_superuser and not request.user.is_superuser:
            return False
        return super().has_change_permission(request, obj)

    def get_object(self, request: HttpRequest, object_id: str, from_field: Any = None) -> Any:
        """The user, with what was true before the form is saved."""
        person = super().get_object(request, object_id, from_field)
        if person is not None:
            person.described = describe_person(person)
        return person

    def log_addition(self, request: HttpRequest, obj: Any, message: Any) -> Any:
        """On record in the audit log too."""
        record_person(request, "add_user", obj)
        return super().log_addition(request, obj, message)

    def log_change(self, request: HttpRequest, obj: Any, message: Any) -> Any:
        """As above."""
        record_person(request, "change_user", obj)
        return super().log_change(request, obj, message)


def record_person(request: HttpRequest, action: str, person: Any) -> None:
    """Write down who gave whom which roles."""
    write_entry(
        f"user:{request.user.pk}", action, f"user:{person.pk}",
        before=getattr(person, "described", None), after=describe_person(person),
    )  # fmt: skip


def describe_person(person: Any) -> dict[str, Any]:
    """What of a user is on record: name and roles, no password."""
    return {
        "username": person.get_username(), "active": person.is_active,
        "superuser": person.is_superuser,
        "groups": sorted(person.groups.values_list("name", flat=True)),
    }  # fmt: skip


@admin.register(Group)
class RoleAdmin(ByRole, GroupAdmin):
    """Groups. The four roles keep their names; others are the project's own."""

    fields = ("name",)

    def has_change_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        """A role that is renamed would be nobody's."""
        if obj is not None and obj.name in ROLES:
            return False
        return super().has_change_permission(request, obj)

    def save_model(self, request: HttpRequest, obj: Any, form: Any, change: bool) -> None:
        """Store it, on record with its name before: questions are for groups by their names."""
        old = Group.objects.filter(pk=obj.pk).first()
        super().save_model(request, obj, form, change)
        write_entry(
            f"user:{request.user.pk}", "change_group" if old else "add_group", f"group:{obj.pk}",
            before={"name": old.name} if old else None, after={"name": obj.name},
        )  # fmt: skip
