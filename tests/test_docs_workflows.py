"""The code in docs/workflows.md runs as it is printed there, from top to bottom."""

from __future__ import annotations

import inspect
import re
from typing import Any

import pytest

from ledger import evaluators, workflows
from ledger.context import Context
from tests.conftest import ROOT

PAGE = (ROOT / "docs" / "workflows.md").read_text()
BLOCK = re.compile(r"^```python\n(.*?)^```", re.MULTILINE | re.DOTALL)


def read_code() -> dict[str, Any]:
    """The namespace that the page's blocks leave, with the page's own line numbers."""
    scope: dict[str, Any] = {"__name__": "docs_workflows"}
    for block in BLOCK.finditer(PAGE):
        line = PAGE.count("\n", 0, block.start(1))
        exec(compile("\n" * line + block[1], "docs/workflows.md", "exec"), scope)
    return scope


CODE = read_code()
TESTS = [name for name in CODE if name.startswith("test_")]


@pytest.mark.both_databases
@pytest.mark.django_db
@pytest.mark.parametrize("name", TESTS)
def test_a_test_on_the_page_passes(
    name: str, monkeypatch: pytest.MonkeyPatch, settings: Any, tmp_path: Any
) -> None:
    settings.LONGWATCH_VAR = str(tmp_path / "var")
    settings.LONGWATCH_ARTIFACTS = str(tmp_path / "artifacts")
    test = CODE[name]
    test(**{"monkeypatch": monkeypatch} if inspect.signature(test).parameters else {})


def test_the_page_has_its_tests() -> None:
    assert len(TESTS) == 9


def test_every_name_of_the_authors_api_is_on_the_page() -> None:
    ours = {"all_workflows", "get", "known", "load_all", "load_errors", "normalise"}
    # What an author never writes: the registry, and the runner's half.
    names = set(workflows.__all__) - ours - {"Advance", "Outcome", "Step", "register"}
    runner = {"close", "finish_log", "log_tail", "mask", "raw_input", "snapshot_workspace"}
    runner |= {"spent_tokens", "spent_nano"}
    names |= set(evaluators.__all__)
    words = set(re.findall(r"\w+", PAGE))
    assert names <= words
    assert {name for name in vars(Context) if not name.startswith("_")} - runner <= words
