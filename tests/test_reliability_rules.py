"""docs/reliability.md says of each rule which tests try it; those tests say so themselves."""

from __future__ import annotations

import ast
import collections
import re
from collections.abc import Iterable
from functools import cache

import pytest

from tests.conftest import ROOT

ROW = re.compile(r"^\| (\d+) \| (.+) \| (.+) \|$", re.MULTILINE)
PROMISED = {
    1, 2, 4, 5, 7, 8, 10, 11, 13, 14, 16, 17, 19, 20, 22, 23, 25, 26, 28, 29, 31, 32, 34, 35, 40,
    41, 43, 44, 46, 47, 49, 50, 53, 55, 56, 58, 61, 65, 67, 68, 70, 74,
}  # fmt: skip


@cache
def read_table() -> dict[int, list[str]]:
    """The names of tests, by the number of the rule."""
    text = (ROOT / "docs/reliability.md").read_text()
    section = text.split("\n## Rules\n")[1].split("\n## ")[0]
    return {int(no): re.findall(r"`(test_\w+)`", tests) for no, _, tests in ROW.findall(section)}


@cache
def read_marks() -> dict[int, set[str]]:
    """The names of the tests that carry each number, by a mark of their own or of their module."""
    found: dict[int, set[str]] = collections.defaultdict(set)
    for file in sorted((ROOT / "tests").rglob("test_*.py")):
        tree = ast.parse(file.read_text())
        tests = [node for node in tree.body if isinstance(node, ast.FunctionDef)]
        tests = [test for test in tests if test.name.startswith("test_")]
        of_module = list_numbers(node for node in tree.body if isinstance(node, ast.Assign))
        for test in tests:
            for number in of_module | list_numbers(test.decorator_list):
                found[number].add(test.name)
    return found


def list_numbers(nodes: Iterable[ast.AST]) -> set[int]:
    """The numbers in every `pytest.mark.case(…)` below these nodes."""
    calls = [node for top in nodes for node in ast.walk(top) if isinstance(node, ast.Call)]
    return {
        argument.value
        for call in calls
        if isinstance(call.func, ast.Attribute) and call.func.attr == "case"
        for argument in call.args
        if isinstance(argument, ast.Constant) and isinstance(argument.value, int)
    }


def test_every_rule_that_was_promised_is_in_the_table() -> None:
    assert sorted(PROMISED - read_table().keys()) == []


@pytest.mark.parametrize("number", sorted(read_table()))
def test_every_rule_names_tests_that_carry_its_number(number: int) -> None:
    named = read_table()[number]
    assert named, f"rule {number} names no test"
    assert sorted(set(named) - read_marks()[number]) == []


def test_every_number_that_a_test_carries_is_a_rule_of_the_table() -> None:
    assert sorted(read_marks().keys() - read_table().keys()) == []
