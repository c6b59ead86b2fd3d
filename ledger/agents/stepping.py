"""`agent_step`: an agent as a looping step, one model request and its tool calls in each unit."""

from __future__ import annotations

import concurrent.futures
import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal

from pydantic_ai.agent import AbstractAgent, Agent
from pydantic_ai.exceptions import UnexpectedModelBehavior
from pydantic_ai.messages import ModelMessage, ModelRequest, ModelResponse
from pydantic_ai.tools import DeferredToolResults
from pydantic_ai.toolsets import FunctionToolset
from pydantic_core import to_jsonable_python
from pydantic_graph import End

from ledger import bounds, registry
from ledger.agents.children import make_children, read_children
from ledger.agents.compacting import Compact, keep_session, summarise
from ledger.agents.decisions import record_circle
from ledger.agents.hearing import are_waiting, hear_messages, make_request, write_message
from ledger.agents.history import (
    Past,
    Turn,
    dump_messages,
    holds_errors_only,
    list_new_parts,
    load_messages,
    read_past,
    read_records,
    tell_last_turn,
)
from ledger.agents.kits.toolkit import Toolkit, join_rules, list_tools
from ledger.agents.prices import OUTPUT_TOKENS, check_unpriced, read_prices
from ledger.agents.questions import make_question, read_answers
from ledger.agents.recording import Recorder, Waiting
from ledger.agents.rules import Given, Policy
from ledger.durability import write_blocking
from ledger.outcomes import Advance, Again, Fail, Finish, Outcome
from ledger.turns import KEY
from ledger.workflows import IN_WORKER

if TYPE_CHECKING:
    from ledger.context import Context

type Goal = str | Callable[[Any], str]
type Prompt = str | list[str] | None

PATIENCE = 10
"""Turns in a row that may bring back nothing but errors."""


def agent_step(
    agent: AbstractAgent[Any, Any] | Callable[[Any], AbstractAgent[Any, Any]],
    *,
    goal: Goal,
    tools: Mapping[str, Given] | None = None,
    kits: Sequence[Toolkit] = (),
    deps: Callable[[Any], Any] | None = None,
    session_turns: int | None = None,
    compact: Compact | None = None,
    handoff_tokens: int | None = None,
    output_tokens: int = OUTPUT_TOKENS,
    patience: int = PATIENCE,
    unpriced: Literal["fail", "count"] = "fail",
) -> Callable[[Any], Any]:
    """The function of a step that runs a pydantic-ai agent to its answer, in as many units as it
    takes model requests: `workflow.step(agent_step(agent, goal="…"), name="research")`.

    `agent` is an Agent, or what makes one from `ctx`. `goal` (text, or made from `ctx`) and the
    hand-off open each session; a new one begins after `session_turns` units, if given, and after
    every restart; `compact` shortens one that grows too long. `tools` are the rules by the tool's
    name ("*": all others; by default they are allowed); `kits` bring tools with rules, which those
    of `tools` overrule. The agent's deps are `ctx` itself unless `deps` makes others. A model that
    nobody has a price for fails the task, unless `unpriced="count"` lets its tokens alone count.
    The answer stands in progress under the step's name. Raises ValueError for what can't be.
    """
    if session_turns is not None:
        bounds.check_count(session_turns, "agent_step(session_turns=)")
    check_unpriced(unpriced, "agent_step")
    read_prices()  # a wrong line shows here, where workflows are loaded, and not in a unit
    player = _Player(
        agent, goal, Policy(join_rules(kits, tools or {})), list_tools(kits), deps,
        session_turns or 0, compact, handoff_tokens, output_tokens, patience, unpriced,
    )  # fmt: skip

    async def run_agent(ctx: Any) -> Outcome:
        return await player.run_unit(ctx)

    setattr(run_agent, IN_WORKER, "agent_step keeps a record, which a process apart can't")
    setattr(run_agent, registry.AGENT, True)
    return run_agent


class _Player:
    """What every unit of the step has in common."""

    def __init__(
        self, agent: Any, goal: Goal, policy: Policy, toolsets: list[FunctionToolset[Any]],
        deps: Callable[[Any], Any] | None, session_turns: int, compact: Compact | None,
        handoff_tokens: int | None, output_tokens: int, patience: int, unpriced: str,
    ) -> None:  # fmt: skip
        self.agent = agent
        self.goal = goal
        self.policy = policy
        self.toolsets = toolsets
        self.deps = deps
        self.session_turns = session_turns
        self.compact = compact
        self.handoff_tokens = handoff_tokens
        self.output_tokens = output_tokens
        self.patience = patience
        self.unpriced = unpriced

    async def run_unit(self, ctx: Context) -> Outcome:
        """One unit: the next question, the answered calls, or a request and its calls."""
        if not hasattr(ctx, "_claimed"):
            raise TypeError(
                "agent_step: a step that runs apart (isolate=True) can't keep the record"
            )
        if ctx.step == KEY:
            raise Fail("bad_name", f"A step named {KEY} would hide its own record; rename it.")
        past = read_past(ctx)
        if past.open:
            return await self._go_on(ctx, past)
        older: list[Turn] = []
        if self.compact is not None:
            older = self.compact.list_older(past, lambda: self._make_agent(ctx).model)
            if older and self.compact.by == "model":
                return await self._summarise(ctx, past, older, self.compact)
        over = self.session_turns and ctx.turn - past.began >= self.session_turns
        if past.turns and (over or older):
            more = {"compaction": keep_session(ctx, past)} if older else {}
            before = tell_last_turn(past.messages)
            past = Past(session=past.session + 1, began=ctx.turn, since=ctx.turn)
            return await self._play(ctx, past, opening=before, more=more)
        return await self._play(ctx, past)

    async def _summarise(
        self, ctx: Context, past: Past, older: list[Turn], plan: Compact
    ) -> Outcome:
        """A unit that shortens the session, and no more."""
        own = self._make_agent(ctx).model
        told, spent = await summarise(ctx, past, older, plan, own, unpriced=self.unpriced)
        data = self._write(ctx, dataclasses.replace(past, since=told["since"]), [], [], {})
        data[KEY] |= {"compaction": told, "spent": spent}
        return Again(data)

    def _make_agent(self, ctx: Context) -> AbstractAgent[Any, Any]:
        return self.agent if isinstance(self.agent, AbstractAgent) else self.agent(ctx)

    async def _go_on(self, ctx: Context, past: Past) -> Outcome:
        """People have answered the question about the first call that had no answer yet; or the
        child tasks have ended."""
        asked = [call for call in past.open if "child" not in call]
        if not asked:
            results, told = read_children(ctx, past.open)
            return await self._play(ctx, past, results=results, more={"children": told})
        answers = dict(past.answers)
        left = [call for call in asked if call["id"] not in answers]
        if left and ctx.answer is not None:
            answers[left.pop(0)["id"]] = ctx.answer
        if left:
            return make_question(left[0], self._write(ctx, past, [], past.open, answers))
        results = read_answers(ctx, past.open, answers)
        return await self._play(ctx, past, results=results)

    async def _play(
        self, ctx: Context, past: Past, *, opening: str = "",
        results: DeferredToolResults | None = None, more: Mapping[str, Any] | None = None,
    ) -> Outcome:  # fmt: skip
        records = read_records(ctx)
        recorder = Recorder(
            ctx, self.policy, records, unpriced=self.unpriced, output_tokens=self.output_tokens
        )
        history = list(past.messages)
        prompt: Prompt = None
        if not history:
            # What was sent with the answer that is on record; the hand-off may say more by now.
            history = load_messages((recorder.stored or {}).get("opening") or [])
            prompt = None if history else self._open_session(ctx, opening)
        asks = results is None and recorder.stored is None
        heard = hear_messages(ctx, records, asks=asks)
        told = make_request(heard) if past.messages else []
        if isinstance(prompt, str) and heard:
            prompt = [prompt, *map(write_message, heard)]
        history += told
        try:
            run = await self._drive(ctx, recorder, history, prompt, results)
        except UnexpectedModelBehavior as error:
            recorder.spoil(error)
            raise
        new = _list_new(run, history, past, recorder, told)
        data = self._write(ctx, past, new, run.waiting, {}, recorder)
        data[KEY] |= more or {}
        turns = [(one.number, one.messages) for one in past.turns]
        record_circle(ctx, [*turns, (ctx.turn, data[KEY]["messages"])])
        if heard:
            data[KEY]["heard"] = heard
        if run.waiting:
            asked = [call for call in run.waiting if "child" not in call]
            return make_question(asked[0], data) if asked else make_children(run.waiting, data)
        if run.ended and are_waiting(ctx):
            return Again(data)  # to be told of it first; what it answers then counts
        if not run.ended:
            if data[KEY]["stuck"] >= self.patience:
                stuck = Fail("agent_stuck", f"{self.patience} turns in a row brought only errors.")
                recorder.spoil(stuck)  # so that a retry asks the model once more
                raise stuck
            return Again(data)
        answer = to_jsonable_python(run.output)
        data[ctx.step] = answer
        last = ctx._workflow.steps[-1].name == ctx.step
        return Finish({ctx.step: answer}, data=data) if last else Advance(data)

    def _open_session(self, ctx: Context, before: str) -> str:
        goal = self.goal if isinstance(self.goal, str) else self.goal(ctx)
        return "\n\n".join(
            part for part in (goal, ctx.handoff(self.handoff_tokens).markdown, before) if part
        )

    async def _drive(
        self, ctx: Context, recorder: Recorder, history: list[ModelMessage], prompt: Prompt,
        results: DeferredToolResults | None,
    ) -> _Run:  # fmt: skip
        """Run the agent's graph until its next model request belongs to the next unit."""
        agent = self._make_agent(ctx)
        run = _Run()
        deps = ctx if self.deps is None else self.deps(ctx)
        with agent.using_thread_executor(_Inline()):
            # The agent's own block closes its connections, which belong to this unit's loop.
            async with agent, agent.iter(
                prompt, message_history=history, deferred_tool_results=results, deps=deps,
                capabilities=[recorder], model_settings={"max_retries": 0}, infer_name=False,
                toolsets=self.toolsets,
            ) as graph:  # fmt: skip
                node: Any = graph.next_node
                try:
                    while not isinstance(node, End):
                        if Agent.is_model_request_node(node) and (recorder.asked or results):
                            run.messages = [*graph.all_messages(), node.request]
                            return run
                        node = await graph.next(node)
                    run.ended, run.output = True, node.data.output
                except Waiting as wait:
                    run.waiting = wait.calls
                run.messages = list(graph.all_messages())
        return run

    def _write(
        self, ctx: Context, past: Past, new: list[ModelMessage], waiting: list[dict[str, Any]],
        answers: Mapping[str, Any], recorder: Recorder | None = None,
    ) -> dict[str, Any]:  # fmt: skip
        """The unit's output: what it adds to the transcript, and where the session stands."""
        parts = new[-1].parts if new and isinstance(new[-1], ModelRequest) else []
        stuck = past.stuck + 1 if holds_errors_only(parts) else 0
        spent = (
            recorder.stored["spent"] if recorder and recorder.asked and recorder.stored else None
        )
        return {KEY: {
            "session": past.session, "began": past.began, "since": past.since,
            "messages": dump_messages(new), "calls": recorder.calls if recorder else [],
            "spent": spent, "open": waiting, "answers": dict(answers),
            "stuck": past.stuck if recorder is None else stuck,
        }}  # fmt: skip


class _Run:
    """How far one unit drove the agent."""

    messages: list[ModelMessage]
    waiting: list[dict[str, Any]] = []
    ended = False
    output: Any = None


def _list_new(
    run: _Run,
    history: list[ModelMessage],
    past: Past,
    recorder: Recorder,
    told: list[ModelMessage],
) -> list[ModelMessage]:
    """The messages that this unit adds, as they will be sent again."""
    parts = list_new_parts(run.messages, history)
    back: list[ModelMessage] = [ModelRequest(parts=parts)] if parts else []
    if not recorder.asked:
        return back
    place = max(n for n, one in enumerate(run.messages) if isinstance(one, ModelResponse))
    opening = [] if past.messages else run.messages[:1]
    return [*opening, *told, run.messages[place], *back]


class _Inline(concurrent.futures.Executor):
    """Runs plain tools in the worker's main thread: on the unit's own connection, where its
    deadline reaches them. Nobody else is served by the loop that waits."""

    def submit[**P, T](
        self, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs
    ) -> concurrent.futures.Future[T]:
        """Call it, now."""
        future: concurrent.futures.Future[T] = concurrent.futures.Future()
        try:
            with write_blocking():
                future.set_result(fn(*args, **kwargs))
        except Exception as error:
            future.set_exception(error)
        return future
