"""What the apps must not take for granted in a project that is not ours."""

from __future__ import annotations

import ast
import re
import sys
import tomllib
from collections.abc import Iterator
from typing import Any

import pytest
from django.db import connection
from django.urls import URLPattern, URLResolver

from dashboard import urls as pages
from ledger.api import urls as api
from ledger.checks import check_project
from tests.conftest import ROOT
from tests.test_architecture import list_modules, list_tracked, parse_module

PROVIDED_BY = {"django": "Django", "django_q": "django-q2", "django_htmx": "django-htmx",
               "markdown_it": "markdown-it-py", "ninja": "django-ninja",
               "prometheus_client": "prometheus-client", "pydantic_core": "pydantic",
               "referencing": "jsonschema"}  # fmt: skip
"""Import name -> package, where the two differ."""

BY_EXTRA = {
    "s3": ("ledger/s3.py", {"storages", "boto3", "botocore", "urllib3"}),
    "agents": ("ledger/agents/", {"pydantic_ai", "pydantic_graph", "genai_prices"}),
}
"""What an extra brings, and the only place that imports it."""

SIGNING_IN = {"login", "login-link", "logout"}


def list_views(patterns: list[Any]) -> Iterator[URLPattern]:
    """Every view below the patterns."""
    for pattern in patterns:
        if isinstance(pattern, URLResolver):
            yield from list_views(pattern.url_patterns)
        else:
            yield pattern


def test_no_view_is_wrapped_in_a_transaction_of_the_project() -> None:
    """A long poll would hold SQLite's write lock, and a refusal would undo what came before."""
    views = list(list_views([*pages.urlpatterns, *api.urlpatterns]))
    assert len(views) > 40
    wrapped = [
        str(view.pattern) for view in views
        if not getattr(view.callback, "_non_atomic_requests", None) and view.name not in SIGNING_IN
    ]  # fmt: skip
    assert wrapped == []


def test_the_wheel_asks_for_what_its_code_imports_and_for_nothing_else() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    asked = {re.split(r"[\[=<>]", line)[0]: line for line in project["dependencies"]}
    assert BY_EXTRA.keys() <= project["optional-dependencies"].keys()
    imported = set()
    for name in list_modules("ledger/", "dashboard/"):
        extra = [names for place, names in BY_EXTRA.values() if name.startswith(place)]
        for node in ast.walk(parse_module(name)):
            if isinstance(node, ast.Import):
                found = {alias.name.partition(".")[0] for alias in node.names}
            elif isinstance(node, ast.ImportFrom) and node.module:
                found = {node.module.partition(".")[0]}
            else:
                continue
            imported |= found.difference(*extra)
    foreign = imported - set(sys.stdlib_module_names) - {"ledger", "dashboard"}
    assert {PROVIDED_BY.get(name, name).lower() for name in foreign} == {n.lower() for n in asked}
    pinned = (ROOT / "requirements" / "run.in").read_text().splitlines()
    assert set(asked.values()) <= set(pinned)


def test_no_template_of_the_apps_stands_on_one_that_a_project_may_have() -> None:
    for name in list_tracked():
        if name.startswith("templates/dashboard/"):
            text = (ROOT / name).read_text()
            used = re.findall(r'{% (?:extends|include) "([^"]+)"', text)
            assert [one for one in used if not one.startswith("dashboard/")] == []
    for name in list_modules("ledger/", "dashboard/"):
        found = re.findall(r'"([\w/]+\.html)', (ROOT / name).read_text())
        assert [one for one in found if not one.startswith(("dashboard/", "longwatch/"))] == []


def test_check_names_what_a_project_lacks(settings: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    assert check_project() == []
    settings.USE_TZ = False
    assert [found.id for found in check_project()] == ["longwatch.E001"]
    settings.USE_TZ = True
    monkeypatch.delitem(connection.settings_dict["OPTIONS"], "transaction_mode")
    assert [found.id for found in check_project()] == ["longwatch.W001"]
