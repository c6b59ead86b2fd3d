"""Saved views of the task list: kept, changed, shared, pinned and thrown away by people."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any, Final
from uuid import UUID

from django.db import IntegrityError

from ledger import auditing, clock, sql
from ledger.errors import InvalidInput, NotAllowed, NotFound
from ledger.events import Actor
from ledger.models import SavedView
from ledger.queries.filters import match_filter
from ledger.queries.views import see_views

MAX_VIEWS: Final = 100
"""Views that one person keeps."""

MAX_PINS: Final = 12
"""Views that one person has among their tabs: each is counted whenever the tabs are."""

TAKEN: Final = "is that of another of your views"
MAX_FILTERS: Final = 30
MAX_COLUMNS: Final = 20


@dataclasses.dataclass(frozen=True, slots=True)
class ViewDraft:
    """What a view shows: (key, value) of the filters, names of columns, the order."""

    filters: Sequence[tuple[str, str]] = ()
    columns: Sequence[str] = ()
    sort: str = ""

    def check(self) -> None:
        """Raise InvalidInput, naming what is wrong."""
        if len(self.filters) > MAX_FILTERS:
            raise InvalidInput("filters", f"takes at most {MAX_FILTERS}")
        for key, value in self.filters:
            if "\0" in value or len(value) > 200:
                raise InvalidInput(key, "takes at most 200 characters")
            match_filter(key, [value])
        if len(self.columns) > MAX_COLUMNS or len(self.sort) > 20:
            raise InvalidInput("columns", f"takes at most {MAX_COLUMNS}")

    def list_values(self) -> dict[str, Any]:
        """As columns of the table."""
        pairs = [list(pair) for pair in self.filters]
        return {"filters": pairs, "columns": list(self.columns), "sort": self.sort}


def save_view(
    name: str, draft: ViewDraft, actor: Actor, *, shared: bool = False, pinned: bool = True
) -> SavedView:
    """A new view. Raises InvalidInput for a name that is taken, bad or one too many."""
    draft.check()
    name = _check_name(name)
    try:
        return _insert_view(name, draft, actor, shared=shared, pinned=pinned)
    except IntegrityError:  # the same form, sent twice at once
        raise InvalidInput("name", TAKEN) from None


def _insert_view(
    name: str, draft: ViewDraft, actor: Actor, *, shared: bool, pinned: bool
) -> SavedView:
    with sql.atomic():
        if SavedView.objects.filter(owner=str(actor)).count() >= MAX_VIEWS:
            raise InvalidInput("name", f"would be one more than {MAX_VIEWS}; delete another first")
        _check_free(name, actor)
        now = clock.read()
        pins = [str(actor)] if pinned and _count_pins(actor) < MAX_PINS else []
        view = SavedView.objects.create(
            name=name, owner=str(actor), shared=shared, pinned_by=pins, created_at=now,
            updated_at=now, **draft.list_values(),
        )  # fmt: skip
        _write(actor, "save_view", view, after=_show(view))
    return view


def change_view(
    view_id: UUID,
    actor: Actor,
    *,
    name: str | None = None,
    draft: ViewDraft | None = None,
    shared: bool | None = None,
) -> None:
    """Another name, other contents, shared or not. Raises NotFound, NotAllowed, InvalidInput."""
    changes: dict[str, Any] = {}
    if draft is not None:
        draft.check()
        changes |= draft.list_values()
    if name is not None:
        changes["name"] = _check_name(name)
    if shared is not None:
        changes["shared"] = shared
    with sql.atomic():
        view = _lock_own(view_id, actor)
        if changes.get("name", view.name) != view.name:
            _check_free(changes["name"], actor)
        if shared is False:  # who can't see it has no tab of it either
            changes["pinned_by"] = [one for one in view.pinned_by if one == view.owner]
        before = _show(view)
        SavedView.objects.filter(pk=view.pk).update(updated_at=clock.now(), **changes)
        view.refresh_from_db()
        _write(actor, "change_view", view, before=before, after=_show(view))


def pin_view(view_id: UUID, actor: Actor, pinned: bool) -> None:
    """Keep it among one's own tabs, or not. Raises NotFound, InvalidInput for one too many."""
    with sql.atomic():
        view = see_views(actor).select_for_update().filter(pk=view_id).first()
        if view is None:
            raise NotFound("view", view_id)
        others = [one for one in view.pinned_by if one != str(actor)]
        if pinned and _count_pins(actor) >= MAX_PINS:
            raise InvalidInput("pin", f"takes at most {MAX_PINS} views; take another away first")
        pins = [*others, str(actor)] if pinned else others
        SavedView.objects.filter(pk=view.pk).update(pinned_by=pins)
        _write(actor, "pin_view" if pinned else "unpin_view", view)


def delete_view(view_id: UUID, actor: Actor) -> None:
    """Throw it away, for those whom it was shared with too. Raises NotFound, NotAllowed."""
    with sql.atomic():
        view = _lock_own(view_id, actor)
        _write(actor, "delete_view", view, before=_show(view))
        SavedView.objects.filter(pk=view.pk).delete()


def _lock_own(view_id: UUID, actor: Actor) -> SavedView:
    view = see_views(actor).select_for_update().filter(pk=view_id).first()
    if view is None:
        raise NotFound("view", view_id)
    if view.owner != str(actor):
        raise NotAllowed("Only who made a view changes it. Save it under a name of your own.")
    return view


def _check_name(name: str) -> str:
    name = name.strip()
    if not 1 <= len(name) <= 60 or not name.isprintable():
        raise InvalidInput("name", "takes 1 to 60 visible characters")
    return name


def _check_free(name: str, actor: Actor) -> None:
    if SavedView.objects.filter(owner=str(actor), name=name).exists():
        raise InvalidInput("name", TAKEN)


def _count_pins(actor: Actor) -> int:
    """Pins are few and their table is small: counted in Python, which both databases can."""
    pinned = see_views(actor).values_list("pinned_by", flat=True)
    return sum(str(actor) in pins for pins in pinned)


def _show(view: SavedView) -> dict[str, Any]:
    names = ("name", "filters", "columns", "sort", "shared")
    return {name: getattr(view, name) for name in names}


def _write(actor: Actor, action: str, view: SavedView, **what: Any) -> None:
    auditing.write_entry(actor, action, f"view:{view.pk}", **what)
