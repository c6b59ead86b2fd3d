"""A kit: tools with the rules that belong to them."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from pydantic_ai import Tool as AgentTool
from pydantic_ai.toolsets import FunctionToolset

from ledger.agents.rules import OTHERS, Given, Tool, read_tool


@dataclasses.dataclass(frozen=True)
class Toolkit:
    """Tools for an agent, and what is said of each by its name. `about` are lines for the model's
    instructions. Raises ValueError for rules of a tool that is not there.
    """

    tools: Sequence[AgentTool[Any]]
    rules: Mapping[str, Tool]
    about: str = ""

    def __post_init__(self) -> None:
        if strange := self.rules.keys() - {tool.name for tool in self.tools}:
            raise ValueError(f"Toolkit(rules=): there is no tool {min(strange)!r}")


def make_tool(fn: Callable[..., Any]) -> AgentTool[Any]:
    """A tool of a kit. Those of one answer run in the order in which the model gave them."""
    return AgentTool(fn, sequential=True, takes_ctx=False, require_parameter_descriptions=False)


def list_tools(kits: Sequence[Toolkit]) -> list[FunctionToolset[Any]]:
    """The kits' tools, as an agent takes them for a run."""
    return [FunctionToolset(list(kit.tools), instructions=kit.about or None) for kit in kits]


def join_rules(kits: Sequence[Toolkit], given: Mapping[str, Given]) -> dict[str, Given]:
    """The rules of a step: the author's own, "*" too, before those of its kits.

    What a kit says of what its tool does and may do stays true whatever the author allows.
    Raises ValueError for a name that two kits have.
    """
    rules: dict[str, Given] = dict(given)
    seen: set[str] = set()
    for kit in kits:
        if not isinstance(kit, Toolkit):
            raise ValueError(f"agent_step(kits=): {kit!r} is no Toolkit")
        for name in (tool.name for tool in kit.tools):
            if name in seen:
                raise ValueError(f"agent_step(kits=): two kits have a tool {name!r}")
            seen.add(name)
            own = kit.rules.get(name, Tool())
            said = given.get(name, given.get(OTHERS))
            rules[name] = own if said is None else _overrule(own, name, said)
    return rules


def _overrule(own: Tool, name: str, said: Given) -> Tool:
    asked = read_tool(name, said)
    if not isinstance(said, Tool):
        return dataclasses.replace(own, rules=asked.rules)
    return dataclasses.replace(
        asked, local=own.local or asked.local, writes=own.writes or asked.writes, scope=own.scope,
        caution=own.caution,
    )  # fmt: skip
