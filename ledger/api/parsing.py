"""Bodies and queries from strangers: parsed safely, refused by name, never a 500.

Stricter than `json.loads`, whatever the Python version: UTF-8 only, a stated depth and size, no
NaN or Infinity, no number that overflows to one, no NUL or lone surrogate (PostgreSQL stores
neither), and no key twice, because readers differ in which of the two they take.
"""

from __future__ import annotations

import json
from collections import Counter
from typing import Any

import pydantic_core
from django.http import HttpRequest
from django.utils.datastructures import MultiValueDict
from ninja.parser import Parser

from ledger.canonical import check_json
from ledger.errors import InvalidInput, PayloadTooLarge, UnparsableInput, Unserialisable

MAX_BODY = 1_048_576
"""Bytes of a JSON body. Larger inputs are uploaded as artifacts."""

WHOLE = "body"


class UnsupportedEncoding(InvalidInput):
    """The body is compressed, or no JSON by its own account."""

    code = "unsupported_media_type"
    status = 415


class SafeParser(Parser):
    """The parser of the API: a JSON object, or one of the errors that name what is wrong."""

    def parse_body(self, request: HttpRequest) -> dict[str, Any]:
        """The body's object. Raises UnparsableInput, PayloadTooLarge, UnsupportedEncoding."""
        if request.headers.get("Content-Encoding", "identity").lower() != "identity":
            raise UnsupportedEncoding(WHOLE, "is compressed; send it plain.")
        return parse_object(request.body)

    def parse_querydict(
        self, data: MultiValueDict[str, Any], list_fields: list[str], request: HttpRequest
    ) -> dict[str, Any]:
        """The query's parameters; of one given twice where one is meant, the last counts."""
        for name, values in data.lists():
            for value in values:
                _check_storable(value, clean_name(name))
        return super().parse_querydict(data, list_fields, request)


def parse_object(body: bytes) -> dict[str, Any]:
    """A JSON object from untrusted bytes. Raises UnparsableInput or PayloadTooLarge."""
    value = parse_value(body)
    if not isinstance(value, dict):
        raise UnparsableInput(WHOLE, "takes a JSON object.")
    return value


def parse_value(body: bytes) -> Any:
    """Any JSON value from untrusted bytes. Raises UnparsableInput or PayloadTooLarge."""
    if len(body) > MAX_BODY:
        raise PayloadTooLarge(
            WHOLE,
            f"is {len(body)} bytes, the bound is {MAX_BODY}. Upload it as an artifact instead.",
        )
    try:
        text = body.decode("utf-8-sig")
    except UnicodeDecodeError:
        raise UnparsableInput(WHOLE, "is not UTF-8.") from None
    _check_depth(text)
    try:
        value = json.loads(text, object_pairs_hook=_make_object)
    except (ValueError, RecursionError) as error:
        raise UnparsableInput(WHOLE, f"is not JSON: {error}.") from None
    _check_storable(value, WHOLE)
    return value


def clean_name(text: str) -> str:
    """A name from outside, fit to be shown in an error."""
    return text.encode("ascii", "backslashreplace").decode().replace("\x00", "\\x00")[:100]


def _check_depth(text: str) -> None:
    """Refuse nesting that a recursive parser would pay for with the process's stack.

    pydantic's parser stops at 200 levels on every Python version and costs about as much as a
    copy; what else it dislikes is left to the parser that can name the place.
    """
    try:
        pydantic_core.from_json(text)
    except ValueError as error:
        if "recursion limit" in str(error):
            raise UnparsableInput(WHOLE, "is nested too deeply.") from None


def _check_storable(value: Any, path: str) -> None:
    try:
        check_json(value, path)
    except Unserialisable as error:
        field = error.path.removeprefix(f"{WHOLE}.")
        raise UnparsableInput(clean_name(field), f"{error.why}.") from None


def _make_object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    made = dict(pairs)
    if len(made) != len(pairs):
        counts = Counter(key for key, _ in pairs)
        twice = next(key for key, count in counts.items() if count > 1)
        raise UnparsableInput(clean_name(twice), "stands twice in one object.")
    return made
