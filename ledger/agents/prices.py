"""What a request to a model costs: by the provider, by the site's own prices, or by genai-prices.

The setting `LONGWATCH_PRICES` is `{"MODEL": {"input": "0.15", "output": "0.60"}}`, in money per
million tokens, with `cache_read` and `cache_write` where they differ. A model's own name or
`provider:name` finds its line.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from decimal import ROUND_UP, Decimal
from typing import Any

from django.conf import settings
from django.core.exceptions import ImproperlyConfigured
from genai_prices import Usage, calc_price
from pydantic_ai.messages import ModelMessagesTypeAdapter, ModelResponse
from pydantic_ai.models import Model, ModelRequestContext
from pydantic_ai.usage import RequestUsage

from ledger.conf import parse_money
from ledger.outcomes import Fail

OUTPUT_TOKENS = 4_096
"""What a request may answer, where nothing sets `max_tokens`: only for what is reserved."""

MILLION = 1_000_000
SMALLEST = Decimal("0.000000001")
FREE = ("test", "function")
"""pydantic-ai's own models, for tests: they cost nothing."""

KINDS = ("input", "output", "cache_read", "cache_write")


@dataclasses.dataclass(frozen=True)
class Rate:
    """Own prices of one model, per token."""

    input: Decimal
    output: Decimal
    cache_read: Decimal
    cache_write: Decimal

    def price(self, usage: RequestUsage) -> Decimal:
        """The cost of a request; tokens of the cache are part of the input's count."""
        plain = usage.input_tokens - usage.cache_read_tokens - usage.cache_write_tokens
        return (
            max(0, plain) * self.input + usage.output_tokens * self.output
            + usage.cache_read_tokens * self.cache_read
            + usage.cache_write_tokens * self.cache_write
        )  # fmt: skip


def check_unpriced(given: str, what: str) -> None:
    """Raise ValueError for what is no way to treat a model without a price."""
    if given not in {"fail", "count"}:
        raise ValueError(f"{what}(unpriced=): {given!r} is neither fail nor count")


def read_prices() -> dict[str, Rate]:
    """The site's own prices. Raises ImproperlyConfigured naming what is wrong."""
    given = getattr(settings, "LONGWATCH_PRICES", None) or {}
    try:
        return {name: _read_rate(name, line) for name, line in given.items()}
    except (ValueError, AttributeError, TypeError) as error:
        raise ImproperlyConfigured(f"LONGWATCH_PRICES: {error}") from None


def _read_rate(name: str, line: Mapping[str, Any]) -> Rate:
    if not {"input", "output"} <= line.keys() <= set(KINDS):
        raise ValueError(f"{name}: takes input and output, and {', '.join(KINDS[2:])}")
    given = {"cache_read": line["input"], "cache_write": line["input"], **line}
    for kind, amount in given.items():
        parse_money(amount, f"{name}.{kind}")
    return Rate(**{kind: Decimal(amount) / MILLION for kind, amount in given.items()})


def estimate_request(request: ModelRequestContext, output_tokens: int) -> tuple[int, int]:
    """Tokens in and out that a request may take: its bytes divided by four, and what it may answer
    at most, by its `max_tokens` or else `output_tokens`."""
    parts = request.model_request_parameters
    size = len(ModelMessagesTypeAdapter.dump_json(list(request.messages)))
    size += sum(len(json.dumps(tool.parameters_json_schema)) + len(tool.description or "")
                for tool in [*parts.function_tools, *parts.output_tools])  # fmt: skip
    most = (request.model_settings or {}).get("max_tokens")
    return -(-size // 4), output_tokens if most is None else int(most)


def price_tokens(model: Model, tokens: tuple[int, int], unpriced: str) -> Decimal:
    """What a request of so many tokens would cost, before it is made.

    Of a model without a price: Fail (`unknown_price`), or 0 when the author chose
    `unpriced="count"`.
    """
    usage = RequestUsage(input_tokens=tokens[0], output_tokens=tokens[1])
    names = (f"{model.system}:{model.model_name}", model.model_name)
    if (found := _price_own(usage, names)) is not None:
        return found
    if model.system in FREE:
        return Decimal(0)
    counted = Usage(input_tokens=tokens[0], output_tokens=tokens[1])
    for where in ({"provider_api_url": model.base_url}, {"provider_id": model.system}):
        try:
            return _round_up(calc_price(counted, model.model_name, **where).total_price)
        except LookupError:
            continue
    if unpriced == "count":
        return Decimal(0)
    raise Fail(
        "unknown_price",
        f"Nobody knows what {names[0]} costs, so its limit of money could not hold. Give "
        f'LONGWATCH_PRICES a line ["{model.model_name}"] with input and output per million tokens, '
        'or let agent_step(unpriced="count") count tokens only.',
    )


def price_response(response: ModelResponse, model: Model) -> Decimal:
    """What a request did cost; 0 where nobody knows, which `price_tokens` let pass before."""
    found = _price_own(response.usage, (f"{model.system}:{model.model_name}", model.model_name))
    if found is not None:
        return found
    if response.usage.cost is not None:  # an agent's run has looked it up
        return _round_up(response.usage.cost)
    try:
        return _round_up(response.cost().total_price)
    except (LookupError, ValueError):
        tokens = response.usage.input_tokens, response.usage.output_tokens
        return price_tokens(model, tokens, "count")


def _price_own(usage: RequestUsage, names: tuple[str, ...]) -> Decimal | None:
    rates = read_prices()
    rate = next((rates[name] for name in names if name in rates), None)
    return None if rate is None else _round_up(rate.price(usage))


def _round_up(amount: Decimal) -> Decimal:
    """In whole nano-units, never less than it was."""
    return amount.quantize(SMALLEST, ROUND_UP)
