"""What a submitter of `modernise` gives; every field is checked before the task exists."""

from __future__ import annotations

from typing import Annotated
from uuid import UUID

from django.conf import settings
from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

from harness_site.workflows.modernise.checks import TESTS
from harness_site.workflows.modernise.ruffing import RULES, TARGET, find_rule_problem
from harness_site.workflows.modernise.source import find_distribution

Rule = Annotated[str, Field(pattern=r"^[A-Z]{1,5}[0-9]{0,4}$")]


def list_tests() -> list[str]:
    """The ways to run tests that this site allows."""
    return [name for name in getattr(settings, "LONGWATCH_TESTS", TESTS) if name in TESTS]


class Modernise(BaseModel):
    """An installed distribution or an uploaded archive, and how to go about it."""

    model_config = ConfigDict(extra="forbid")

    distribution: Annotated[str, Field(max_length=200)] | None = Field(
        None, description="A package that is installed beside the workers, such as simplejson."
    )
    archive: Annotated[UUID, Field(json_schema_extra={"format": "artifact"})] | None = Field(
        None, description="Or a source archive instead of a distribution."
    )
    rules: Annotated[list[Rule], Field(min_length=1, max_length=50)] = Field(
        list(RULES), description="Rules of ruff, or their prefixes."
    )
    target: Annotated[str, Field(pattern=r"^py3(7|8|9|1[0-4])$")] = Field(
        TARGET, description="The oldest Python that the package is to run on."
    )
    batch_size: Annotated[int, Field(ge=1, le=500)] = Field(
        6, description="Files that one unit changes."
    )
    tests: str = Field(TESTS[0], description=f"How its tests are run: {' or '.join(TESTS)}.")
    pause: Annotated[float, Field(ge=0, le=2)] = Field(
        0.0, description="Seconds between units, for people who want to see them go by."
    )

    @field_validator("distribution")
    @classmethod
    def _check_distribution(cls, name: str | None) -> str | None:
        if name is not None:
            find_distribution(name)
        return name

    @field_validator("rules")
    @classmethod
    def _check_rules(cls, rules: list[str]) -> list[str]:
        if problem := find_rule_problem(tuple(rules)):
            raise ValueError(problem)
        return rules

    @field_validator("tests")
    @classmethod
    def _check_tests(cls, name: str) -> str:
        if name not in list_tests():
            raise ValueError(f"takes one of {', '.join(list_tests())}")
        return name

    @model_validator(mode="after")
    def _check_source(self) -> Modernise:
        if (self.distribution is None) == (self.archive is None):
            raise ValueError("takes either a distribution or an archive")
        return self
