"""How workers are shown, and what can be told to them."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

from dashboard.words import Look
from ledger.events import Actor
from ledger.models.worker import DRAIN_ALL, DRAINS
from ledger.queries.crew import BEATING, DECLARED, DRAINING, GONE, LATE, LIVE, STOPPED
from ledger.transitions import workers

LOOKS = {
    LIVE: Look("Live", "run", "is-run"),
    DRAINING: Look("Draining", "pause", "is-idle"),
    LATE: Look("Late", "sched", "is-stall", "a heartbeat did not come"),
    GONE: Look("Gone", "lost", "is-stall", "no heartbeat; what it held is queued again"),
    STOPPED: Look("Stopped", "cancel", "is-idle", "signed off"),
    DECLARED: Look("Declared dead", "dead", "is-dead", "its leases were taken away"),
}
SKEW_SECONDS = 1.0
"""A clock that is off by less is not worth a word."""

DECLARE = "declare-dead"
NARROW = "It takes the sight of every lane: a worker serves them all."


@dataclasses.dataclass(frozen=True, slots=True)
class Tell:
    """Something that people tell a worker; `take` does it and returns what is said of it."""

    name: str
    label: str
    icon: str
    take: Callable[[str, Actor, dict[str, Any]], str]
    danger: bool = False
    safe: str = "Leave it as it is"

    @property
    def verb(self) -> str:
        """What the dialog's own button says."""
        return self.label.removesuffix("…")


def _drain(owner: str, actor: Actor, given: dict[str, Any]) -> str:
    whole = given["scope"] == "all"
    count = workers.drain_worker(owner, actor=actor, reason=given["reason"], cluster=whole)
    return _say_told(owner, count, whole, "drains", "drain")


def _undrain(owner: str, actor: Actor, given: dict[str, Any]) -> str:
    whole = given["scope"] == "all"
    count = workers.undrain_worker(owner, actor=actor, reason=given["reason"], cluster=whole)
    return _say_told(owner, count, whole, "goes on", "go on")


def _say_told(owner: str, count: int, whole: bool, one: str, many: str) -> str:
    if not count:
        return "Nothing was to be told: it is so already."
    if whole:
        said = f"1 worker of the cluster {one}" if count == 1 else f"{count} workers {many}"
        return f"{said}."
    return f"{workers.name_worker(owner)} {one}."


def _declare(owner: str, actor: Actor, given: dict[str, Any]) -> str:
    count = workers.declare_dead(owner, actor=actor, reason=given["reason"], name=given["typed"])
    held = "it held nothing" if not count else f"{count} lease{'s were' if count > 1 else ' was'}"
    return f"{workers.name_worker(owner)} is declared dead; {held}{' taken away' if count else ''}."


ACTIONS = {
    one.name: one
    for one in (
        Tell("drain", "Drain…", "pause", _drain),
        Tell("undrain", "Undrain…", "right", _undrain, safe="Let it drain"),
        Tell(DECLARE, "Declare dead…", "x", _declare, danger=True),
    )
}


def list_offers(row: dict[str, Any]) -> list[Tell]:
    """What can be told to it now."""
    if row["state"] in {STOPPED, DECLARED}:
        # One that was stopped while it claimed may hold a lease all the same.
        return [ACTIONS[DECLARE]] if row["tasks"] else []
    if row["state"] == DRAINING and row["told"] not in DRAINS:  # its process ends: it leaves anyway
        return [ACTIONS[DECLARE]]
    first = "undrain" if row["told"] in DRAINS else "drain"
    return [ACTIONS[first], ACTIONS[DECLARE]]


def choose_look(row: dict[str, Any]) -> Look:
    """What it is called, with what that means for it."""
    look, note = LOOKS[row["state"]], LOOKS[row["state"]].note
    if row["state"] == LIVE and not row["tasks"]:
        return Look("Live, idle", "idle", "is-ok")
    if row["state"] == LATE:
        note = f"{row['missed']} heartbeat{'s' if row['missed'] > 1 else ''} did not come"
    if row["told"] in DRAINS and row["state"] in BEATING:
        whole = "with its cluster; " if row["told"] == DRAIN_ALL else ""
        if not row["draining"]:
            note = f"{whole}told, not heard yet"
        elif row["tasks"]:
            note = f"{whole}ends its unit, takes nothing new"
        else:
            note = f"{whole}holds nothing, takes nothing new"
    elif row["state"] == DRAINING:
        note = "ends its unit and leaves"
    return dataclasses.replace(look, note=note)


def show_worker(row: dict[str, Any], lost: dict[str, int]) -> dict[str, Any]:
    """A row of the page."""
    skew = row["skew"] if row["skew"] is not None and abs(row["skew"]) >= SKEW_SECONDS else None
    return row | {
        "look": choose_look(row),
        "beating": row["state"] in BEATING,
        "lost": lost.get(row["owner"], 0),
        "ahead": skew if skew and skew > 0 else None,
        "behind": -skew if skew and skew < 0 else None,
        "beats": [missed < row["missed"] for missed in range(2, -1, -1)],
        "offers": list_offers(row),
    }


def show_crew(rows: Sequence[dict[str, Any]], lost: dict[str, int]) -> dict[str, Any]:
    """The clusters with their workers that beat, and those that are no more."""
    shown = [show_worker(row, lost) for row in rows]
    beating = [row for row in shown if row["beating"]]
    clusters: dict[str, list[dict[str, Any]]] = {}
    for row in beating:
        clusters.setdefault(row["cluster"] or f"{row['host']}:", []).append(row)
    versions = [pair for row in beating for pair in row["knows"]]
    return {
        "clusters": [show_cluster(name, crew) for name, crew in sorted(clusters.items())],
        "beating": len(beating),
        "busy": sum(bool(row["tasks"]) for row in beating),
        "gone": [row for row in shown if not row["beating"]],
        "skewed": sorted({pair for pair in versions if versions.count(pair) < len(beating)}),
        "known": sorted({name for row in shown for name, _ in row["knows"]}),
    }


def show_cluster(name: str, crew: list[dict[str, Any]]) -> dict[str, Any]:
    """One main process with its workers, each a slot for one unit."""
    host, pid, *_ = name.split(":")
    memory = [row["memory"] for row in crew if row["memory"]]
    return {
        "key": crew[0]["owner"],
        "host": host,
        "pid": pid,
        "rows": sorted(crew, key=lambda row: row["pid"]),
        "used": sum(bool(row["tasks"]) for row in crew),
        "drain": sum(row["told"] in DRAINS for row in crew),
        "memory": sum(memory) if memory else None,
        "lost": sum(row["lost"] for row in crew),
        "since": min(row["started_at"] for row in crew),
    }
