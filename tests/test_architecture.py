"""The house rules that a linter does not know: sizes, names, and where a row may be written."""

from __future__ import annotations

import ast
import re
import statistics
import subprocess
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from tests.conftest import ROOT

PRODUCT = ("ledger", "dashboard", "harness_site")

MODULE_LINES, FUNCTION_LINES, TEMPLATE_LINES = 400, 60, 150
MODULE_MEDIAN, FUNCTION_MEDIAN = 120, 10  # the aim is 100 and 10; files are not cut for the count

WRITES_STATUS = ("ledger/transitions/", "ledger/sql/", "ledger/sql.py", "ledger/bulk/making.py")
DELETES: dict[str, str] = {
    "ledger/alerts/conditions.py": "what is no longer so; when it began was told and is kept",
    "ledger/alerts/retention.py": "alerts that were told long ago; the events of tasks stay",
    "ledger/hours.py": "sums of hours, which are made of tasks that stay; notes that were heeded",
    "ledger/livelogs.py": "what was written for followers; the log is kept with its attempt",
    "ledger/management/checking.py": "the rows of ledger_check's own reserved workflow",
    "ledger/transitions/deleting.py": "finished tasks, by click or rule; what they were is audited",
    "ledger/transitions/views.py": "a person's own saved view, what it was is audited",
    "ledger/uploads.py": "uploads in pieces that ended or were left; pieces of finished ones",
    "ledger/collecting.py": "rows of blobs whose bytes nothing names any more",
}
"""file: why it may remove rows"""
READS_THE_CLOCK = (
    "ledger/clock.py",
    "dashboard/templatetags/",  # "3 min ago" is display
    "ledger/checks.py",  # compares the two clocks
    "ledger/orders.py",  # so does each worker, to say how far its host's is off
)


@cache
def list_tracked() -> tuple[str, ...]:
    """Every file of the repository, as git sees it: tracked, or new and not ignored."""
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        capture_output=True,
        check=True,
        text=True,
    )
    return tuple(sorted(name for name in listed.stdout.split("\0") if (ROOT / name).is_file()))


def list_modules(*tops: str) -> list[str]:
    """Our own Python files below `tops`, without what Django wrote."""
    return [
        name
        for name in list_tracked()
        if name.endswith(".py") and name.startswith(tops) and "/migrations/" not in name
    ]


@cache
def parse_module(name: str) -> ast.Module:
    return ast.parse((ROOT / name).read_text(), name)


def walk_product() -> Iterator[tuple[str, ast.AST]]:
    for name in list_modules(*(f"{top}/" for top in PRODUCT)):
        for node in ast.walk(parse_module(name)):
            yield name, node


def measure_functions(names: list[str]) -> dict[str, int]:
    """`file:function` -> its lines, decorators not counted."""
    return {
        f"{name}:{node.lineno} {node.name}": (node.end_lineno or 0) - node.lineno + 1
        for name in names
        for node in ast.walk(parse_module(name))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    }


def count_lines(name: str) -> int:
    return len((ROOT / name).read_text().splitlines())


def test_no_module_is_longer_than_the_limit() -> None:
    sizes = {name: count_lines(name) for name in list_modules("") if "/static/" not in name}
    long = {n: size for n, size in sizes.items() if size > MODULE_LINES}
    # A file of tests is a list of rules, read one by one: a quarter more may stand in one.
    assert {n: size for n, size in long.items() if not n.startswith("tests/") or size > 500} == {}


def test_no_function_is_longer_than_the_limit() -> None:
    sizes = measure_functions(list_modules(""))
    assert {name: n for name, n in sizes.items() if n > FUNCTION_LINES} == {}


def test_no_template_is_longer_than_the_limit() -> None:
    sizes = {name: count_lines(name) for name in list_tracked() if name.endswith(".html")}
    assert {name: n for name, n in sizes.items() if n > TEMPLATE_LINES} == {}


def test_half_of_the_product_is_small(record_property: pytest.RecordProperty) -> None:
    names = list_modules(*(f"{top}/" for top in PRODUCT))
    module = statistics.median(count_lines(name) for name in names)
    function = statistics.median(measure_functions(names).values())
    record_property("median lines of a module", module)
    record_property("median lines of a function", function)
    assert module <= MODULE_MEDIAN
    assert function <= FUNCTION_MEDIAN


def test_no_stored_row_is_saved_whole() -> None:
    """`.save()` writes back what was read, over what others wrote since; `.update()` is guarded."""
    found = [
        f"{name}:{node.lineno}"
        for name, node in walk_product()
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and node.func.attr in {"save", "bulk_update", "update_or_create"}
        and not is_file_storage(name, node.func.value)
        and not any(keyword.arg == "force_insert" for keyword in node.keywords)
    ]
    assert found == []


def is_file_storage(name: str, owner: ast.expr) -> bool:
    """Django's storages and forms have a `save` too: `storage.save(name, content)`."""
    if name in {
        "ledger/stores.py",
        "ledger/s3.py",
    }:  # below the models: nothing else is saved there
        return True
    return isinstance(owner, ast.Name) and owner.id in {"storage", "default_storage"}


def test_rows_are_removed_only_where_the_list_says_why() -> None:
    found = {
        name
        for name, node in walk_product()
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and node.func.attr in {"delete", "_raw_delete"}
        and not is_file_storage(name, node.func.value)
    }
    assert found == set(DELETES)


def test_nothing_happens_behind_a_signal_or_an_overridden_save() -> None:
    found = [
        f"{name}:{node.lineno}"
        for name, node in walk_product()
        if (
            isinstance(node, ast.ImportFrom) and node.module and "signals" in node.module.split(".")
        )
        or (isinstance(node, ast.alias) and node.name == "receiver")
        or (isinstance(node, ast.FunctionDef) and node.name in {"save", "delete", "save_base"})
    ]
    assert found == []


def test_a_status_is_written_only_in_a_transition() -> None:
    """As a keyword of `update()`, as an attribute, or in SQL text."""
    found = [
        f"{name}:{node.lineno}"
        for name, node in walk_product()
        if not name.startswith(WRITES_STATUS) and writes_status(node)
    ]
    assert found == []


def writes_status(node: ast.AST) -> bool:
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
        if node.func.attr in {"update", "create"}:
            return any(keyword.arg == "status" for keyword in node.keywords)
    elif isinstance(node, ast.Assign):
        return any(
            isinstance(target, ast.Attribute)
            and target.attr == "status"
            and isinstance(target.value, ast.Name)
            and target.value.id in {"task", "approval", "row"}
            for target in node.targets
        )
    elif isinstance(node, ast.Constant) and isinstance(node.value, str):
        return bool(re.search(r"\bUPDATE\b[^;]*\bSET\b[^;]*\bstatus\s*=", node.value, re.DOTALL))
    return False


def test_only_the_database_says_what_time_it_is() -> None:
    """`timezone.now`, `Now`, `datetime.now`, `time.time`: a worker's clock decides nothing."""
    clocks = {("timezone", "now"), ("datetime", "now"), ("datetime", "utcnow"), ("time", "time")}
    found = [
        f"{name}:{node.lineno}"
        for name, node in walk_product()
        if not name.startswith(READS_THE_CLOCK)
        and (
            (
                isinstance(node, ast.Attribute)
                and isinstance(node.value, ast.Name)
                and (node.value.id, node.attr) in clocks
            )
            or (isinstance(node, ast.Name) and node.id == "Now")
        )
    ]
    assert found == []


def test_every_module_of_the_product_says_what_it_is() -> None:
    found = [
        name
        for name in list_modules(*(f"{top}/" for top in PRODUCT))
        if count_lines(name) and not ast.get_docstring(parse_module(name))
    ]
    assert found == []


def test_no_file_names_where_packages_are_fetched_from() -> None:
    """Each machine has its own index; an address in a file would win over it."""
    hosts = re.compile(
        rb"pypi\.(org|io)|pythonhosted\.org|registry\.(npmjs|yarnpkg)|"
        rb"--(extra-)?index-url[ =]\S*://|--find-links[ =]|proxy\.golang\.org|crates\.io"
    )
    own = Path(__file__).relative_to(ROOT).as_posix()
    found = [n for n in list_tracked() if n != own and hosts.search((ROOT / n).read_bytes())]
    assert found == []
