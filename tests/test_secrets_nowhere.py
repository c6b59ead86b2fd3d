"""Secrets are planted wherever one may be; each is found in its own field and nowhere else."""

from __future__ import annotations

import io
import json
import logging
import urllib.parse
from collections.abc import Callable, Iterator
from typing import Any, Self

import pytest
from django.apps import apps
from django.conf import settings as site
from django.contrib.auth.models import User
from django.contrib.sessions.models import Session
from django.db import connection, transaction
from django.test import Client
from pydantic import BaseModel, model_validator

from harness_site.logs import LineFormatter
from ledger import auditing, registry
from ledger.access import SCOPES
from ledger.alerts import kinds, rules
from ledger.events import Actor
from ledger.models import AlertRule, ApiToken, AuditEntry, Task
from ledger.runner import Engine, run_attempt
from ledger.tokens import make_token
from ledger.workflows import Workflow
from tests.dashboard.conftest import make_user
from tests.factories import OWNER

pytestmark = [pytest.mark.both_databases, pytest.mark.django_db, pytest.mark.case(67)]

IN_INPUT, IN_STEP, TYPED = "canary-of-the-input", "canary-of-the-step", "canary-that-was-typed"

AT_HOME = {
    IN_INPUT: {("longwatch_task", "input")},
    "session": {("django_session", "session_key")},
    "webhook": {("longwatch_alert_rule", "secret")},
}
"""Which column may hold which: the input is the task's, a session's key finds its row, a webhook's
secret signs. A token, a password and a step's secret are stored nowhere."""


class Broken(BaseModel):
    """An input whose own check is at fault."""

    password: str

    @model_validator(mode="after")
    def check(self) -> Self:
        """Fails where it should refuse."""
        raise RuntimeError("the check is broken")


@pytest.fixture
def leaky() -> Iterator[Workflow]:
    """A workflow whose step says its secret wherever it can, and fails."""
    workflow = Workflow("leaky")

    @workflow.step(retries=0)
    def tell(ctx: Any) -> Any:
        secret = ctx.secret("CANARY")
        ctx.log.info("the secret is %s", secret)
        logging.getLogger("leaky").warning("the secret is %s", secret)
        ctx.report(1, 2, note=secret)
        raise RuntimeError(f"bad login with {secret}")

    broken = Workflow("broken", input=Broken)
    broken.step(lambda ctx: None, name="a")
    auditing.forget_refusals()
    with registry.registered(workflow, broken):
        yield workflow


@pytest.fixture
def watch_log() -> Iterator[Callable[[], io.StringIO]]:
    """What the site writes to its log, as it writes it."""
    text = io.StringIO()
    handler = logging.StreamHandler(text)
    line = site.LOGGING["formatters"]["line"]
    handler.setFormatter(LineFormatter(line["format"], style="{"))
    logging.getLogger().addHandler(handler)
    yield lambda: text
    logging.getLogger().removeHandler(handler)


@pytest.mark.parametrize("debug", [False, True])
def test_no_secret_is_found_outside_of_its_field(
    leaky: Workflow, settings: Any, watch_log: Callable[[], io.StringIO],
    monkeypatch: pytest.MonkeyPatch, debug: bool,
) -> None:  # fmt: skip
    settings.DEBUG = debug
    log = watch_log()
    monkeypatch.setenv("LONGWATCH_SECRET_CANARY", IN_STEP)
    _, token = make_token("ci", SCOPES, created_by="cli:me")
    api = Client(raise_request_exception=False, headers={"Authorization": f"Bearer {token}"})
    browser = Client(raise_request_exception=False)
    browser.force_login(make_user("admin"))
    session = browser.cookies[site.SESSION_COOKIE_NAME].value
    kind = next(iter(kinds.KINDS))
    draft = rules.RuleDraft("r", [kind], kinds.WEBHOOK, "https://hooks.example/in")
    _, webhook = rules.make_rule(draft, Actor("cli", "me"))

    answers = [
        *work(api, browser),
        *read_everything(api, browser),
        *break_layers(api, browser),
    ]
    secrets = {
        "token": token, "session": session, "webhook": webhook, IN_STEP: IN_STEP, TYPED: TYPED,
        IN_INPUT: IN_INPUT, "key": site.SECRET_KEY,
        "database": site.DATABASES["default"].get("PASSWORD") or "no-password-here",
    }  # fmt: skip
    assert sum(answer.status_code == 500 for answer in answers) >= 2
    for name, secret in secrets.items():
        assert secret not in log.getvalue(), f"{name} is in a log"
        found = {place for place, text in list_columns() if secret in text}
        assert found <= AT_HOME.get(name, set()), f"{name} is in {found}"
        shown = [answer for answer in answers if secret in answer.content.decode()]
        paths = {answer.request["PATH_INFO"] for answer in shown}
        assert name == IN_INPUT or not paths, f"{name} is shown at {paths}"
        assert all(answer.status_code < 300 for answer in shown), f"{name} is in an error"
        for answer in answers:
            headers = {key: text for key, text in answer.headers.items() if key != "Set-Cookie"}
            assert secret not in urllib.parse.unquote(str(headers)), f"{name} is in a header"


def work(api: Client, browser: Client) -> Iterator[Any]:
    """Use the product as it is meant to be, and as it is not."""
    body = json.dumps({"workflow": "leaky", "input": {"password": IN_INPUT}})
    made = api.post("/api/v1/tasks", body, content_type="application/json")
    yield made
    engine = Engine(OWNER)
    held = engine.claim()
    assert held is not None
    assert run_attempt(engine, held) is None
    task = Task.objects.get()
    assert task.status == "dead"
    yield browser.post(f"/tasks/{task.pk}/retry/", {"reason": "again"})
    wrong = {"Authorization": f"Bearer {TYPED}"}
    yield Client(headers=wrong).get("/api/v1/tasks")
    yield Client().post("/login/", {"username": "admin", "password": TYPED})
    # The form gives the name back to who typed it; it is not to be found anywhere else.
    Client().post("/login/", {"username": TYPED, "password": "x"})
    bad = json.dumps({"workflow": "leaky", "input": {"p": IN_INPUT}, "more": TYPED})
    yield api.post("/api/v1/tasks", bad, content_type="application/json")
    yield api.post("/api/v1/tasks", f'{{"a": "{TYPED}"', content_type="application/json")


def read_everything(api: Client, browser: Client) -> Iterator[Any]:
    """Every place where a person or a program reads what is stored."""
    task = Task.objects.get()
    for path in ("", "/outputs", "/events", "/spend"):
        yield api.get(f"/api/v1/tasks/{task.pk}{path}")
    for path in ("/api/v1/tasks", "/api/v1/stalled", "/api/v1/workers", "/api/v1/openapi.json"):
        yield api.get(path)
    pages = ["/", "/tasks/", f"/tasks/{task.pk}/", f"/tasks/{task.pk}/events/", "/stalled/",
             "/alerts/", "/audit/", f"/alerts/{AlertRule.objects.get().pk}/",
             "/nowhere/"]  # fmt: skip
    for model, row in ((ApiToken, None), (AuditEntry, None), (AlertRule, None), (User, None)):
        place = f"/admin/{model._meta.app_label}/{model._meta.model_name}/"
        key = row or model._default_manager.latest("pk").pk
        pages += [place, f"{place}{key}/change/"]
    for path in pages:
        yield browser.get(path)


def break_layers(api: Client, browser: Client) -> Iterator[Any]:
    """The same with the table of tasks gone, and with a workflow whose own check is broken."""
    body = json.dumps({"workflow": "leaky", "input": {"password": IN_INPUT}})
    form = {"title": TYPED, "lane": "default", "priority": 0, "token": "t" * 22, "values": "{}"}
    calls: list[Callable[[], Any]] = [
        lambda: api.get("/api/v1/tasks"),
        lambda: api.post("/api/v1/tasks", body, content_type="application/json"),
        lambda: browser.get("/tasks/"),
        lambda: browser.get("/admin/longwatch_ledger/task/"),
        lambda: browser.post("/workflows/leaky/", form | {"in-input": f'{{"p": "{IN_INPUT}"}}'}),
    ]
    broken = json.dumps({"workflow": "broken", "input": {"password": IN_INPUT}})
    yield api.post("/api/v1/tasks", broken, content_type="application/json")
    yield browser.post("/workflows/broken/", form | {"in-password": IN_INPUT})
    for call in calls:
        with transaction.atomic():
            with connection.cursor() as cursor:
                cursor.execute("ALTER TABLE longwatch_task RENAME TO longwatch_gone")
            try:
                yield call()
            finally:
                transaction.set_rollback(True)


def list_columns() -> Iterator[tuple[tuple[str, str], str]]:
    """((table, column), value as text) of everything that is stored."""
    for model in apps.get_models(include_auto_created=True):
        columns = {field.attname: field.column for field in model._meta.concrete_fields}
        for row in model._default_manager.values(*columns):
            for name, value in row.items():
                yield (model._meta.db_table, columns[name]), str(value)
    assert Session.objects.exists()
