"""Every test here has folders of its own."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ledger import blobcache
from tests.workspaces.kit import forget_home


@pytest.fixture(autouse=True)
def var(settings: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    settings.LONGWATCH_VAR = str(tmp_path / "var")
    settings.LONGWATCH_ARTIFACTS = str(tmp_path / "artifacts")
    monkeypatch.setattr(blobcache, "_unseen", -1)
    forget_home()
    yield tmp_path / "var"
    forget_home()
