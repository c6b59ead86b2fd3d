"""Tools that come with the ledger, in kits: `agent_step(..., kits=[file_tools(write=["src/"])])`.

`toolkit` is what a kit is; `files` has the tools of a task's files, on `paths` (how a path is
opened so that it can't lead out) and `finding` (listing and searching); `programs` runs commands;
`web` asks hosts, by `fetching`.
"""

from ledger.agents.kits.fetching import Host
from ledger.agents.kits.files import file_tools
from ledger.agents.kits.programs import command_tools, describe_fence
from ledger.agents.kits.toolkit import Toolkit
from ledger.agents.kits.web import http_tools

__all__ = ["Host", "Toolkit", "command_tools", "describe_fence", "file_tools", "http_tools"]
