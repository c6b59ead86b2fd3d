"""The canonical text is what the standard library writes, and a copy shares nothing."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ledger import canonical
from ledger.errors import Unserialisable

TEXTS = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=8)
VALUES: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False)
    | TEXTS,
    lambda part: st.lists(part, max_size=4) | st.dictionaries(TEXTS, part, max_size=4),
)  # fmt: skip


@settings(max_examples=200, deadline=None)
@given(VALUES)
def test_the_text_is_the_standard_librarys(value: Any) -> None:
    expected = json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False)
    assert canonical.dump_json(value) == canonical.write_checked(value) == expected
    assert canonical.copy_json(value) == value


@pytest.mark.parametrize(
    "value",
    [{"a": float("nan")}, {"a\0": 1}, {"\ud800": 1}, {1: 2}, ["\0"], [object()], [{"a": {1}}]],
    ids=repr,
)
def test_what_cannot_be_stored_is_refused(value: Any) -> None:
    with pytest.raises(Unserialisable):
        canonical.dump_json(value)


def test_a_value_that_holds_itself_is_refused() -> None:
    value: dict[str, Any] = {}
    value["itself"] = [value]
    with pytest.raises(Unserialisable, match="deeper"):
        canonical.dump_json(value)


def test_a_copy_shares_nothing_that_can_be_changed() -> None:
    value = {"a": [{"b": 1}], "c": (1, 2)}
    copied = canonical.copy_json(value)
    copied["a"][0]["b"] = 2
    copied["c"].append(3)
    assert value == {"a": [{"b": 1}], "c": (1, 2)}
