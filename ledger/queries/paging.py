"""Pages of a list: a bounded number of rows and the cursor of the next page.

A cursor is the key of the last row shown, and the next page begins below that row as it is stored.
It carries no time: SQLite keeps three digits of a second, so a time that went out and came back
would not be equal to itself.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from uuid import UUID

from django.db.models import Model, Q, QuerySet, Subquery

from ledger.errors import InvalidInput

DEFAULT_LIMIT = 50
MAX_LIMIT = 500
MAX_SEQ = 2**63 - 1


@dataclasses.dataclass(frozen=True, slots=True)
class Page[T]:
    """Some rows and the cursor that continues after them; None on the last page."""

    items: list[T]
    next_cursor: str | None = None

    def convert[R](self, show: Callable[[T], R]) -> Page[R]:
        """The same page, every row passed through `show`."""
        return Page([show(item) for item in self.items], self.next_cursor)


def clamp_limit(limit: int) -> int:
    """How many rows a page may have: 1 to MAX_LIMIT. Raises InvalidInput for less than one."""
    if limit < 1:
        raise InvalidInput("limit", f"is {limit}; it takes 1 to {MAX_LIMIT}.")
    return min(limit, MAX_LIMIT)


def page_newest[M: Model](query: QuerySet[M], at: str, limit: int, cursor: str) -> Page[M]:
    """A page in order of (`at`, id), newest first. Raises InvalidInput for limit or cursor."""
    size = clamp_limit(limit)
    query = query.order_by(f"-{at}", "-pk")
    if cursor:
        last = read_key(cursor)
        when = Subquery(find_row(query.model, last).values(at))
        # The first condition is the one that an index on (at, id) can begin at.
        below = Q(**{f"{at}__lt": when}) | Q(pk__lt=last)
        query = query.filter(Q(**{f"{at}__lte": when}), below)
    rows = list(query[: size + 1])
    more = len(rows) > size
    return Page(rows[:size], str(rows[size - 1].pk) if more else None)


def read_seq(cursor: str, field: str = "cursor") -> int:
    """A cursor (or `?after=`) of a list in order of seq. Raises InvalidInput."""
    if not cursor:
        return 0
    if not (cursor.isascii() and cursor.isdigit() and len(cursor) < 20):
        raise InvalidInput(field, "is not what an earlier page gave; begin again without it.")
    return min(int(cursor), MAX_SEQ)


def find_row[M: Model](model: type[M], last: UUID) -> QuerySet[M]:
    """The row that a cursor names. Raises InvalidInput when it is gone."""
    row = model._default_manager.filter(pk=last).order_by()
    if not row.exists():
        raise InvalidInput("cursor", "is no longer valid; begin again without it.")
    return row


def read_key(cursor: str) -> UUID:
    """The key in a cursor. Raises InvalidInput."""
    try:
        return UUID(cursor)
    except ValueError:
        raise InvalidInput(
            "cursor", "is not what an earlier page gave; begin again without it."
        ) from None
