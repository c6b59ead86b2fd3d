"""At most so many tasks of a workflow at once: of all of them, or of those with the same value in a
field of their input."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping
from typing import Any

from pydantic import BaseModel

from ledger.errors import InvalidInput

MAX_KEY = 200

_PATH = re.compile(r"input(\.[^.\s]+)+")


@dataclasses.dataclass(frozen=True, slots=True)
class Concurrency:
    """`key` is the path of a field of the input, "input.repository", whose tasks with the same
    value share `at_most` places; without it all tasks of the workflow share them.

    Raises ValueError for what is no such path or no such number.
    """

    key: str = ""
    at_most: int = 1

    def __post_init__(self) -> None:
        if not isinstance(self.key, str) or (self.key and not _PATH.fullmatch(self.key)):
            raise ValueError(
                f"Concurrency(key={self.key!r}) is no field of the input; "
                'write key="input.FIELD", or no key for the workflow as a whole'
            )
        whole = isinstance(self.at_most, int) and not isinstance(self.at_most, bool)
        if not whole or not 1 <= self.at_most <= 10_000:
            raise ValueError(
                f"Concurrency(at_most={self.at_most!r}) takes a whole number from 1 to 10000"
            )

    def check_model(self, workflow: str, model: type[BaseModel] | None) -> None:
        """Raise ValueError for a field that the input model does not have."""
        if model is None or not self.key or model.model_config.get("extra") == "allow":
            return
        fields = model.model_fields.items()
        names = [field.serialization_alias or field.alias or name for name, field in fields]
        if self.key.split(".")[1] not in names:
            raise ValueError(
                f"workflow {workflow}: Concurrency(key={self.key!r}) names no field of "
                f"{model.__name__}, which has {', '.join(names) or 'none'}; "
                'write key="input.FIELD" with one of them'
            )

    def read_columns(self, data: Any) -> dict[str, Any]:
        """What a task with this (stored) input has in its row; a null has no bound.

        Raises InvalidInput naming the field.
        """
        key = self._read_key(data)
        return {
            "concurrency_key": key, "concurrency_limit": None if key is None else self.at_most,
        }  # fmt: skip

    def _read_key(self, data: Any) -> str | None:
        why = "it is the workflow's concurrency key"
        for name in self.key.split(".")[1:]:
            if not isinstance(data, Mapping) or name not in data:
                raise InvalidInput(self.key, f"is missing; {why}, so give it a text or a number.")
            data = data[name]
        if not self.key:
            return ""
        if data is None:
            return None
        if not isinstance(data, (str, int)):
            kind = type(data).__name__
            raise InvalidInput(
                self.key, f"is a {kind}; {why}, so give it a text or a whole number."
            )
        key = str(data)
        if len(key) > MAX_KEY:
            raise InvalidInput(self.key, f"is too long; {why}, so at most {MAX_KEY} characters.")
        return key


NO_KEY: dict[str, Any] = {"concurrency_key": None, "concurrency_limit": None}
"""In the row of a task whose workflow has no such bound."""


def read_key_columns(concurrency: Concurrency | None, data: Any) -> dict[str, Any]:
    """The columns of a task of a workflow with this bound, if any. Raises InvalidInput."""
    return NO_KEY if concurrency is None else concurrency.read_columns(data)


def read_new_key(concurrency: Concurrency | None, data: Any, old: str | None) -> dict[str, Any]:
    """What changes in the row of a task whose input does: with another key it holds no place."""
    new = read_key_columns(concurrency, data)
    return new | {"held_key": None} if new["concurrency_key"] != old else {}
