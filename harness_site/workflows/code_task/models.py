"""The model of a `code-task`: the site's, with its key, or a recorded one."""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import Any

from harness_site.workflows.code_task.given import RECORDED, find_problem, read_model_name
from harness_site.workflows.code_task.recorded import (
    EXAMPLE,
    RecordingError,
    make_recorded_model,
)
from ledger.context import Context
from ledger.secrets import SecretUnavailable
from ledger.workflows import Fail


def make_model(ctx: Context) -> Any:
    """A model for pydantic-ai. Raises Fail, with what to set."""
    if problem := find_problem(example=ctx.input.example):
        raise Fail("no_model", problem)
    provider, _, name = read_model_name().partition(":")
    try:
        if ctx.input.example:
            return make_recorded_model(EXAMPLE)
        if provider == RECORDED:
            return make_recorded_model(Path(name))
        return _make_live(ctx, provider, name)
    except RecordingError as error:
        raise Fail("no_model", f"LONGWATCH_CODE_MODEL: {error}") from error
    except SecretUnavailable as error:
        raise Fail("no_key", f"the model {provider}:{name} has no key: {error}") from error


def _make_live(ctx: Context, provider: str, name: str) -> Any:
    from pydantic_ai.exceptions import UserError
    from pydantic_ai.models import infer_model
    from pydantic_ai.providers import infer_provider_class

    def make_provider(called: str) -> Any:
        made = infer_provider_class(called)
        if "api_key" not in inspect.signature(made).parameters:
            return made()
        # gateway/openai and openai-responses alike take the key of openai.
        service = called.rpartition("/")[2].partition("-")[0].upper()
        return made(api_key=ctx.secret(f"{service}_API_KEY"))  # type: ignore[call-arg]

    try:
        return infer_model(f"{provider}:{name}", provider_factory=make_provider)
    except (UserError, ValueError, ImportError) as error:
        raise Fail("no_model", f"LONGWATCH_CODE_MODEL={provider}:{name}: {error}") from error
