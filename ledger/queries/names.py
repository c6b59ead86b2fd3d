"""How people and tokens are called, of any number of both in one query."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from django.contrib.auth import get_user_model
from django.core.exceptions import ValidationError
from django.db.models import CharField, QuerySet, Value
from django.db.models.functions import Cast

from ledger.models import ApiToken

_TEXT = CharField()


def name_callers(actors: Iterable[str]) -> dict[str, str]:
    """The names of those actors that are users (`user:3`) or tokens (`token:ID`) of this site."""
    users: Any = get_user_model()
    kinds = {"user": (users, users.USERNAME_FIELD), "token": (ApiToken, "name")}
    keys: dict[str, set[Any]] = {kind: set() for kind in kinds}
    for actor in actors:
        kind, _, text = actor.partition(":")
        if kind in kinds and (key := _read_key(kinds[kind][0], text)) is not None:
            keys[kind].add(key)
    parts = [_select_names(kind, *kinds[kind], found) for kind, found in keys.items() if found]
    if not parts:
        return {}
    rows = parts[0].union(*parts[1:]) if parts[1:] else parts[0]
    return {f"{kind}:{_read_key(kinds[kind][0], text)}": str(name) for kind, text, name in rows}


def _select_names(kind: str, model: Any, field: str, keys: set[Any]) -> QuerySet[Any, Any]:
    named = model._default_manager.filter(pk__in=keys).order_by()
    return named.values_list(Value(kind, _TEXT), Cast("pk", _TEXT), Cast(field, _TEXT))  # type: ignore[no-any-return]


def _read_key(model: Any, text: str) -> Any:
    """A primary key; None for one of another user model, or made up by other code."""
    try:
        return model._meta.pk.to_python(text)
    except (ValueError, ValidationError):
        return None
