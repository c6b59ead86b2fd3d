"""Requests that nobody would think of, made from our own OpenAPI document: never a 500."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import hypothesis
import pytest
import schemathesis
from django.core.handlers.wsgi import WSGIHandler
from hypothesis import HealthCheck
from schemathesis import GenerationMode
from schemathesis.specs.openapi.checks import response_schema_conformance

from ledger.workflows import Workflow
from tests.api.conftest import BASE, Api

pytestmark = [pytest.mark.both_databases, pytest.mark.timeout(300)]

EXAMPLES = 10
CHECKS = [
    schemathesis.checks.not_a_server_error,
    response_schema_conformance,
]


@pytest.mark.parametrize("mode", [GenerationMode.POSITIVE, GenerationMode.NEGATIVE])
def test_every_operation_answers_as_it_says(
    transactional_db: None, login: Callable[..., Api], workflow: Workflow, mode: GenerationMode
) -> None:
    api = login()
    body = {"workflow": "brief", "input": {"subject": "bees"}}
    real = {
        "task_id": api.post("/tasks", body).expect(201)["id"],
        "artifact_id": api.post("/artifacts?name=x", b"bytes").expect(201)["id"],
        "upload_id": api.post("/uploads", {"name": "x", "size": 9}).expect(201)["id"],
    }
    schema = schemathesis.openapi.from_wsgi(f"{BASE}/openapi.json", WSGIHandler())
    operations = [result.ok() for result in schema.get_all_operations()]
    assert len(operations) >= 20
    for operation in operations:
        call_often(operation, api.headers, real, mode)


def call_often(
    operation: Any, headers: dict[str, str], real: dict[str, str], mode: GenerationMode
) -> None:
    """Call with ids that exist, so that what lies behind a 404 is reached."""

    @hypothesis.given(case=operation.as_strategy(generation_mode=mode))
    @hypothesis.settings(
        max_examples=EXAMPLES,
        deadline=None,
        derandomize=True,
        database=None,
        suppress_health_check=list(HealthCheck),
    )
    def call(case: Any) -> None:
        if not operation.path.endswith("/content"):  # its client would leave the file open
            names = real.keys() & case.path_parameters.keys()
            case.path_parameters.update({name: real[name] for name in names})
        response = case.call(headers=headers)
        case.validate_response(response, checks=CHECKS)
        if response.status_code >= 400:
            assert response.headers["content-type"] == ["application/problem+json"]

    call()
