"""How a person likes the pages: stored by themselves alone."""

from __future__ import annotations

from typing import Any

from django.db import transaction

from ledger.auditing import write_entry
from ledger.events import Actor
from ledger.models import Preference
from ledger.queries.preferences import read_preferences


def store_preferences(user_key: Any, chosen: dict[str, Any]) -> None:
    """Keep `chosen`, some of the fields of a Preference, on record; the others stay as they are.

    Two tabs at once may both store; of a field that both chose the later one counts.
    """
    with transaction.atomic():
        before = read_preferences(user_key)
        Preference.objects.bulk_create([Preference(pk=user_key)], ignore_conflicts=True)
        Preference.objects.filter(pk=user_key).update(**chosen)
        who = Actor("user", str(user_key))
        write_entry(
            who, "change_settings", str(who),
            before={name: before.get(name) for name in chosen}, after=chosen,
        )  # fmt: skip
