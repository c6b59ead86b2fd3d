"""How the person who asks likes the pages: time zone, clock, theme, density, keys, first view."""

from __future__ import annotations

import contextlib
import dataclasses
import datetime as dt
import functools
import zoneinfo
from collections.abc import Iterator
from contextvars import ContextVar
from typing import Any

from django.utils.functional import SimpleLazyObject

from ledger.queries.preferences import read_preferences

THEMES = {"system": "As the system", "light": "Light", "dark": "Dark"}
DENSITIES = {"roomy": "Roomy", "compact": "Compact"}
THEME_COOKIE = "longwatch_theme"
"""What the pages before signing in know of anybody."""


@dataclasses.dataclass(frozen=True, slots=True)
class Preferences:
    """`zone` is a name of the IANA table, empty while nobody has chosen one (shown in UTC); `hours`
    is 12 or 24; `keys` whether single letters do something; `view` the name of a list's view."""

    zone: str = ""
    hours: int = 24
    theme: str = "system"
    density: str = "roomy"
    keys: bool = True
    view: str = ""

    @property
    def zone_name(self) -> str:
        """The zone that times are shown in."""
        return self.zone if find_zone(self.zone) is not dt.UTC else "UTC"

    @property
    def tzinfo(self) -> dt.tzinfo:
        """The zone itself."""
        return find_zone(self.zone)


@functools.cache
def find_zone(name: str) -> dt.tzinfo:
    """The zone of that name; UTC for none, and for one that this machine's tables don't have."""
    try:
        return zoneinfo.ZoneInfo(name) if name and name != "UTC" else dt.UTC
    except (zoneinfo.ZoneInfoNotFoundError, ValueError, OSError):
        return dt.UTC


DEFAULTS = Preferences()
_current: ContextVar[Preferences] = ContextVar("longwatch_preferences", default=DEFAULTS)


def read_current() -> Preferences:
    """Those of whom the page is made for just now; the defaults outside of a request."""
    return _current.get()


@contextlib.contextmanager
def prefer(request: Any) -> Iterator[None]:
    """Until the end of the block the pages are made as whoever asks likes them.

    They are on the request too, as `request.preferences`. They come in the query of the person's
    role; of a superuser, who needs none, they are read when something asks for them.
    """
    request.preferences = SimpleLazyObject(functools.partial(_load, request))
    token = _current.set(request.preferences)
    try:
        yield
    finally:
        _current.reset(token)


@contextlib.contextmanager
def using(preferences: Preferences) -> Iterator[None]:
    """Until the end of the block: for what is made after its request, and for tests."""
    token = _current.set(preferences)
    try:
        yield
    finally:
        _current.reset(token)


def _load(request: Any) -> Preferences:
    if request.user.is_authenticated:
        likes = getattr(request, "likes", None)  # as a rule they came with the role
        return Preferences(**(read_preferences(request.user.pk) if likes is None else likes))
    theme = request.COOKIES.get(THEME_COOKIE, "")
    return Preferences(theme=theme if theme in THEMES else "system")
