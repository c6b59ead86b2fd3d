"""Where trees come from, and whose code may run."""

from __future__ import annotations

import uuid
from importlib import metadata
from pathlib import Path

import pytest

from harness_site.workflows.modernise.source import (
    copy_distribution,
    find_distribution,
)
from harness_site.workflows.shared.archive import Bounds, Refused, name_after
from harness_site.workflows.shared.submitters import may_run_code
from harness_site.workflows.shared.tree import list_files
from ledger.tokens import make_token


@pytest.mark.parametrize("name", ["simplejson", "pyflakes", "ruff"])
def test_a_distribution_is_its_packages_and_nothing_else(tmp_path: Path, name: str) -> None:
    assert copy_distribution(name, tmp_path) == f"{name} {metadata.version(name)}"
    files = list_files(tmp_path)
    assert f"{name}/__init__.py" in files
    assert {path.split("/")[0] for path in files} == {name}
    assert not any("__pycache__" in path for path in files)
    site = Path(str(find_distribution(name).locate_file("")))
    for path in files:
        assert (tmp_path / path).read_bytes() == (site / path).read_bytes()
        assert ((tmp_path / path).stat().st_mode ^ (site / path).stat().st_mode) & 0o111 == 0


def test_a_distribution_has_bounds_too(tmp_path: Path) -> None:
    with pytest.raises(Refused, match="more than 3 files"):
        copy_distribution("simplejson", tmp_path, Bounds(files=3))


@pytest.mark.parametrize("name", ["no-such-thing", "", "../simplejson", "simplejson/"])
def test_what_is_not_installed_is_not_found(name: str) -> None:
    with pytest.raises(ValueError, match=r"no distribution named|is required"):
        find_distribution(name)


@pytest.mark.parametrize(
    ("archive", "name"),
    [
        ("simplejson-4.3.0.tar.gz", "simplejson-4.3.0"),
        ("pkg-1-py3-none-any.whl", "pkg-1-py3-none-any"),
        ("My Package (1).ZIP", "My-Package-1"),
        ("../../etc/passwd", "etc-passwd"),
        ("\u65e5\u672c.tgz", "archive"),
        ("x" * 300, "x" * 80),
    ],
)
def test_results_are_named_after_the_archive(archive: str, name: str) -> None:
    assert name_after(archive) == name


@pytest.mark.both_databases
@pytest.mark.django_db
def test_a_token_needs_operate_to_have_its_code_run() -> None:
    weak, _ = make_token("weak", ["read", "submit"], created_by="cli:test")
    strong, _ = make_token("strong", ["submit", "operate"], created_by="cli:test")
    assert not may_run_code(f"token:{weak.pk}")
    assert may_run_code(f"token:{strong.pk}")
    assert may_run_code("user:3")
    assert may_run_code("cli:root")
    for unknown in (f"token:{uuid.uuid4()}", "token:", "token:7", "", "task:x", "robot:1"):
        assert not may_run_code(unknown)
