"""What each answer to a question leads to, in words; what an agent's call is asked with."""

from __future__ import annotations

from typing import Any

from dashboard import changes
from ledger.models import Approval


def read_call(row: Approval) -> dict[str, Any] | None:
    """The call of a tool that an agent's step asks about: `tool`, `arguments`, `unknown` when
    nobody knows what came of it; None of any other question."""
    given = row.payload
    if not isinstance(given, dict) or given.keys() != {"tool", "arguments", "call"}:
        return None
    return {**given, "unknown": row.on_reject != "again"} if row.then == "again" else None


def say_outcomes(row: Approval) -> dict[str, str]:
    """What approve and reject do, each as the beginning of a sentence without its end."""
    call = read_call(row)
    on_reject = {
        "fail": "The task ends as failed; all outputs stay, an operator can restart it",
        "again": f"Step {row.step} goes on, and is told of your no and your comment",
        "dead": "The task gives up; all outputs stay, an operator can extend the limit",
    }.get(row.on_reject, f"Goes back to {row.on_reject} with your comment")
    if row.then == "again":
        approve = f"Step {row.step} goes on with your answer"
    elif row.next_step:
        approve = f"{row.next_step} runs"
    else:
        approve = "The task completes"
    if call and call["unknown"]:
        approve = "The agent goes on by what you say: “done” is not called again, “not done” is"
    elif call:
        approve = f"The call of {call['tool']} is made with the arguments as they stand here"
        on_reject = "The call is not made; the agent is told no, with your comment, and goes on"
    return {"approve": approve, "reject": on_reject}


def list_rest(row: Approval) -> dict[str, Any]:
    """What the payload holds beside changed files, `other` under the heading `named`. Arguments
    that the settings show are not shown a second time."""
    call = read_call(row)
    if call is None:
        return changes.list_rest(row.payload) | {"named": "Full request"}
    shown = bool(row.form) and row.proposal == call["arguments"]
    return {"named": "Arguments"} | ({} if shown else {"other": changes.dump(call["arguments"])})
