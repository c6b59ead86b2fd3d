"""The evaluators that come with the ledger, from the cheapest on."""

from __future__ import annotations

import dataclasses
import enum
import inspect
import itertools
import json
import os
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import jsonschema
from jsonschema.validators import validator_for
from pydantic import BaseModel, ValidationError
from referencing import Registry

from ledger import canonical, commands, linting, secrets
from ledger.errors import NotFound, Unserialisable
from ledger.evaluators.findings import MAX_READ, Finding
from ledger.evaluators.judging import EvaluatorFailed, Unit
from ledger.outcomes import AskApproval, StepRef
from ledger.unitlog import write_output

MAX_JSON = 16 * 1024**2
"""Bytes of an artifact that a schema is held against."""

MAX_VALUES = 100_000
"""Values in what a schema is held against: each may be a misfit, which costs 3 KB and 60 us."""

SHOWN = 1_500
"""Characters of a command's output in its finding; all of it is an artifact then."""

LOCATED = re.compile(r"^(\S[^:\n]{0,300}):(\d+)(?::\d+)?:? +(\S.*)$", re.MULTILINE)
"""`file:line: message`, as compilers, linters and test runners write it."""

LINTERS = ("ruff",)
NO_VALUE = object()


class Cost(enum.IntEnum):
    """Classes of cost, in which layers run in order; layers of one class all run."""

    MEMORY = 0
    FILES = 10
    COMMAND = 20
    MODEL = 30
    PERSON = 40


@dataclasses.dataclass(frozen=True)
class Schema:
    """A pydantic model or a JSON Schema that the value must fit; references lead nowhere outside.

    `key` takes one key of it instead, `artifact` the task's newest artifact of that name (JSON).
    Raises ValueError for a schema that is none.
    """

    schema: type[BaseModel] | dict[str, Any]
    key: str | None = None
    artifact: str | None = None
    name: str = ""
    cost: int = Cost.MEMORY
    kind: str = dataclasses.field(default="schema", init=False)

    def __post_init__(self) -> None:
        model = isinstance(self.schema, type) and issubclass(self.schema, BaseModel)
        if not model and not isinstance(self.schema, dict):
            raise ValueError(f"Schema takes a pydantic model or a JSON Schema, not {self.schema!r}")
        if isinstance(self.schema, dict):
            try:
                _choose_validator(self.schema).check_schema(self.schema)
            except jsonschema.SchemaError as error:
                raise ValueError(f"Schema: {error.json_path} {error.message}") from None
        title = self.schema.get("title") if isinstance(self.schema, dict) else self.schema.__name__
        called = self.name or str(title or self.artifact or self.key or "schema")
        object.__setattr__(self, "name", called)

    def find(self, ctx: Unit, value: Any) -> Iterator[Finding]:
        """Each misfit at its JSON path."""
        root = f"{self.artifact}: $" if self.artifact else "$"
        try:
            if self.artifact is not None:
                value = _read_artifact(ctx, self.artifact)
            if self.key is not None:
                value, root = _take_key(value, self.key), f"{root}.{self.key}"
            if _has_many(value):
                raise _Lacking(f"has more than {MAX_VALUES:,} values, too many to be judged")
        except _Lacking as lacking:
            yield Finding(str(lacking), root)
            return
        yield from (
            self._fit_model(value, root)
            if isinstance(self.schema, type)
            else self._fit_schema(value, root)
        )

    def _fit_model(self, value: Any, root: str) -> Iterator[Finding]:
        assert isinstance(self.schema, type)
        try:
            self.schema.model_validate_json(canonical.dump_json(value))
        except ValidationError as error:
            for one in error.errors(include_url=False, include_context=False, include_input=False):
                yield Finding(one["msg"], root + _write_path(one["loc"]))

    def _fit_schema(self, value: Any, root: str) -> Iterator[Finding]:
        assert isinstance(self.schema, dict)
        validator = _choose_validator(self.schema)(self.schema, registry=Registry())
        for error in validator.iter_errors(value):
            yield Finding(error.message, root + error.json_path.removeprefix("$"))

    def describe_code(self) -> str:
        """The schema as text."""
        schema = self.schema if isinstance(self.schema, dict) else self.schema.model_json_schema()
        return f"schema {self.key} {self.artifact} {canonical.digest_json(schema)}"


class Predicate:
    """A function that says what is wrong: nothing (None, True) or a text, or a list of texts and
    Findings; False says that it does not hold. It is given the value, or `ctx` by that name.

    Raises ValueError for what is no plain function.
    """

    kind = "predicate"

    def __init__(
        self, fn: Callable[..., Any], *, key: str | None = None, name: str = "",
        cost: int = Cost.MEMORY,
    ) -> None:  # fmt: skip
        if not callable(fn) or inspect.iscoroutinefunction(fn):
            raise ValueError(f"Predicate takes a plain function, not {fn!r}")
        self.fn = fn
        self.key = key
        self.name = name or str(getattr(fn, "__name__", "predicate"))
        self.cost = cost

    def find(self, ctx: Unit, value: Any) -> Iterable[Finding | str]:
        """What the function says. Raises TypeError for what says nothing, and what it raises."""
        if self.key is not None:
            try:
                value = _take_key(value, self.key)
            except _Lacking as lacking:
                return [Finding(str(lacking), f"$.{self.key}")]
        said = self.fn(*(ctx if name == "ctx" else value for name in self._list_parameters()))
        if said is None or said is True:
            return []
        if said is False:
            return [f"{self.name} does not hold"]
        if isinstance(said, (str, Finding)):
            return [said] if said else []
        if isinstance(said, Iterable) and not isinstance(said, (dict, bytes)):
            return said
        raise TypeError(f"{self.name} returned a {canonical.name_type(said)}, which says nothing")

    def _list_parameters(self) -> list[str]:
        found = inspect.signature(self.fn).parameters.values()
        return [one.name for one in found if one.default is one.empty and one.kind < 2]

    def describe_code(self) -> str:
        """The function's source where there is one."""
        try:
            return f"predicate {self.key} {inspect.getsource(self.fn)}"
        except (OSError, TypeError):
            return f"predicate {self.key} {self.name}"


@dataclasses.dataclass(frozen=True)
class Lint:
    """ruff over the workspace, or the `paths` in it, by these `rules` and by no configuration that
    lies there. Raises ValueError for another linter.
    """

    linter: str = "ruff"
    rules: Sequence[str] = ("E4", "E7", "E9", "F")
    paths: Sequence[str] = (".",)
    target: str = "py312"
    name: str = ""
    cost: int = Cost.FILES
    kind: str = dataclasses.field(default="lint", init=False)

    def __post_init__(self) -> None:
        if self.linter not in LINTERS:
            raise ValueError(f"Lint: {self.linter!r} is none of {', '.join(LINTERS)}")
        object.__setattr__(self, "name", self.name or self.linter)

    def find(self, ctx: Unit, value: Any) -> Iterator[Finding]:
        """Each at `file:line`, with its rule."""
        root = ctx.workspace
        rules = [*self.rules, "E902"]  # what can't be read is no pass, nor is what is not there
        given = "--output-format=json-lines"
        try:
            told = linting.run_ruff(root, self.paths, rules, self.target, given, tick=ctx.check)
        except linting.RuffFailed as error:
            raise EvaluatorFailed(str(error)) from error
        for line in itertools.islice(told.splitlines(), MAX_READ):
            one = json.loads(line)
            where = f"{_shorten_path(one['filename'], root)}:{one['location']['row']}"
            yield Finding(f"{one['code'] or 'syntax'}: {one['message']}", where)


@dataclasses.dataclass(frozen=True)
class Command:
    """The command of this name in LONGWATCH_CHECKS, run in the workspace: its exit code decides.

    Lines of its output such as `file:line: message` are findings, beside its end. A name that the
    settings lack, a program that is missing and a timeout are errors of the evaluator.
    """

    command: str
    name: str = ""
    cost: int = Cost.COMMAND
    kind: str = dataclasses.field(default="command", init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "name", self.name or self.command)

    def find(self, ctx: Unit, value: Any) -> Iterator[Finding]:
        """Nothing after an exit code that is a pass."""
        try:
            check = commands.find_check(self.command)
        except commands.UnknownCheck as error:
            raise EvaluatorFailed(str(error)) from None
        known = {name: ctx.secret(name) for name in check.secrets}
        root = ctx.workspace
        ended = commands.run_check(check, root, secrets=known, tick=ctx.check)
        if not check.network and "network" not in ended.held:
            ctx.log.warning("this machine does not cut the command off from the network")
        output = commands.read_output(ended, secrets.mask_text)
        write_output(f"{output}\n".encode())
        if ended.timed_out:
            raise EvaluatorFailed(f"it did not end in {check.timeout:g} s; {_show_end(output)}")
        if check.is_unusable(ended.code):
            raise EvaluatorFailed(f"it ended with exit code {ended.code}; {_show_end(output)}")
        if ended.code in check.passes:
            return
        shown = _show_end(output)
        if len(output) > SHOWN:
            kept = ctx.save_artifact(f"{ctx.step}-{self.name}.log", output, "text/plain")
            shown += f"\n(all of it: artifact {kept.name})"
        yield Finding(f"exit code {ended.code}; {shown}")
        for found in LOCATED.finditer(output):
            path = _shorten_path(str(root / found[1]), root)
            if not os.path.isabs(path) and os.path.isfile(root / path):
                yield Finding(found[3], f"{path}:{found[2]}")


class Person:
    """People decide, once every other layer has passed, and see what those said. `options` are
    those of AskApproval; Send back leads to where the evaluation repairs to.
    """

    kind = "person"
    cost = Cost.PERSON

    def __init__(self, subject: str, **options: Any) -> None:
        if taken := options.keys() & {"then", "send_back_to", "payload", "data"}:
            raise ValueError(f"Person({min(taken)}=): the evaluation sets it")
        self.question = AskApproval(subject, **options)
        self.name = subject

    def make_question(self, output: dict[str, Any], send_back_to: StepRef) -> AskApproval:
        """What to ask, with the verdicts so far."""
        return dataclasses.replace(
            self.question, payload=output, data=output, send_back_to=send_back_to
        )

    def describe_code(self) -> str:
        """The question."""
        return f"person {self.question!r}"


class _Lacking(Exception):
    """There is nothing to judge, which is a finding."""


def _read_artifact(ctx: Unit, name: str) -> Any:
    try:
        with ctx.open_artifact(name) as file:
            text = file.read(MAX_JSON + 1)
    except NotFound:
        raise _Lacking("there is no such artifact") from None
    if len(text) > MAX_JSON:
        raise _Lacking(f"is larger than {MAX_JSON >> 20} MiB")
    try:
        value = json.loads(text)
        canonical.check_json(value)
    except (ValueError, RecursionError, Unserialisable) as error:
        raise _Lacking(f"is not JSON: {error}") from None
    return value


def _take_key(value: Any, key: str) -> Any:
    found = value.get(key, NO_VALUE) if isinstance(value, dict) else NO_VALUE
    if found is NO_VALUE:
        raise _Lacking("is missing")
    return found


def _has_many(value: Any) -> bool:
    """Whether there are more than MAX_VALUES in it."""
    todo, count = [value], 1
    while todo and count <= MAX_VALUES:
        one = todo.pop()
        parts = list(one.values()) if isinstance(one, dict) else one
        if isinstance(parts, list):
            count += len(parts)
            todo += [part for part in parts if isinstance(part, (dict, list))]
    return count > MAX_VALUES


def _choose_validator(schema: dict[str, Any]) -> Any:
    return validator_for(schema, default=jsonschema.Draft202012Validator)


def _write_path(parts: Iterable[str | int]) -> str:
    return "".join(f"[{one}]" if isinstance(one, int) else f".{one}" for one in parts)


def _show_end(output: str) -> str:
    end = output.strip()[-SHOWN:]
    return f"its output ends:\n{end}" if end else "it wrote nothing"


def _shorten_path(path: str, root: Path) -> str:
    """A path in the workspace from its root."""
    for base in (root, root.resolve()):
        if Path(path).is_relative_to(base):
            return Path(path).relative_to(base).as_posix()
    return path
