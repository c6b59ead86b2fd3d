"""Following a task to its end: what `submit --wait` and `watch` do."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from typing import Any
from uuid import UUID

from ledger import queries, states
from ledger.management.terminal import drop_controls
from ledger.queries.history import CHECKPOINT
from ledger.turns import KEY, shorten_turn

LONGEST_RESULT = 2_000

FIRST_LOOK, LAST_LOOK, GROWTH = 0.1, 1.0, 1.3

type Show = Callable[[dict[str, Any], list[dict[str, Any]]], None]
"""Called at each change with the Task JSON and the events since the last call."""


def follow_task(task_id: UUID, show: Show) -> dict[str, Any]:
    """Call `show` at once and at each change until the task is finished; its last Task JSON.

    Raises TaskNotFound.
    """
    seen, last_seq, pause = -1, "", FIRST_LOOK
    while True:
        if queries.read_revision(task_id) != seen:
            task = queries.show_task(task_id)
            events = queries.list_events(task_id, after=last_seq, limit=queries.MAX_LIMIT).items
            if events:
                name_calls(task_id, events)
                last_seq = str(events[-1]["seq"])
            seen, pause = task["revision"], FIRST_LOOK
            show(task, events)
            if task["status"] in states.FINISHED:
                return task
        time.sleep(pause)
        pause = min(pause * GROWTH, LAST_LOOK)


def name_calls(task_id: UUID, events: list[dict[str, Any]]) -> None:
    """Put the names of the tools that an agent's unit called into its event, as `called`."""
    units = {one["seq"]: one["data"] for one in events if one["kind"] == CHECKPOINT}
    if not units:
        return
    before = str(min(units) - 1)
    page = queries.list_outputs(task_id, superseded=True, limit=len(units), cursor=before)
    for unit in page.items:
        told = shorten_turn(unit["output"])
        turn = told.get(KEY) if isinstance(told, dict) else None
        calls = turn.get("called", []) if isinstance(turn, dict) else []
        if unit["seq"] in units and calls:
            units[unit["seq"]]["called"] = [
                drop_controls(str(call).partition(" ")[0]) for call in calls
            ]


def describe_result(task: dict[str, Any]) -> list[str]:
    """What a finished task came to, as lines; none for one without a result."""
    if task["result"] is None:
        return []
    text = drop_controls(json.dumps(task["result"], indent=2, ensure_ascii=False))
    cut = [f"… {len(text) - LONGEST_RESULT} more characters"] if len(text) > LONGEST_RESULT else []
    return [*("result: " + text[:LONGEST_RESULT]).splitlines(), *cut]


def describe_event(event: dict[str, Any]) -> str:
    """One line: time, kind, where, who, and the words that matter."""
    actor = event["actor"]
    data = event["data"]
    where = f"{event['step']}:{event['turn']}" if event["step"] else ""
    error = data.get("error") or {}
    words = [
        str(text)
        for text in (data.get("subject"), data.get("reason"), error.get("message"))
        if text
    ]
    if data.get("called"):
        words.append(f"calls {', '.join(data['called'])}")
    if event["kind"] == "approval_requested":
        words.append(f"answer it: manage.py answer {data.get('approval')} approve")
    who = "" if actor["kind"] == "worker" else f"by {actor['kind']} {actor['id']}".strip()
    parts = [f"{event['at']:%H:%M:%S}", event["kind"], where, who, "; ".join(words)[:200]]
    return "  ".join(part for part in parts if part)
