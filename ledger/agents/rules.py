"""What an agent's tools may do: allow, ask or deny, on conditions of their arguments."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

from jsonschema import Draft202012Validator

from ledger.bounds import check_seconds
from ledger.outcomes import RISKS

type Args = dict[str, Any]
type When = Callable[[Args], bool] | Mapping[str, Any] | None
"""A predicate of the arguments, or a JSON Schema that they fit; None: always."""

type Verify = Callable[[Args, str], Any]
"""Says what came of a call, from its arguments and its key: the result, or None for not done."""

OTHERS = "*"
"""In `tools=`: the rules of every tool that is not named."""


@dataclasses.dataclass(frozen=True)
class Rule:
    """What becomes of a call whose arguments meet `when`; made by `allow`, `ask` and `deny`."""

    decision: Literal["allow", "ask", "deny"]
    when: When = None
    reason: str = ""
    risk: Literal["low", "medium", "high"] = "medium"
    money: bool = False
    assignees: Sequence[str] = ()
    expires: float | None = None

    def __post_init__(self) -> None:
        if self.risk not in RISKS:
            raise ValueError(f"ask(risk=): {self.risk!r} is none of {', '.join(RISKS)}")
        if self.expires is not None:
            check_seconds(self.expires, "ask(expires=)", least=0.001)
        if isinstance(self.when, Mapping):
            Draft202012Validator.check_schema(self.when)
        elif self.when is not None and not callable(self.when):
            raise ValueError(f"{self.decision}(when=): {self.when!r} is no predicate and no schema")

    def meets(self, args: Args) -> bool:
        """True when the rule is about a call with these arguments."""
        if self.when is None:
            return True
        if isinstance(self.when, Mapping):
            return bool(Draft202012Validator(self.when).is_valid(args))
        return bool(self.when(args))


def allow(when: When = None) -> Rule:
    """The call is made without a question."""
    return Rule("allow", when)


def ask(
    when: When = None,
    *,
    reason: str = "",
    risk: Literal["low", "medium", "high"] = "medium",
    money: bool = False,
    assignees: Sequence[str] = (),
    expires: float | None = None,
) -> Rule:
    """People see the exact call first, may change its arguments, and say yes or no. The other
    arguments are those of `AskApproval`; a no goes to the model with its comment."""
    return Rule("ask", when, reason, risk, money, tuple(assignees), expires)


def deny(when: When = None, *, reason: str = "") -> Rule:
    """The call is not made, whoever approves of it; the model is told the reason."""
    return Rule("deny", when, reason)


LAST = ask(reason="no rule of this tool is about such a call")


@dataclasses.dataclass(frozen=True)
class Tool:
    """What is said of one tool. Of `rules` the first that a call meets decides; none: it is asked.

    A call that was begun by a lost worker is made again if it is `idempotent` (a reading tool, or
    one whose service knows the key); else `verify` says what came of it; else people are asked.
    A `local` one acts on the task's workspace alone, and has no record: the next worker begins with
    the files of the last checkpoint and makes all calls of the unit again. One that acts outside
    and `writes` into the workspace as well is not: the model is told that its files are gone.
    `scope` says why a call is out of what the tool may do at all ("": it is not), before any rule;
    `caution` what people who are asked about a call must know of this worker.
    """

    rules: Sequence[Rule] = (Rule("allow"),)
    idempotent: bool = False
    verify: Verify | None = None
    local: bool = False
    writes: bool = False
    scope: Callable[[Args], str] | None = None
    caution: Callable[[], str] | None = None

    def judge(self, args: Args) -> Rule:
        """The rule that decides about a call."""
        if self.scope is not None and (why := self.scope(args)):
            return Rule("deny", reason=why)
        try:
            return next((rule for rule in self.rules if rule.meets(args)), LAST)
        except Exception as error:  # of the author's predicate, on arguments of the model's choice
            return Rule(
                "deny", reason=f"its rules can't judge it ({type(error).__name__}: {error})"
            )


type Given = Tool | Rule | Sequence[Rule]


class Policy:
    """The tools of one agent step, as its author gave them."""

    def __init__(self, given: Mapping[str, Given]) -> None:
        self._tools = {name: read_tool(name, one) for name, one in given.items()}
        self._others = self._tools.get(OTHERS, Tool())

    def find(self, name: str) -> Tool:
        """What is said of a tool."""
        return self._tools.get(name, self._others)

    @property
    def names(self) -> list[str]:
        """The tools that are named."""
        return [name for name in self._tools if name != OTHERS]


def read_tool(name: str, given: Given) -> Tool:
    """A Tool of what an author gave. Raises ValueError."""
    if isinstance(given, Tool):
        rules: Sequence[Any] = given.rules
    else:
        rules = [given] if isinstance(given, Rule) else given
    if isinstance(rules, (str, Mapping)) or not all(isinstance(one, Rule) for one in rules):
        raise ValueError(f"tools[{name!r}]: takes a Tool, or rules such as ask() and deny()")
    return (
        dataclasses.replace(given, rules=tuple(rules))
        if isinstance(given, Tool)
        else Tool(tuple(rules))
    )
