"""How a person likes the pages: one form, of which any field may be sent alone."""

from __future__ import annotations

import functools
import zoneinfo
from collections.abc import Sequence
from typing import Any
from urllib.parse import urlsplit, urlunsplit

from django import forms
from django.contrib import messages
from django.http import HttpResponseBase
from django.urls import reverse
from django.views.decorators.http import require_http_methods

from dashboard.access import PageRequest, allow
from dashboard.htmx import render_page, wants_part
from dashboard.preferences import DENSITIES, THEME_COOKIE, THEMES, Preferences, find_zone
from dashboard.saved import list_homes
from dashboard.views.workflows import SeeOther
from ledger.access import READ
from ledger.transitions.preferences import store_preferences

AREAS = frozenset(
    "Africa America Antarctica Arctic Asia Atlantic Australia Europe Indian Pacific".split()
)
YEAR = 365 * 86_400


@functools.cache
def list_zones() -> list[tuple[str, list[tuple[str, str]]]]:
    """The zones of this machine's tables by area; UTC stands before them."""
    areas: dict[str, list[tuple[str, str]]] = {"": [("UTC", "UTC")]}
    for name in sorted(zoneinfo.available_timezones()):
        area, slash, place = name.partition("/")
        if slash and area in AREAS:
            areas.setdefault(area, []).append((name, place.replace("_", " ")))
    return list(areas.items())


def check_zone(name: str) -> str:
    """The name of a zone of this machine's tables; raises ValidationError for another."""
    if name != "UTC" and find_zone(name) is find_zone(""):
        raise forms.ValidationError("This machine knows no such time zone.")
    return name


class SettingsForm(forms.Form):
    """What a person chooses."""

    zone = forms.CharField(label="Time zone", max_length=64)
    hours = forms.TypedChoiceField(
        label="Clock", choices=[(24, "14:37"), (12, "2:37 pm")], coerce=int
    )
    theme = forms.ChoiceField(label="Theme", choices=THEMES.items())
    density = forms.ChoiceField(label="Density", choices=DENSITIES.items())
    keys = forms.TypedChoiceField(
        label="Single keys",
        choices=[("on", "On"), ("off", "Off")],
        coerce=lambda text: text == "on",
    )

    view = forms.CharField(label="Tasks opens with", required=False, max_length=100)

    def __init__(self, *args: Any, homes: Sequence[tuple[str, str]] = (), **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.homes = [("", "All"), *homes]

    def clean_view(self) -> str:
        """A view that there is."""
        key: str = self.cleaned_data["view"]
        if key not in dict(self.homes):
            raise forms.ValidationError("There is no such view; choose another.")
        return key

    def list_choices(self) -> list[tuple[forms.BoundField, str]]:
        """The fields that are a choice of few, each with what there is to say of it."""
        helps = {
            "theme": "The key T changes it on every page.",
            "density": "Compact shows a fifth more rows.",
            "keys": "Letters that do something outside of fields. Off for speech input; "
            "Ctrl K, Tab and Enter work in any case.",
        }
        names = ("hours", "theme", "density", "keys")
        return [(self[name], helps.get(name, "")) for name in names]

    def clean_zone(self) -> str:
        """A zone that there is."""
        return check_zone(self.cleaned_data["zone"])


@require_http_methods(["GET", "HEAD", "POST"])
@allow(READ)
def show_settings(request: PageRequest) -> HttpResponseBase:
    """The form; what is posted of it is kept, the other fields stay as they are."""
    homes = list_homes(request.actor)
    kept = write_form(request.preferences)
    if kept["view"] not in dict(homes):
        kept["view"] = ""  # it was deleted, or is shared no more
    if request.method != "POST":
        return render_form(request, SettingsForm(kept, homes=homes))
    form = SettingsForm(kept | request.POST.dict(), homes=homes)
    if not form.is_valid():
        return render_form(request, form, 422)
    chosen = {name: form.cleaned_data[name] for name in form.fields if name in request.POST}
    if chosen:
        store_preferences(request.user.pk, chosen)
    if wants_part(request):
        theme = chosen.get("theme", request.preferences.theme)
        response: Any = render_page(
            request, "dashboard/settings.html", {"theme": theme}, part="theme"
        )
    else:
        messages.success(request, "Settings saved.")
        response = SeeOther(find_back(request))
    if "theme" in chosen:
        response.set_cookie(
            THEME_COOKIE, chosen["theme"], max_age=YEAR, httponly=True, samesite="Lax",
            secure=request.is_secure(),
        )  # fmt: skip
    return response  # type: ignore[no-any-return]


def write_form(preferences: Preferences) -> dict[str, Any]:
    """What stands in the form of what is kept."""
    return {
        "zone": preferences.zone or "UTC", "hours": preferences.hours, "theme": preferences.theme,
        "density": preferences.density, "keys": "on" if preferences.keys else "off",
        "view": preferences.view,
    }  # fmt: skip


def find_back(request: PageRequest) -> str:
    """The page of this site that the form was on, as the browser says."""
    page = urlsplit(request.headers.get("Referer", ""))
    if page.netloc != request.get_host() or not page.path.startswith("/"):
        return reverse("dashboard:settings")
    return urlunsplit(("", "", f"/{page.path.lstrip('/')}", page.query, ""))


def render_form(request: PageRequest, form: SettingsForm, status: int = 200) -> HttpResponseBase:
    """The page."""
    context = {"section": "settings", "form": form, "zones": list_zones()}
    return render_page(request, "dashboard/settings.html", context, status=status)
