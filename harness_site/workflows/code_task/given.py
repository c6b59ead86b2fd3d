"""What a submitter of `code-task` gives, and what the site must have set for it."""

from __future__ import annotations

import importlib.util
import re
from typing import Annotated
from uuid import UUID

from django.conf import settings
from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

from harness_site.workflows.code_task.checking import BUILT_IN, find_check
from ledger.commands import UnknownCheck

RECORDED = "recorded"
"""Begins the name of a model that is a file with what one has said."""

EXTRA = (
    "code-task needs the extra agents: pip install longwatch[agents], or pydantic-ai-slim[openai] "
    "and genai-prices beside requirements/run.txt"
)
NO_MODEL = (
    "no model is set. Give the web server and the workers LONGWATCH_CODE_MODEL, such as "
    "openai-chat:gpt-4o-mini, and the workers its key, LONGWATCH_SECRET_OPENAI_API_KEY; or play "
    'the example, which needs neither: {"example": true}'
)


def read_model_name() -> str:
    """The model that the site has set, as `PROVIDER:NAME`; "" for none."""
    return str(getattr(settings, "LONGWATCH_CODE_MODEL", "") or "").strip()


def find_problem(*, example: bool) -> str:
    """What the site lacks, with the cure; "" for nothing."""
    if importlib.util.find_spec("pydantic_ai") is None:
        return EXTRA
    if example:
        return ""
    name = read_model_name()
    if not name:
        return NO_MODEL
    if not re.fullmatch(r"[a-z][a-z0-9_/-]*:.+", name):
        return f"LONGWATCH_CODE_MODEL is {name!r}; it takes PROVIDER:NAME"
    return ""


class CodeTask(BaseModel):
    """A tree of files, what is to be done to it, and the check that says whether it is."""

    model_config = ConfigDict(extra="forbid")

    goal: Annotated[str, Field(max_length=20_000)] = Field(
        "", description="What is to be done, in words. The example has its own."
    )
    archive: Annotated[UUID, Field(json_schema_extra={"format": "artifact"})] | None = Field(
        None, description="A .tar.gz, a .zip or a git bundle."
    )
    check: Annotated[str, Field(max_length=100)] = Field(
        next(iter(BUILT_IN)),
        description="The command that must pass: unittest, or a name in LONGWATCH_CHECKS.",
    )
    example: bool = Field(
        False,
        description="Play the bundled example with a recorded model: it needs no key, and shows "
        "how the harness works, not what an agent can do.",
    )
    review: bool = Field(
        True, description="Ask people before publishing. Off only with LONGWATCH_CODE_UNATTENDED."
    )

    @field_validator("check")
    @classmethod
    def _check_command(cls, name: str) -> str:
        try:
            find_check(name)
        except UnknownCheck as error:
            raise ValueError(str(error)) from None
        return name

    @field_validator("review")
    @classmethod
    def _check_review(cls, wanted: bool) -> bool:
        if not wanted and not getattr(settings, "LONGWATCH_CODE_UNATTENDED", False):
            raise ValueError(
                "this site publishes nothing that people have not seen; its operator may allow it "
                "with LONGWATCH_CODE_UNATTENDED=1"
            )
        return wanted

    @model_validator(mode="after")
    def _check_whole(self) -> CodeTask:
        if self.example == (self.archive is not None):
            raise ValueError("takes either an archive or the example")
        if self.example == bool(self.goal.strip()):
            raise ValueError(
                "the example has a goal of its own" if self.example else "takes a goal, in words"
            )
        if problem := find_problem(example=self.example):
            raise ValueError(problem)
        return self
