"""What people and tokens that submit may have done with what they sent."""

from __future__ import annotations

from uuid import UUID

from ledger.access import OPERATE
from ledger.models import ApiToken


def may_run_code(submitted_by: str) -> bool:
    """May code that this submitter uploaded be run? A token needs the scope `operate` for that."""
    kind, _, name = submitted_by.partition(":")
    if kind == "token":
        return OPERATE in list_token_scopes(name)
    return kind in {"user", "cli", "system"}


def list_token_scopes(token: str) -> list[str]:
    """The scopes of an API token by its id; none for one that is not known."""
    try:
        found = ApiToken.objects.filter(pk=UUID(token)).values_list("scopes", flat=True).first()
    except ValueError:
        return []
    return list(found or [])
