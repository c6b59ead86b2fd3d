"""What a seed submits: task number N is the same in every run of that seed."""

from __future__ import annotations

import dataclasses
import random
from typing import Any

type Unit = tuple[str, int]

LANES = ("default", "alpha", "beta", "gamma")
COMPLETED = ("completed",)

WEIGHTS = {
    "chaos_fast": 26, "chaos_slow": 16, "chaos_loop": 12, "chaos_flaky": 9, "chaos_repairing": 8,
    "chaos_asking": 9, "chaos_paying": 9, "chaos_making": 9, "chaos_napping": 4,
    "chaos_doomed": 2, "chaos_hopeless": 2,
}  # fmt: skip


@dataclasses.dataclass(frozen=True)
class Plan:
    """One task: what is submitted, what is done to it meanwhile, how it may end."""

    number: int
    workflow: str
    input: dict[str, Any]
    lane: str
    priority: int
    statuses: tuple[str, ...]
    """How it may end."""
    units: tuple[Unit, ...]
    """The live units of a completed one."""
    pokes: tuple[tuple[float, str], ...] = ()
    """(seconds after submission, what the operator does): cancel, pause, resume, restart, retry."""

    @property
    def key(self) -> str:
        """Its idempotency key."""
        return f"plan-{self.number}"


def make_plan(seed: int, number: int) -> Plan:
    """Task `number` of the seed."""
    chance = random.Random(f"plan:{seed}:{number}")
    (workflow,) = chance.choices(list(WEIGHTS), list(WEIGHTS.values()))
    given, statuses, units = _fill(workflow, chance)
    pokes = _draw_pokes(chance, statuses)
    if any(action == "cancel" for _, action in pokes):
        statuses = (*statuses, "cancelled")
    return Plan(
        number, workflow, given, chance.choice(LANES), int(chance.random() < 0.1), statuses, units,
        pokes,
    )  # fmt: skip


def _fill(
    workflow: str, chance: random.Random
) -> tuple[dict[str, Any], tuple[str, ...], tuple[Unit, ...]]:
    """Input, statuses and units of one task of the workflow."""
    if workflow == "chaos_slow":
        given = {"seconds": round(chance.uniform(0.7, 3.0), 2)}
        return given, COMPLETED, (("prepare", 0), ("grind", 0), ("finish", 0))
    if workflow == "chaos_loop":
        turns = chance.randrange(2, 10)
        given = {"turns": turns, "seconds": chance.choice((0.0, 0.05, 0.3))}
        return given, COMPLETED, (*(("think", n) for n in range(turns)), ("conclude", 0))
    if workflow == "chaos_paying":
        turns = chance.randrange(1, 4)
        units = (*(("call", n) for n in range(turns)), ("reconcile", 0), ("close", 0))
        return {"turns": turns}, COMPLETED, units
    if workflow == "chaos_asking":
        wish = chance.choice(("approve", "approve", "approve", "send_back", "reject"))
        statuses = ("failed",) if wish == "reject" else COMPLETED
        return {"wish": wish}, statuses, (("propose", 0), ("ask", 0), ("publish", 0))
    if workflow == "chaos_repairing":
        units = (("draft", 0), ("verify", 0), ("seal", 0))
        return {"rounds": chance.randrange(1, 4)}, COMPLETED, units
    if workflow == "chaos_making":
        return {"big": chance.random() < 0.3}, COMPLETED, (("make", 0), ("use", 0))
    if workflow == "chaos_napping":
        return {}, COMPLETED, (("nap", 0), ("nap", 1), ("nap", 2), ("wake", 0))
    if workflow == "chaos_flaky":
        return {}, COMPLETED, (("stumble", 0), ("recover", 0))
    if workflow == "chaos_fast":
        return {}, COMPLETED, tuple((name, 0) for name in "abcd")
    return {}, ("failed",) if workflow == "chaos_doomed" else ("dead",), ()


def _draw_pokes(chance: random.Random, statuses: tuple[str, ...]) -> tuple[tuple[float, str], ...]:
    """Some tasks are cancelled; some of those that complete are paused, restarted, taken back."""
    luck, after = chance.random(), round(chance.uniform(0.0, 4.0), 2)
    if luck < 0.08:
        return ((after, "cancel"),)
    if statuses != COMPLETED or luck > 0.2:
        return ()
    if luck < 0.13:
        return ((after, "pause"), (after + round(chance.uniform(0.1, 2.0), 2), "resume"))
    return ((after, "restart" if luck < 0.165 else "retry"),)
