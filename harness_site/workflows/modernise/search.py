"""Which of many changes break the tests: found by halving, one test run at a time."""

from __future__ import annotations

import dataclasses
from typing import Any

FAILS, UNTESTED, REST = "fails", "untested", "rest"


@dataclasses.dataclass
class Search:
    """Changes are numbers. `good` pass together; each group on the stack, the last one first, is
    known to fail together with them, is untested, or is the rest of the group that is split above
    it. `guilty` are the single changes that fail with the good ones.

    Takes at most about 2 log2(n) runs for each guilty change.
    """

    stack: list[tuple[list[int], str]]
    good: list[int] = dataclasses.field(default_factory=list)
    guilty: list[int] = dataclasses.field(default_factory=list)

    @classmethod
    def start(cls, changes: list[int]) -> Search:
        """A search among `changes`, which fail all together and pass when none is made."""
        search = cls([(changes, FAILS)])
        search._split()
        return search

    @property
    def done(self) -> bool:
        """True when every change is either good or guilty."""
        return not self.stack

    @property
    def trial(self) -> list[int]:
        """The changes to make for the next test run."""
        return sorted(self.good + self.stack[-1][0])

    def record(self, passed: bool) -> None:
        """Take in how the run of `trial` ended."""
        group, _ = self.stack.pop()
        if self.stack and self.stack[-1][1] == REST:
            # With the one half good it is the other that fails; with it bad, who knows.
            self.stack[-1] = (self.stack[-1][0], FAILS if passed else UNTESTED)
        if passed:
            self.good += group
        else:
            self.stack.append((group, FAILS))
        self._split()

    def _split(self) -> None:
        while self.stack and self.stack[-1][1] == FAILS:
            group, _ = self.stack.pop()
            if len(group) == 1:
                self.guilty += group
            else:
                half = len(group) // 2
                self.stack += [(group[half:], REST), (group[:half], UNTESTED)]

    def to_json(self) -> dict[str, Any]:
        """What `from_json` takes: a unit's progress."""
        return dataclasses.asdict(self)

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Search:
        """The search as `to_json` gave it."""
        stack = [(list(group), str(status)) for group, status in data["stack"]]
        return cls(stack, list(data["good"]), list(data["guilty"]))
