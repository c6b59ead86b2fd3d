"""Workflows that evaluate, and commands that are Python code on one line."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from ledger.workflows import Workflow


@pytest.fixture(autouse=True)
def own_store(settings: Any, tmp_path: Path) -> None:
    """Artifacts and workspaces of the test alone."""
    settings.LONGWATCH_VAR = str(tmp_path / "var")
    settings.LONGWATCH_ARTIFACTS = str(tmp_path / "artifacts")
    settings.LONGWATCH_CHECKS = {}


@pytest.fixture
def add_check(settings: Any) -> Callable[..., None]:
    """`add_check("tests", "print(1)", timeout=5)`: a command of the settings."""

    def add(name: str, code: str, **more: Any) -> None:
        argv = [sys.executable, "-c", code]
        settings.LONGWATCH_CHECKS = settings.LONGWATCH_CHECKS | {name: {"argv": argv, **more}}

    return add


def make_flow(
    layers: Sequence[Any],
    outputs: Sequence[Any],
    files: dict[str, str | bytes] | None = None,
    **options: Any,
) -> Workflow:
    """`draft` returns these outputs, one in each round (then the last), and writes the files."""
    flow = Workflow("evaluated", max_repairs=options.pop("max_repairs", 3))

    @flow.step(retries=0)
    def draft(ctx: Any) -> Any:
        for name, text in (files or {}).items():
            content = text.encode() if isinstance(text, str) else text
            (ctx.workspace / name).write_bytes(content)
        return {**outputs[min(ctx.round, len(outputs) - 1)], "told": ctx.feedback}

    flow.evaluate("check", layers, **{"of": "draft", "retries": 0, **options})
    return flow
