"""Artifacts are downloads: nothing that a task wrote is shown by the browser on our origin."""

from __future__ import annotations

import hashlib

import pytest
from django.test import Client

from ledger import artifacts
from ledger.workflows import Workflow
from tests.factories import claim, submit


@pytest.mark.parametrize(
    ("name", "shown"),
    [("report.md", 'filename="report.md"'), ("../../etc/passwd", 'filename="passwd"'),
     ("x.html", 'filename="x.html"'), ("ä.txt", "filename*=utf-8''%C3%A4.txt"),
     ('a"b\r\nX: y', "attachment"), ("/", "artifact")],
)  # fmt: skip
def test_an_artifact_is_an_attachment(
    operator: Client, three: Workflow, name: str, shown: str
) -> None:
    task = submit(three)
    body = b"<script>alert(1)</script>"
    row = artifacts.save_artifact(claim(three), name, body, "text/html")
    page = operator.get(f"/tasks/{task.id}/").content.decode()
    assert f'href="/artifacts/{row.id}/"' in page
    assert hashlib.sha256(body).hexdigest()[:12] in page
    response = operator.get(f"/artifacts/{row.id}/")
    assert b"".join(response.streaming_content) == body  # type: ignore[attr-defined]
    assert response["Content-Type"] == "application/octet-stream"
    assert response["X-Content-Type-Options"] == "nosniff"
    assert response["Content-Disposition"].startswith("attachment")
    assert shown in response["Content-Disposition"]
    assert "X" not in response.headers


def test_bytes_that_changed_on_disk_are_not_served(operator: Client, three: Workflow) -> None:
    submit(three)
    row = artifacts.save_artifact(claim(three), "a.txt", b"true bytes")
    with artifacts.open_content(row) as file:
        path = file.name
    with open(path, "r+b") as file:
        file.write(b"lies")
    response = operator.get(f"/artifacts/{row.id}/")
    assert response.status_code >= 400
    assert b"lies" not in response.content
