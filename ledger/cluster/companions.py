"""A child process that lives and stops with the cluster, such as the web server of `up`."""

from __future__ import annotations

import dataclasses
import subprocess
from collections.abc import Mapping, Sequence

from ledger.cluster import runtime


@dataclasses.dataclass(frozen=True, slots=True)
class Companion:
    """A child process that lives and stops with the cluster, such as the web server. SIGTERM asks
    it to finish, SIGINT to hurry."""

    name: str
    process: subprocess.Popen[bytes]


def start_companion(
    name: str, args: Sequence[str], env: Mapping[str, str] | None = None
) -> Companion:
    """Start a child for `supervise`, in a session of its own: only the main process gets signals
    of the terminal or the group, and it passes on what it decides. It dies with this process."""
    return Companion(
        name,
        subprocess.Popen(args, env=env, start_new_session=True, preexec_fn=runtime.die_with_parent),
    )
