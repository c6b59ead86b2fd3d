"""What the machine's workers do with money: spend, reserve, settle and release."""

from __future__ import annotations

from typing import Any

from ledger import limits, states
from ledger.errors import LeaseLost, LimitReached
from ledger.models import Reservation, Spend, Task
from ledger.sql import Claimed

SHORT = [LimitReached(states.LIMIT_COST, "no money left", amount=5),
         LimitReached(states.LIMIT_TOKENS, "no tokens left", amount=500)]  # fmt: skip


class Money:
    """A part of the machine of test_machine.py."""

    known: dict[Any, Any]
    keys: int

    def choose(self, *of: Any) -> Any:
        """See Ledger."""
        raise NotImplementedError

    def choose_lease(self) -> tuple[Claimed, bool]:
        """See Ledger."""
        raise NotImplementedError

    def spend(self) -> None:
        """Accepted from anybody who ever held the task, once a key; a stale one is marked."""
        held, live = self.choose_lease()
        self.keys += self.choose(0, 1)
        key, tokens = f"k{self.keys}", self.choose(0, 3, 30)
        new = not any(s.key == key for s in self.known[held.task_id].spends)
        try:
            recorded = limits.record_spend(held, key=key, tokens_in=tokens, cost="0.01")
        except LimitReached:
            recorded = True
        assert recorded == new
        if new:
            assert Spend.objects.get(task=held.task_id, key=key).stale == (not live)

    def reserve(self) -> None:
        """The holder's alone, and within the limits of its line."""
        held, live = self.choose_lease()
        key = f"r{self.choose(1, 2, 3)}"
        try:
            limits.reserve_amount(held, key=key, tokens=self.choose(0, 4, 60), cost="0.02")
            accepted = True
        except LimitReached:
            accepted = True
        except LeaseLost:
            accepted = False
        assert accepted == live

    def free(self) -> None:
        """Settled or released by anybody who held the task; twice does nothing."""
        held, _ = self.choose_lease()
        key = f"r{self.choose(1, 2, 3)}"
        if self.choose(True, False):
            return limits.release_reservation(held, key)
        try:
            limits.record_spend(held, key=f"hold:{key}", tokens_in=1, reservation=key)
        except LimitReached:
            pass
        assert not Reservation.objects.filter(task=held.task_id, key=key, state="open").exists()
        return None


def check_reserved(tasks: list[Task]) -> None:
    """What is reserved in a task is its own open reservations and all that its children have."""
    own: dict[Any, int] = {}
    for row in Reservation.objects.filter(state="open"):
        own[row.task_id] = own.get(row.task_id, 0) + row.tokens + row.cost
    for task in tasks:
        below = [one for one in tasks if one.parent_id == task.pk]
        of_children = sum(one.reserved_tokens + one.reserved_cost for one in below)
        assert task.reserved_tokens + task.reserved_cost == own.get(task.pk, 0) + of_children
