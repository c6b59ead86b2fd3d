"""How a person likes the pages."""

from __future__ import annotations

from typing import Any

from ledger.access import LIKES
from ledger.models import Preference


def read_preferences(user_key: Any) -> dict[str, Any]:
    """What the person with that primary key has chosen of LIKES; empty for nothing. One query."""
    return Preference.objects.filter(pk=user_key).values(*LIKES).first() or {}
