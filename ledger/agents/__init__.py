"""Model-driven agents as steps: `agent_step` runs a pydantic-ai agent one model request a unit.

    research.step(agent_step(agent, goal="…", tools={"pay": ask(money=True)}), name="look")

Needs the extra: `pip install longwatch[agents]`. docs/agents.md is the guide.
"""

from __future__ import annotations

try:
    import genai_prices  # noqa: F401
    import pydantic_ai
except ImportError as error:
    raise ImportError(
        "ledger.agents stands on pydantic-ai and genai-prices: pip install longwatch[agents]"
    ) from error

from ledger.agents.children import child_task
from ledger.agents.compacting import Compact
from ledger.agents.judge import Judge
from ledger.agents.kits import Host, Toolkit, command_tools, describe_fence, file_tools, http_tools
from ledger.agents.recording import call_key
from ledger.agents.rules import Tool, allow, ask, deny
from ledger.agents.stepping import agent_step

__all__ = [
    "Compact",
    "Host",
    "Judge",
    "Tool",
    "Toolkit",
    "agent_step",
    "allow",
    "ask",
    "call_key",
    "child_task",
    "command_tools",
    "deny",
    "describe_fence",
    "file_tools",
    "http_tools",
]

pydantic_ai.BANNER_ENABLED = False  # a worker's log is no place to greet somebody
