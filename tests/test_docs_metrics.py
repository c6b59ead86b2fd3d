"""docs/operating.md, Metrics: what it lists is what there is, and its configuration works."""

from __future__ import annotations

import re
import shlex
from io import StringIO
from typing import Any

import pytest
import yaml
from django.core.management import call_command
from django.test import Client
from prometheus_client.parser import text_string_to_metric_families

from ledger.api import metrics
from ledger.queries.crew import STATES
from tests.conftest import ROOT

PAGE = (ROOT / "docs" / "operating.md").read_text().partition("## Metrics\n")[2].split("\n## ")[0]
SCRAPE, RULES = map(yaml.safe_load, re.findall(r"```yaml\n(.*?)```", PAGE, re.DOTALL))

pytestmark = pytest.mark.django_db


@pytest.fixture
def samples() -> dict[str, list[dict[str, str]]]:
    """Labels of the samples of each name, as the documented token gets them."""
    metrics.forget_metrics()
    command = re.findall(r"deploy/manage (token .*)", PAGE)[0]
    said = StringIO()
    call_command(*shlex.split(command), stdout=said)
    token = said.getvalue().split()[-1]
    job = SCRAPE["scrape_configs"][0]
    assert set(job["authorization"]) == {"credentials_file"}, "sent as a Bearer token"
    path = job.get("metrics_path", "/metrics")
    answer = Client().get(path, headers={"Authorization": f"Bearer {token}"})
    metrics.forget_metrics()
    assert answer.status_code == 200
    found: dict[str, list[dict[str, str]]] = {}
    for family in text_string_to_metric_families(answer.content.decode()):
        for sample in family.samples:
            found.setdefault(sample.name, []).append(sample.labels)
    return found


def test_the_table_lists_every_metric_and_its_labels(samples: dict[str, Any]) -> None:
    listed: dict[str, set[str]] = {}
    for names, labels in re.findall(r"^\| (`[a-z_`, ]+) \| ([a-z, ]*) ?\|", PAGE, re.MULTILINE):
        for name in re.findall(r"`(\w+)`", names):
            listed[f"longwatch_{name}"] = set(re.findall(r"\w+", labels))
    there = {
        re.sub(r"_(bucket|count|sum)$", "", name): set(labels[0]) - {"le"}
        for name, labels in samples.items()
    }
    assert listed == there
    assert all(f"`{state}`" in PAGE for state in STATES)


def test_each_alert_asks_for_samples_that_there_are(samples: dict[str, Any]) -> None:
    rules = RULES["groups"][0]["rules"]
    assert len({rule["alert"] for rule in rules}) == len(rules) > 5
    for rule in rules:
        asked = re.findall(r"(longwatch_\w+)(?:\{(\w+)=~?\"([^\"]*)\"\})?", rule["expr"])
        assert asked, rule
        for name, label, values in asked:
            assert name in samples, rule
            for value in values.split("|") if label else []:
                assert any(one[label] == value for one in samples[name]), rule
