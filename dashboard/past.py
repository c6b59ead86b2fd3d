"""What happened to a task, in sentences: restarts apart from recoveries, questions, attempts."""

from __future__ import annotations

import collections
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from dashboard import shown, words
from dashboard.evaluations import read_findings
from dashboard.templatetags.longwatch import duration, reason_text
from ledger.models import Task
from ledger.queries import Recovery, Restart, Timeline
from ledger.queries.spans import QUEUED
from ledger.queries.timeline import ATTEMPTS

ASKED = {
    "approval_requested": "open",
    "approval_expired": "expired",
    "approval_voided": "void",
    "approval_undone": "open",
}
DECIDED = {"approve": "approved", "reject": "rejected", "send_back": "sent_back"}


def list_actors(row: Task, record: Iterable[dict[str, Any]], timeline: Timeline) -> set[str]:
    """Everybody whom the page names."""
    actors = {actor_text(event["actor"]) for event in record}
    return actors | {row.submitted_by, *(one.by for one in timeline.restarts)}


def actor_text(actor: Mapping[str, str]) -> str:
    """{"kind": "user", "id": "3"} as `user:3`."""
    return f"{actor['kind']}:{actor['id']}" if actor["id"] else actor["kind"]


def list_restarts(
    restarts: Sequence[Restart], units: Sequence[dict[str, Any]], called: Mapping[str, str]
) -> list[dict[str, Any]]:
    """Repairs and people's restarts, the last one first, with what each superseded."""
    found = []
    for one in reversed(restarts):
        gone = collections.Counter(
            unit["step_name"] for unit in units if unit["superseded_in_round"] == one.round
        )
        name = "reason" if one.edited else "note"
        feedback = one.feedback if isinstance(one.feedback, dict) else {name: one.feedback}
        findings = read_findings(feedback.get("findings"))
        read = {"by", "findings"} if findings else {"by"}
        found.append(
            {
                "one": one,
                "by": one.step if one.by_workflow else called.get(one.by, one.by),
                # Pairs: a template's `feedback.items` would find a key of that name first.
                "feedback": [(k, v) for k, v in feedback.items() if v and k not in read],
                "findings": findings,
                "superseded": join_words([f"{count:,} {name}" for name, count in gone.items()]),
                "count": gone.total(),
            }
        )
    return found


def list_recoveries(recoveries: Sequence[Recovery]) -> list[dict[str, Any]]:
    """Lost workers, the last one first: how long until it was noticed, and what was redone."""
    found = []
    for one in reversed(recoveries):
        item: dict[str, Any] = {"one": one, "held": one.lost.took}
        if one.again is not None:
            item["delay"] = one.again.start - one.lost.end
            item["goes_on"] = one.again.open
        found.append(item)
    return found


def list_asked(record: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """The questions in a task's record (newest first), each as it stands now; `by` an actor."""
    asked: dict[str, dict[str, Any]] = {}
    for event in reversed(list(record)):
        key = event["data"].get("approval")
        if event["kind"] == "approval_requested":
            asked[key] = {"id": key, "subject": event["data"]["subject"], "step": event["step"]}
        if key not in asked:
            continue
        one = asked[key] | {"at": event["at"]}
        if event["kind"] == "approval_decided":
            by = actor_text(event["actor"])
            one |= {"status": DECIDED[event["data"]["decision"]], "by": by}
        elif event["kind"] in ASKED:
            one |= {"status": ASKED[event["kind"]], "by": ""}
        asked[key] = one
    return list(asked.values())[::-1]


def list_attempts(
    record: Iterable[dict[str, Any]], step: str, turn: int, called: Mapping[str, str]
) -> list[dict[str, Any]]:
    """The attempts at a unit that left no output, the last one first."""
    return [
        {
            "seq": event["seq"],
            "at": event["at"],
            "look": words.EVENTS[event["kind"]],
            "error": event["data"].get("error") or {},
            "why": reason_text(str(event["data"].get("why") or "")),
            "worker": event["data"].get("worker") or event["actor"]["id"],
            "tokens": event["data"].get("tokens"),
            "cost": event["data"].get("cost"),
            "number": event["data"].get("number"),
        }
        for event in record
        if event["kind"] in ATTEMPTS and (event["step"], event["turn"]) == (step, turn)
    ]


def find_edit(
    record: Iterable[dict[str, Any]], unit: Mapping[str, Any], called: Mapping[str, str]
) -> dict[str, Any] | None:
    """Who wrote the output of `unit` in place of a worker's, and why; None when nobody did.

    The reason is None where the record as it was read does not go back so far.
    """
    if unit["fence"] or unit["copied_from"]:
        return None
    told = (one["data"] for one in record if one["kind"] == "edited")
    why = (data.get("reason") for data in told if data.get("output") == unit["seq"])
    return {"by": called.get(unit["worker"], unit["worker"]), "reason": next(why, None)}


def tell_events(
    events: Iterable[dict[str, Any]], called: Mapping[str, str]
) -> list[dict[str, Any]]:
    """The events with who and, in one line, what."""
    return [
        event
        | {
            "by": called.get(actor_text(event["actor"]), ""),
            "summary": shown.summarise_event(event["kind"], _leave_out_actor(event)),
        }
        for event in events
    ]


def _leave_out_actor(event: dict[str, Any]) -> dict[str, Any]:
    """The data without `by` where that names who did it once more."""
    actor, data = actor_text(event["actor"]), event["data"]
    kept = {name: value for name, value in data.items() if (name, value) != ("by", actor)}
    if isinstance(said := kept.get("feedback"), dict) and said.get("by") == actor:
        kept["feedback"] = {name: value for name, value in said.items() if name != "by"}
    return kept


def count_kinds(record: Iterable[dict[str, Any]]) -> list[tuple[str, str, int]]:
    """(kind, what it is called, how often), the most frequent first."""
    counts = collections.Counter(event["kind"] for event in record)
    looks = words.EVENTS
    return [
        (kind, looks[kind].label if kind in looks else kind, count)
        for kind, count in counts.most_common()
    ]


def count_workers(timeline: Timeline) -> list[dict[str, Any]]:
    """Everybody who held the task: units stored, attempts lost, the busiest first."""
    units: collections.Counter[str] = collections.Counter()
    lost: collections.Counter[str] = collections.Counter()
    for span in timeline.spans:
        if span.kind in {"done", "superseded"}:
            units[span.worker] += 1
        if span.kind == "lost":
            lost[span.worker] += 1
    seen = {span.worker for span in timeline.spans if span.worker and span.kind != QUEUED}
    owners = sorted(seen, key=lambda owner: (-units[owner], owner))
    return [{"owner": owner, "units": units[owner], "lost": lost[owner]} for owner in owners]


def join_words(parts: Sequence[str]) -> str:
    """'a, b and c'."""
    if len(parts) < 2:
        return "".join(parts)
    return f"{', '.join(parts[:-1])} and {parts[-1]}"


def say_rest(runs: Sequence[float], used: float, *, brief: bool = False) -> str:
    """How much work is left, from past runs of the same version: a range, or why there is none;
    `brief` for a row of a list."""
    if len(runs) < 5:
        return "no estimate yet"
    ordered = sorted(runs)
    low, high = ordered[len(ordered) // 4], ordered[-1]
    if used >= high:
        return "longer than ever" if brief else f"longer than all of the last {len(runs)} runs"
    left = f"{say_range(max(0.0, low - used), high - used)} left"
    return left if brief else f"{left} ({len(runs)} runs)"


def say_range(low: float, high: float) -> str:
    """'2-4 m', in the unit of the larger one."""
    for seconds, unit in ((86_400, "d"), (3_600, "h"), (60, "m")):
        if high >= 2 * seconds:
            first, last = int(low / seconds), -int(-high // seconds)
            return f"{first}\N{EN DASH}{last} {unit}" if first < last else f"about {last} {unit}"
    return f"up to {duration(high)}" if low < 1 else f"{low:.0f}\N{EN DASH}{high:.0f} s"
