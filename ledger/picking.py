"""Which queues a worker looks at, in which order: fairness between lanes without a shared row.

Lanes take turns by start tags, as in start-time fair queueing: a turn moves its lane's tag on by
1 / weight, the lowest tag is next, and a lane that comes anew starts where the last turn did. So
shares are as the weights, and whoever comes waits for the turn under way alone.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from operator import itemgetter
from uuid import UUID

from ledger import sql, workflows
from ledger.errors import UnknownWorkflow
from ledger.lanes import Book
from ledger.sql import Claimed, Group, Settled
from ledger.sql.keys import (
    MANY,
    Head,
    find_blocked,
    find_full,
    find_head,
    free_keys,
    has_room,
    list_kept,
    read_best_rank,
    read_head,
    take_place,
)
from ledger.sql.lanes import BUSY_SECONDS, Gate, pace_lane, read_rooms, try_lock

FRESH_SECONDS = 0.05
"""How long a list of groups serves: it bounds how late a busy worker sees a new lane. A list that
took long to read serves twenty times that long, up to 0.25 s: one of 1,000 groups takes 10 ms."""

FELT_SECONDS = 0.01
"""A unit that took longer (and five times as long as the reading) is followed by a reading, mostly
for one per cent of its time: a lane that came meanwhile waits for no second unit."""

LANES, GROUPS = 16, 32
"""So many lanes are asked for their tasks in one statement, and so many groups of each, those whose
heads ranked first when the list was read: of 1,000 it would read 16,000 rows to take one."""

BLOCKED_SECONDS, MANY_BLOCKED = 0.25, 100
"""For how long a group is passed over all of whose tasks wait for their keys; eight times as long
where there are so many groups of the kind."""

LOOKS, IDLE_LOOKS, BATCHES = 4, 50, 10
"""Groups with keys that one pick looks into, of a worker with a task in hand and of an idle one;
before that it passes over up to MANY, and BATCHES times as many, in three statements for MANY."""

type Write[Found] = Callable[[Sequence[Group] | None, UUID | None], Found]
"""Claims from groups, or one task of them; of None, keeps the task in hand."""


class Picker:
    """The (lane, workflow, version) groups that have work this process can run, lanes in turn."""

    def __init__(self, only: frozenset[tuple[str, str]] | None = None) -> None:
        self._only = only
        self._groups: list[Group] = []
        self._last: list[Group] = []
        self._read_at = self._serves = 0.0
        self._book = Book()
        self._tags: dict[str, float] = {}
        self._turn = 0.0
        self._looks_again: float | None = None
        self._keyed: frozenset[Group] = frozenset()
        """Those of the groups whose workflow has a concurrency bound."""
        self._blocked: dict[Group, float] = {}
        self._walked: dict[Group, str] = {}
        self.served = ""
        """The lane whose turn was last; of lanes with equal tags the one after it is next."""

    @property
    def has_rules(self) -> bool:
        """Whether anything was set for any lane. Who sets something wakes every worker."""
        return bool(self._book.rules)

    def recall(self) -> list[Group]:
        """A woken worker's first guess, which spares it a statement when it is right: the groups
        that had work last. None of several lanes, whose turns would not count."""
        if len({group[0] for group in self._last}) != 1:
            return []
        # Without their floors: what has come since may rank before all that was there.
        last: list[Group] = [(lane, name, version) for lane, name, version in self._last]
        return [] if self._book.get(last[0][0]).closed else last

    def choose(self, took: float = 0.0, *, fresh: bool = False, woken: bool = False) -> list[Group]:
        """Groups for a claim, the lane whose turn it is first, after a unit that `took` so many
        seconds. Reads them anew when stale. What an idle worker was `woken` for may be a lane's
        settings."""
        now = time.monotonic()
        if self._book.refresh(now=woken):
            self._free_keys()
        if woken:
            self._blocked.clear()
        felt = took > max(FELT_SECONDS, self._serves / 4)
        serves = max(FRESH_SECONDS, self._serves * (FRESH_SECONDS > 0))
        if fresh or felt or now - self._read_at > serves:
            known = self._list_known()
            heads = [head for head in sql.list_heads() if head[0][1:] in known]
            self._groups = [group for group, _ in sorted(heads, key=itemgetter(1))]
            took = 20 * (time.monotonic() - now)
            self._serves = min(0.25, took, 1.25 * self._serves or took)  # one may be held up
            self._last = self._groups or self._last
            self._keyed = frozenset(group for group in self._last if is_keyed(*group[1:]))
            self._read_at = now
        if self._book.rules:
            self._groups = [g for g in self._groups if not self._book.get(g[0]).closed]
        if len(self._groups) < 2:
            return list(self._groups)
        turns = {lane: (self._tag(lane), *self._after(lane)) for lane, _, _ in self._groups}
        return sorted(self._groups, key=lambda group: turns[group[0]])

    def _free_keys(self) -> None:
        closed = {one: rules.through for one, rules in self._book.rules.items() if rules.closed}
        if closed and list_kept(closed):
            with sql.atomic():
                free_keys(closed)
                sql.wake_workers()

    def _list_known(self) -> frozenset[tuple[str, str]] | set[tuple[str, str]]:
        return workflows.known() if self._only is None else self._only

    def _tag(self, lane: str) -> float:
        return max(self._tags.get(lane, 0.0), self._turn)

    def _after(self, lane: str) -> tuple[bool, str]:
        # After the lane just served, not by counting: a lane's only task is in no list while it
        # runs, so a count would pass it over every other time.
        return lane <= self.served, lane

    def count_turn(self, lane: str) -> None:
        """A turn of the lane begins."""
        self._turn = self._tag(lane)
        self._tags[lane] = self._turn + 1 / self._book.get(lane).weight
        self.served = lane
        if len(self._tags) > 2 * len(self._groups) + 100:  # those below would start there anyway
            self._tags = {one: tag for one, tag in self._tags.items() if tag > self._turn}

    def keeps_turn(self, lane: str, groups: Sequence[Group]) -> bool:
        """True if it is this lane's turn again, which a list can't say of a lane whose one task
        runs: by its weight its worker goes on with that."""
        if self._book.get(lane).weight == 1 or not groups or groups[0][0] == lane:
            return False
        return self._tag(lane) < self._tag(groups[0][0])

    def must_yield(self, held: Claimed) -> bool:
        """True where the next unit is not the holder's to begin: the lane is paused or over its
        budget, or each of its units has to be claimed."""
        self._book.refresh()
        rules = self._book.get(held.lane)
        return rules.paced or bool(rules.closed and rules.through != held.task_id)

    def find_through(self) -> tuple[str, UUID] | None:
        """The lane and id of a task that was let through a pause and waits for a claim of its own.
        Never twice in a row, so that the others have their turns."""
        chosen = self._find_through_head()
        return None if chosen is None else (chosen.group[0], chosen.task_id)

    def _find_through_head(self) -> Head | None:
        for lane, task_id in self._book.through.items():
            head = None if lane == self.served else read_head(task_id)
            if head is None or head.group[1:] not in self._list_known():
                continue
            if not head.bound or not find_full(head.group[1], [head], None):
                return head
        return None

    def claim_through(self, owner: str, lease_seconds: float) -> Claimed | None:
        """Claim that task, if there is one."""
        head = self._find_through_head()
        if head is None:
            return None

        def write(open_: Sequence[Group] | None, this: UUID | None) -> Claimed | None:
            return sql.claim_task(owner, [], lease_seconds, head.task_id) if open_ else None

        def take(open_: Sequence[Group] | None, this: UUID | None) -> Claimed | None:
            keyed = open_ and head.key is not None
            return self._claim_head(head, write) if keyed else write(open_, this)

        return self.admit([(head.group[0], "", "")], take)

    def list_gated(self, groups: Sequence[Group]) -> list[Group]:
        """Those of the groups whose lanes have a cap or a rate."""
        return [group for group in groups if self._book.get(group[0]).gate is not None]

    def take_wait(self) -> float | None:
        """In how many seconds a lane that was passed over may be open; None: nobody can say."""
        wait, self._looks_again = self._looks_again, None
        return wait

    def admit[Found: (Claimed | None, Settled | None)](
        self,
        groups: Sequence[Group],
        write: Write[Found],
        own: Claimed | None = None,
        *,
        ends: bool = False,
    ) -> Found:
        """Carry out `write`, which claims from groups, with those whose lanes have room.

        Of the lanes with a gate, at most one: the first with room, and only when its turn is next,
        so that a claim holds no other lane's lock. `own` is the task whose settle claims, and which
        `ends` with it or not.
        """

        def put(open_: Sequence[Group]) -> Found:
            if not self._keyed or self._keyed.isdisjoint(open_):
                return write(shorten_list(open_), None)
            return self._put_keyed(open_, write, own, ends)

        gates = {g[0]: gate for g in groups if (gate := self._book.get(g[0]).gate) is not None}
        if not gates:
            return put(groups)
        free = [group for group in groups if group[0] not in gates]
        task_id = None if own is None else own.task_id
        gate = None
        gate = self._find_open(gates, groups, task_id) if groups[0][0] in gates else None
        if gate is None:
            return put(free)
        with sql.atomic():
            room = read_rooms([gate.lane], task_id)[gate.lane] if try_lock(gate.lane) else None
            if room is None or room.find_wait(gate) != 0:
                self._wait(BUSY_SECONDS)
                return put(free)
            found = put([group for group in groups if group[0] == gate.lane] + free)
            claimed = found.claimed if isinstance(found, Settled) else found
            if gate.interval and claimed is not None and claimed.lane == gate.lane:
                pace_lane(gate, room)
        return found

    def _find_open(
        self, gates: dict[str, Gate], groups: Sequence[Group], own: UUID | None
    ) -> Gate | None:
        """The first lane in turn that has room, before any lane without a gate: a look without a
        lock, which is taken for that one alone."""
        rooms = read_rooms(gates, own)
        for lane in dict.fromkeys(group[0] for group in groups):
            if lane not in gates:
                return None
            wait = rooms[lane].find_wait(gates[lane])
            if wait == 0:
                return gates[lane]
            if wait is not None:
                self._wait(wait)
        return None

    def had_key(self, held: Claimed) -> bool:
        """Whether the end of this task may let another begin that waits for its key."""
        return is_keyed(held.workflow, held.workflow_version)

    def _put_keyed[Found: (Claimed | None, Settled | None)](
        self, groups: Sequence[Group], write: Write[Found], own: Claimed | None, ends: bool
    ) -> Found:
        """Claim the task that is next, where some groups have keys. Those of a lane are looked at
        when its turn is next, and the lane's other groups have what ranks before them."""
        if own is not None and ends:
            self._blocked = {g: at for g, at in self._blocked.items() if g[1] != own.workflow}
        plain = [group for group in groups if group not in self._keyed]
        looks = IDLE_LOOKS if own is None else LOOKS
        by_lane: dict[str, list[Group]] = {}
        for group in groups:
            by_lane.setdefault(group[0], []).append(group)
        passed = self._pass_over(by_lane.values(), own, ends)
        for mine in by_lane.values():
            others = [group for group in mine if group not in self._keyed]
            open_ = self._list_unblocked(g for g in mine if g in self._keyed and g not in passed)
            heads = [self._look(group, own, ends) for group in open_[:looks]]
            looks -= len(heads)
            head = min((h for h in heads if h), key=lambda h: (h.rank, h.task_id), default=None)
            if head is not None and others:
                first = read_best_rank(others)
                head = head if first is None or head.rank <= first else None
            if head is not None and (found := self._claim_head(head, write, own, ends)) is not None:
                return found
            if others:
                break
            if not looks:
                self._wait(BUSY_SECONDS)
                break
        return write(shorten_list(plain), None)

    def _pass_over(
        self, lanes: Iterable[list[Group]], own: Claimed | None, ends: bool
    ) -> set[Group]:
        """Groups in which all wait for their keys. Where many are keyed, those are found together
        first: a look into each costs a handful of statements."""
        keyed: list[Group] = []
        for mine in lanes:
            some = [group for group in mine if group in self._keyed]
            keyed += self._list_unblocked(some)
            if len(some) < len(mine) or len(keyed) >= BATCHES * MANY:
                break
        passed: set[Group] = set()
        if len(keyed) > LOOKS:
            leaving = None if own is None or not ends else own.task_id
            most = MANY * (BATCHES if own is None else 1)
            for at in range(0, min(most, len(keyed)), MANY):
                passed |= find_blocked(keyed[at : at + MANY], leaving)
            now = time.monotonic()
            self._blocked = {group: at for group, at in self._blocked.items() if at > now}
            many = 8 if len(self._blocked) + len(passed) > MANY_BLOCKED else 1
            self._blocked |= dict.fromkeys(passed, now + many * BLOCKED_SECONDS)
        return passed

    def _list_unblocked(self, groups: Iterable[Group]) -> list[Group]:
        now = time.monotonic()
        return [group for group in groups if self._blocked.get(group, 0.0) <= now]

    def _look(self, group: Group, own: Claimed | None, ends: bool) -> Head | None:
        own_id, after = None if own is None else own.task_id, self._walked.get(group, "")
        head, self._walked[group] = find_head(group, after, own_id, ends=ends)
        if head is None:
            self._blocked = {g: at for g, at in self._blocked.items() if at > time.monotonic()}
            many = 8 if len(self._blocked) > MANY_BLOCKED else 1
            self._blocked[group] = time.monotonic() + many * BLOCKED_SECONDS
        return head

    def _claim_head[Found: (Claimed | None, Settled | None)](
        self, head: Head, write: Write[Found], own: Claimed | None = None, ends: bool = False
    ) -> Found | None:
        """Claim this task if its key still has room; None: nothing was written."""
        if own is not None and head.task_id == own.task_id:
            return write(None, None)
        with sql.atomic():
            if not has_room(head, own.task_id if own is not None and ends else None):
                self._wait(BUSY_SECONDS)
                return None
            found = write([head.group], head.task_id)
            claimed = found.claimed if isinstance(found, Settled) else found
            if claimed is not None and claimed.task_id == head.task_id:
                take_place(head)
        return found

    def _wait(self, seconds: float) -> None:
        known = self._looks_again
        self._looks_again = seconds if known is None else min(known, seconds)


def shorten_list(groups: Sequence[Group]) -> Sequence[Group]:
    """The first LANES lanes of a list in their order, and the first GROUPS groups of each."""
    if len(groups) <= LANES:
        return groups
    counts: dict[str, int] = {}
    some = []
    for group in groups:
        lane = group[0]
        if lane not in counts and len(counts) == LANES:
            break
        counts[lane] = counts.get(lane, 0) + 1
        if counts[lane] <= GROUPS:
            some.append(group)
    return some


def is_keyed(workflow: str, version: str) -> bool:
    """Whether the tasks of this workflow version may have a concurrency key, as its code says."""
    try:
        return workflows.get(workflow, version).concurrency is not None
    except UnknownWorkflow:
        return False
