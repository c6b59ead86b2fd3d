"""What befalls a run, drawn from its seed: the same seed gives the same acts in the same order.

Three streams: kills, other signals, faults of the database. An act names what, when (seconds since
the start), for how long, and a number from 0 to 1 that picks among what there is at that moment.
"""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Iterator

from tests.durable import LEASE

KILLS = {
    "holder": 23,
    "settling": 12,
    "claiming": 4,
    "any worker": 4,
    "sentinel": 2,
    "parent": 2,
    "pusher or monitor": 1,
    "whole cluster": 1,
}
"""SIGKILL to: a worker that holds a lease; one that has just returned from a step; one that has
just settled; any worker; the other roles; every process of a cluster in one instant."""

SIGNALS = {
    "stop worker": 4,
    "stop settling": 4,
    "stop cluster": 1,
    "term worker": 3,
    "term parent": 2,
    "term group": 2,
    "kill client": 1,
}
"""`stop` is SIGSTOP for longer than the lease, then SIGCONT: in a long unit, or at its end."""

FAULTS = {
    "postgresql": {
        "cut": 6,
        "clock step": 2,
        "terminate": 2,
        "drop": 2,
        "stall": 2,
        "restart fast": 1,
        "restart immediate": 1,
    },
    "sqlite": {"write lock": 1, "copy": 2, "full disk": 2, "read-only": 2},
}
"""How many of each lie in the deck that is dealt, shuffled, again and again: so each comes soon."""

CUTS = ("settle", "commit", "keep", "claim", "submit", "beat", "write", "")
CLOCK_SECONDS = 45.0
"""How far the server's clock may be behind the machine's: a step goes anywhere in between."""

LOCK_SECONDS = LEASE + 5.0
"""An outside process holds SQLite's write lock this long."""


@dataclasses.dataclass(frozen=True, order=True)
class Act:
    """One thing that befalls the run."""

    at: float
    stream: str
    kind: str
    pick: float
    seconds: float = 0.0
    detail: str = ""


@dataclasses.dataclass(frozen=True)
class Pace:
    """Mean seconds between two acts of each stream; 0 is never."""

    kill: float = 1.6
    signal: float = 5.0
    fault: float = 5.0


def draw_acts(seed: int, database: str, pace: Pace) -> Iterator[Act]:
    """Every act in the order of time, without end."""
    streams = {
        "kill": _draw_stream(seed, "kill", KILLS, pace.kill),
        "signal": _draw_stream(seed, "signal", SIGNALS, pace.signal),
        "fault": _draw_stream(seed, f"fault {database}", FAULTS[database], pace.fault),
    }
    heads = {name: next(stream) for name, stream in streams.items()}
    while True:
        name = min(heads, key=lambda name: heads[name].at)
        yield heads[name]
        heads[name] = next(streams[name])


def _draw_stream(seed: int, name: str, weights: dict[str, int], mean: float) -> Iterator[Act]:
    chance = random.Random(f"{name}:{seed}")
    kinds, cuts = _deal(chance, weights), _deal(chance, dict.fromkeys(CUTS, 1))
    at = 0.0
    while True:
        at += chance.uniform(0.5, 1.5) * (mean or float("inf"))
        kind, pick, length = next(kinds), chance.random(), chance.random()
        seconds = _choose_seconds(kind, length)
        detail = next(cuts) if kind == "cut" else ""
        if kind == "clock step":
            detail = f"{-CLOCK_SECONDS * length:+.1f}"
        yield Act(at, name.split()[0], kind, pick, seconds, detail)
        if name.startswith("fault"):
            at += seconds  # one fault of the database at a time


def _deal(chance: random.Random, weights: dict[str, int]) -> Iterator[str]:
    while True:
        deck = [kind for kind, count in weights.items() for _ in range(count)]
        chance.shuffle(deck)
        yield from deck


def _choose_seconds(kind: str, length: float) -> float:
    """How long it lasts; whoever stops outlives its lease."""
    if kind.startswith("stop"):
        return LEASE + 0.5 + 3.0 * length
    if kind == "write lock":
        return LOCK_SECONDS
    if kind in {"stall", "full disk", "read-only"}:
        return 1.0 + 5.0 * length
    if kind.startswith("restart"):
        return 3.0 * length
    return 0.0
