"""The code of a function as text: what a workflow's digest is of."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from types import CodeType
from typing import Any


def unwrap_partial(fn: Any) -> Any:
    while isinstance(fn, functools.partial):
        fn = fn.func
    return fn


def read_source(fn: Callable[..., Any]) -> str:
    bare = inspect.unwrap(unwrap_partial(fn))
    if describe := getattr(bare, "describe_code", None):
        return str(describe())
    try:
        return inspect.getsource(bare)
    except (OSError, TypeError):
        code = getattr(bare, "__code__", None)
        return (
            _describe_code(code) if code else f"{type(bare).__module__}.{type(bare).__qualname__}"
        )


def _describe_code(code: CodeType) -> str:
    # repr() of a nested code object holds its address, which differs in every process.
    consts = [_describe_code(c) if isinstance(c, CodeType) else repr(c) for c in code.co_consts]
    return f"{code.co_code.hex()} {code.co_names} [{', '.join(consts)}]"
