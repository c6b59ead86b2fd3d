"""A Task JSON, with what the pages say about it: looks, shares, names."""

from __future__ import annotations

import datetime as dt
import itertools
from collections.abc import Iterable, Mapping
from typing import Any

from dashboard import words
from dashboard.evaluations import read_findings
from dashboard.times import tell_stored
from ledger import queries, registry, states
from ledger.canonical import clean_text
from ledger.errors import UnknownWorkflow
from ledger.keeping import REMOVED
from ledger.models import Task
from ledger.queries import Fleet
from ledger.queries.effects import MARKS


def show_effect(effect: dict[str, Any]) -> dict[str, Any]:
    """An Effect JSON with `look`, `open` when a person can settle it, `undoable` when its
    compensation can, `in_hand` while that runs, and `told`: what went in and what came out, if
    anything did."""
    state, undo = effect["state"], effect["compensation"]
    in_hand = undo is not None and undo["state"] == "intent"
    told = {"args": effect["args"], "result": effect["result"]}
    told |= {"undone": undo["result"]} if undo else {}
    agent, _, rest = effect["name"].partition(".")
    return effect | {
        # An agent's call, `tool.NAME.ID`: the id, which nobody reads, stands in the key below.
        "title": rest.rpartition(".")[0] if agent == "tool" and "." in rest else effect["name"],
        "look": words.EFFECTS["undoing" if in_hand else state],
        "in_hand": in_hand,
        "open": state in MARKS,
        "undoable": undo is not None and state in {"done", "unknown"},
        "told": {name: value for name, value in told.items() if value is not None},
    }


def show_row(task: dict[str, Any], now: dt.datetime) -> dict[str, Any]:
    """A task in a list: its JSON with `look`, `name`, `percent`, `money_percent` and `age`."""
    end = task["finished_at"] or now
    return task | {
        "look": words.describe_status(task, now),
        "name": task["title"] or task["workflow"],
        "percent": measure_progress(task),
        "money_percent": share(float(task["used"]["cost"]), float(task["limits"]["cost"])),
        "age": end - task["created_at"],
        "unfinished": task["status"] not in states.FINISHED,
    }


def measure_progress(task: Mapping[str, Any]) -> float:
    """How far a task is, in percent: whole steps, and of the current one what it reports."""
    if task["status"] == states.COMPLETED:
        return 100.0
    report = task["progress_report"]
    inside = min(1.0, share(report["done"] or 0.0, report["total"] or 0.0) / 100)
    return min(100.0, share(task["step"]["index"] + inside, task["total_steps"]))


def share(part: float, whole: float) -> float:
    """`part` of `whole` in percent; 0 of nothing."""
    return 100 * part / whole if whole else 0.0


def measure_wall(row: Task, now: dt.datetime) -> float:
    """Seconds of the wall limit that are used; it stands while people or a pause hold the task."""
    left = row.wall_left
    if row.wall_until is not None:
        left = (row.wall_until - now).total_seconds()
    return max(0.0, row.limit_wall - (left or 0.0))


def list_step_names(row: Task, fleet: Fleet) -> list[str]:
    """The steps of a task's version, from this process or from a live worker; else empty."""
    try:
        found = registry.get(row.workflow, row.workflow_version)
        return [step.name for step in found.steps]
    except UnknownWorkflow:
        known = fleet.knows.get((row.workflow, row.workflow_version))
        return list(known.steps) if known else []


HIDDEN = frozenset(
    "log_tail started_at worker approval by by_workflow output tokens cost number fingerprint "
    "traceback expires_at lane title children".split()
)
"""Keys of an event's data that its line leaves out; they are all in its details."""


LABELS = frozenset({"lane", "title"})
SAID = {
    ("reason", "drain"): "its worker was told to stop",
    ("decision", "approve"): "approved",
    ("decision", "reject"): "rejected",
    ("decision", "send_back"): "sent back",
}
"""What a bare code of an event is called; the reasons of a status are in `words`."""
CHANGES = ("before", "after")
CALLED = {
    "subject": "",
    "decision": "",
    "findings": "",
    "to": "from step",
    "reclaims": "losses at this step",
    "copied_to": "to",
    "copied_from": "from",
    "from_step": "at",
    "outputs": "outputs copied",
    "then": "ends as",
    "count": "effects to undo",
    "compensated": "effects undone",
}
"""What a key of an event's data is called; the other keys speak for themselves."""


def summarise_data(data: dict[str, Any], limit: int = 300) -> str:
    """An event's data in one line: `key: value` of what a person reads, one level deep."""
    if "type" in data and "message" in data:  # an error
        return clean_text(f"{data['type']}: {data['message']}", limit)
    parts = _tell_changes(data)
    for key, value in data.items():
        if key in CHANGES or key in HIDDEN or value in (None, "", [], {}):
            continue
        if key in {"reason", "why", "comment"} or (key == "limit" and str(value) in words.REASONS):
            parts.append(SAID.get((key, value)) or words.REASONS.get(str(value), str(value)))
        elif isinstance(value, dict) and key == "values":  # named by a form or a tool, not by us
            shown = ((name, one) for name, one in value.items() if one not in (None, "", [], {}))
            parts += [
                f"{name}: {_tell_list(one) if isinstance(one, list) else tell_stored(one)}"
                for name, one in shown
            ]
        elif isinstance(value, dict):
            parts.append(summarise_data(value, limit))
        else:
            name = CALLED.get(key, key.replace("_", " "))
            text = _tell_list(value) if isinstance(value, list) else tell_stored(value)
            text = SAID.get((key, text), text) if isinstance(text, str) else text
            parts.append(f"{name}: {text}" if name else str(text))
    return clean_text("; ".join(part for part in parts if part), limit)


def summarise_event(kind: str, data: dict[str, Any]) -> str:
    """An event in one line: the kinds whose data are no sentence by themselves in words of their
    own, all others by `summarise_data`."""
    if REMOVED in data:
        kept = {name: value for name, value in data.items() if name != REMOVED}
        return "; ".join(filter(None, (summarise_event(kind, kept), "the rest is removed")))
    said = SENTENCES.get(kind)
    if said is None or not said[0] <= data.keys():
        return summarise_data(data)
    told, rest = said[1](data), {k: v for k, v in data.items() if k not in said[0] | {"call"}}
    return clean_text("; ".join(filter(None, (told, summarise_data(rest)))), 300)


def _say_circle(data: Mapping[str, Any]) -> str:
    again = "it failed each time" if data["failed"] else "the same came back each time"
    return f"{data['tool']} called {data['times']} times with the same arguments, {again}"


def _say_share(data: Mapping[str, Any]) -> str:
    if data["limit"] == "cost":
        return f"{data['percent']}% of the money: ${data['used']} of ${data['of']}"
    return f"{data['percent']}% of the {data['limit']}: {data['used']:,} of {data['of']:,}"


def _say_question(data: Mapping[str, Any]) -> str:
    return f"{data['subject']} ({data['risk']} risk)"


def _say_start(data: Mapping[str, Any]) -> str:
    return f"not before {tell_stored(data['until'])}" if data["until"] else ""


def _say_children(data: Mapping[str, Any]) -> str:
    return f"{data['count']:,} child task{'' if data['count'] == 1 else 's'}"


SENTENCES = {
    "circling": ({"tool", "times", "failed", "round"}, _say_circle),
    "limit_warned": ({"limit", "percent", "used", "of"}, _say_share),
    "approval_requested": ({"subject", "risk"}, _say_question),
    "spawned": ({"count"}, _say_children),
    "submitted": ({"until"}, _say_start),
}
"""By kind of event: the keys that its sentence is made of, and what makes it."""


def _tell_list(value: list[Any]) -> str:
    """The first parts; of an evaluator's findings where and what."""
    if findings := read_findings(value):
        told = (": ".join(filter(None, (one["where"], one["message"]))) for one in findings)
        return "; ".join(text.rstrip(".") for text in itertools.islice(told, 5))
    return ", ".join(itertools.islice(map(str, value), 5))


def _tell_changes(data: dict[str, Any]) -> list[str]:
    """'priority: 0 → 7' of what an edit changed, but for what is hidden."""
    before, after = (data.get(name) or {} for name in CHANGES)
    return [
        f"{name}: {before.get(name)} → {value}"
        for name, value in after.items()
        if name not in HIDDEN - LABELS and before.get(name) != value
    ]


def name_actors(actors: Iterable[str]) -> dict[str, str]:
    """How each actor (`user:3`, `token:…`, `worker:host:pid:boot`) is called."""
    everybody = set(actors)
    names = queries.name_callers(everybody)
    return {actor: _name_actor(actor, names.get(actor)) for actor in everybody}


def name_deciders(rows: Iterable[dict[str, Any]], others: Iterable[str] = ()) -> dict[str, str]:
    """Put the name of who decided into each row, as `by`; these names, and those of `others`."""
    found = [row for row in rows if row["decided_by"]]
    called = name_actors({row["decided_by"] for row in found}.union(others))
    for row in found:
        row["by"] = called[row["decided_by"]]
    return called


def _name_actor(actor: str, name: str | None) -> str:
    kind, _, key = actor.partition(":")
    if kind == "user":
        return name or f"user {key}"
    if kind == "token":
        return f"token {name or key}"
    if kind == "worker":
        return ":".join(key.split(":")[:2])
    return f"{kind} {key}".strip()
