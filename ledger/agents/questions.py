"""What an agent's step asks people: may this call be made, and did that one happen."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from pydantic_ai import ToolReturn
from pydantic_ai.tools import DeferredToolResults, ToolApproved, ToolDenied

from ledger.durability import insist_on
from ledger.errors import EffectConflict
from ledger.events import Actor
from ledger.models import Effect
from ledger.models.effects import DONE, NOT_DONE
from ledger.outcomes import AskApproval
from ledger.queries.effects import UNKNOWN, name_state
from ledger.transitions.effects import mark_effect

if TYPE_CHECKING:
    from ledger.context import Context

HAPPENED = {
    "type": "object",
    "required": ["happened"],
    "additionalProperties": False,
    "properties": {
        "happened": {"type": "string", "enum": ["done", "not done"], "title": "Did it happen?"},
        "result": {"type": "string", "title": "What the agent is told that it returned"},
    },
}


def make_question(call: Mapping[str, Any], data: dict[str, Any]) -> AskApproval:
    """The question about one call; its answer leads to this step again, a no as well."""
    told = {"tool": call["tool"], "arguments": call["args"], "call": call["id"]}
    if "unknown" in call:
        return AskApproval(
            f"Did the call of {call['tool']} happen?",
            body="A worker was lost, or failed, in the middle of this call, so nobody knows what "
            "came of it. Look where it acts. **not done** calls it again, **done** does not; "
            "rejecting this question ends the task.",
            payload=told, form=HAPPENED, risk="high", then="again", data=data,
        )  # fmt: skip
    reason = f"Asked because: {call['reason']}.\n\n" if call.get("reason") else ""
    reason += f"{call['caution']}\n\n" if call.get("caution") else ""
    return AskApproval(
        f"May the agent call {call['tool']}?",
        body=f"{reason}You may change the arguments. A rejection goes to the model with your "
        "comment, and the task goes on.\n",
        payload=told, form=call.get("schema"), proposal=call["args"],
        risk=call.get("risk", "medium"), money=bool(call.get("money")),
        assignees=call.get("assignees", ()), expires=call.get("expires"),
        then="again", on_reject="again", data=data,
    )  # fmt: skip


def read_answers(
    ctx: Context, calls: list[dict[str, Any]], answers: Mapping[str, Any]
) -> DeferredToolResults:
    """What people said of each call, as pydantic-ai takes it; the record of a call that was lost is
    settled by their word."""
    results = DeferredToolResults()
    for call in calls:
        if "child" in call:  # its turn comes once there is no question left
            results.approvals[call["id"]] = ToolApproved()
            continue
        answer = answers[call["id"]]
        if "unknown" in call:
            happened = (answer.get("values") or {}).get("happened") == "done"
            text = (answer.get("values") or {}).get("result") or "Done; a person has confirmed it."
            _settle_lost(ctx, call, answer, text if happened else None)
            if happened:
                results.calls[call["id"]] = ToolReturn(text)
            else:
                results.approvals[call["id"]] = ToolApproved()
        elif answer["decision"] == "approve":
            results.approvals[call["id"]] = ToolApproved(override_args=answer.get("values"))
        else:
            comment = f": {answer['comment']}" if answer.get("comment") else ""
            results.approvals[call["id"]] = ToolDenied(f"A person has rejected this call{comment}.")
    return results


def _settle_lost(ctx: Context, call: Mapping[str, Any], answer: Any, result: str | None) -> None:
    def settle() -> None:
        effect = (
            Effect.objects.filter(task=ctx.task_id, step=ctx.step, turn=call["turn"],
                                  round=ctx.round, name=call["unknown"])
            .select_related("task").first()
        )  # fmt: skip
        if effect is None or name_state(effect, effect.task) != UNKNOWN:
            return  # settled by an earlier attempt, or on its own page
        kind, _, who = str(answer.get("by") or "system").partition(":")
        with contextlib.suppress(EffectConflict):  # settled on its page since that look
            mark_effect(
                ctx.task_id, effect.pk, to=NOT_DONE if result is None else DONE,
                actor=Actor(kind, who), result=result, reason="answered to the agent's question",
            )  # fmt: skip

    with ctx._write("agent_step"):
        insist_on(settle, ctx.check)
