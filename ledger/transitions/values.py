"""The values of an answer against the JSON Schema of its question."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import jsonschema
from jsonschema.validators import validator_for
from referencing import Registry
from referencing.exceptions import Unresolvable

MAX_MISFITS = 20

type Misfit = tuple[tuple[str | int, ...], str]


def list_misfits(form: Any, values: Any) -> list[Misfit]:
    """(path of the value, what is wrong with it), in order of the paths; empty when it fits.

    A schema that is none asks for nothing: the people are not to blame for it. References
    outside the schema are not followed.
    """
    kind = validator_for(form, default=jsonschema.Draft202012Validator)
    try:
        kind.check_schema(form)
        found = list(_read_errors(kind(form, registry=Registry()), values))
    except (jsonschema.SchemaError, Unresolvable, re.error):
        return []
    return sorted(dict.fromkeys(found), key=lambda one: [str(part) for part in one[0]])[
        :MAX_MISFITS
    ]


def _read_errors(validator: Any, values: Any) -> Iterator[Misfit]:
    for error in validator.iter_errors(values):
        path = tuple(error.absolute_path)
        if error.validator == "required":
            missing = [name for name in error.validator_value if name not in error.instance]
            yield from (((*path, name), "Give it a value.") for name in missing)
        else:
            text = error.message if len(error.message) <= 200 else f"{error.message[:200]}…"
            yield path, f"{text}."
