"""One request to a model on record: reserved before it is made, its answer stored, then paid.

The attempt after a lost one finds the answer and asks nothing. Whatever asks a model in a unit has
a name of its own for it.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator, Mapping
from decimal import Decimal
from typing import TYPE_CHECKING, Any

from pydantic_ai.direct import model_request
from pydantic_ai.exceptions import ModelHTTPError
from pydantic_ai.messages import ModelResponse
from pydantic_ai.models import ModelRequestContext
from pydantic_ai.usage import RequestUsage

from ledger.agents.history import dump_messages, load_messages
from ledger.agents.prices import estimate_request, price_response, price_tokens
from ledger.agents.refusals import explain_refusal
from ledger.canonical import clean_json
from ledger.holds import Hold
from ledger.queries.effects import OWN

if TYPE_CHECKING:
    from ledger.context import Context


MOST_TOKENS = 10**9
"""No request takes more; a provider that says so is not believed, and what was reserved counts."""


class Request:
    """The answer to one request of a unit, if there is one, and how it comes to be.

    `name` tells it from the unit's others. `records` are what earlier attempts finished. Effects:
    `agent.NAME` has the answer, `agent.NAME.spoiled.N` says that the one before led to nothing, and
    then `agent.NAME.N` has the next.
    """

    def __init__(
        self, ctx: Context, records: Mapping[str, Any], *, unpriced: str, output_tokens: int,
        name: str = "model",
    ) -> None:  # fmt: skip
        self.ctx = ctx
        self.unpriced = unpriced
        self.output_tokens = output_tokens
        said = f"{OWN}{name}"
        self._spoils = f"{said}.spoiled"
        self._spoiled = sum(
            bool(re.fullmatch(rf"{re.escape(self._spoils)}\.\d+", one)) for one in records
        )
        self.said = f"{said}.{self._spoiled}" if self._spoiled else said
        self.stored: dict[str, Any] | None = records.get(self.said)
        self._hold: Hold | None = None
        self._most: tuple[tuple[int, int], Decimal] = (0, 0), Decimal(0)

    @contextlib.contextmanager
    def asking(self, request: ModelRequestContext) -> Iterator[None]:
        """Around the making of it: reserved and announced before. What a provider refuses costs
        nothing; raises RetryLater for a busy one, LimitReached before it is made, and Fail."""
        tokens = estimate_request(request, self.output_tokens)
        cost = price_tokens(request.model, tokens, self.unpriced)
        self._most = tokens, cost
        self._hold = self.ctx.reserve(tokens=sum(tokens), cost=cost)
        self.ctx._begin_effect(self.said, None)
        try:
            yield
        except ModelHTTPError as error:
            if not error.in_stream:  # refused, so there is nothing to pay
                self._hold.release()
            explain_refusal(error, self.ctx.attempt)

    def keep(self, response: ModelResponse, request: ModelRequestContext, **more: Any) -> None:
        """Put the answer on record, with what it cost and whatever else belongs to it (JSON)."""
        assert self._hold is not None
        tokens, cost = self._most
        if is_measured(response.usage):
            tokens = (response.usage.input_tokens, response.usage.output_tokens)
            cost = price_response(response, request.model)
        note = f"{response.model_name} {response.provider_response_id or ''}"
        spent = {
            "tokens_in": tokens[0], "tokens_out": tokens[1], "cost": str(cost),
            "note": clean_json(note.strip()),
        }  # fmt: skip
        told = {"response": dump_messages([response])[0], "hold": self._hold.key, "spent": spent}
        self.stored = self.ctx._finish_effect(self.said, told | more)

    def read(self) -> ModelResponse:
        """The answer that is on record, paid if that is not on record yet."""
        assert self.stored is not None
        Hold(self.ctx, self.stored["hold"]).settle(**self.stored["spent"])
        found = load_messages([self.stored["response"]])[0]
        assert isinstance(found, ModelResponse)
        return found

    def spoil(self, error: Exception) -> None:
        """Put on record that the answer led to nothing but this error; the next attempt asks for
        another."""
        if self.stored is not None:
            self.ctx.once(f"{self._spoils}.{self._spoiled + 1}", lambda: str(error))


def is_measured(usage: RequestUsage) -> bool:
    """False for a provider that does not say what the answer took, or says what can't be."""
    counts = (usage.input_tokens, usage.output_tokens, usage.cache_read_tokens,
              usage.cache_write_tokens)  # fmt: skip
    if usage.unmeasured_requests or not any(counts):
        return False
    return all(0 <= count <= MOST_TOKENS for count in counts)


async def send(context: ModelRequestContext) -> ModelResponse:
    """Make a request that belongs to no agent's run."""
    async with context.model:  # closes its connections, which belong to this loop
        return await model_request(
            context.model, context.messages, model_settings=context.model_settings,
            model_request_parameters=context.model_request_parameters,
        )  # fmt: skip
