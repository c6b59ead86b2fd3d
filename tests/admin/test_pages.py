"""The admin's pages: who sees them, what they show, and what they refuse to do."""

from __future__ import annotations

from typing import Any

import pytest
from django.apps import apps
from django.contrib import admin as django_admin
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.urls import reverse

from ledger import registry
from ledger.admin import base
from ledger.models import ApiToken, AuditEntry, Blob, Event, Reach, Task
from ledger.tokens import find_token, make_token
from ledger.workflows import Workflow
from tests.dashboard.conftest import make_user
from tests.factories import make_in, submit

pytestmark = pytest.mark.both_databases

MODELS = list(apps.get_app_config("longwatch_ledger").get_models())
RECORDS = [model for model in MODELS if model not in {Task, Reach}]


def locate(model: Any, page: str, *args: Any) -> str:
    """The path of a page of the admin."""
    return reverse(f"admin:{model._meta.app_label}_{model._meta.model_name}_{page}", args=args)


def test_every_table_of_the_ledger_has_its_page() -> None:
    reverse("admin:index")  # loads them
    registered = {model for model in django_admin.site._registry if model in MODELS}
    assert registered == set(MODELS)
    assert all(isinstance(django_admin.site._registry[m], base.AdminOnly) for m in MODELS)


@pytest.mark.parametrize("model", MODELS, ids=lambda model: model.__name__)
def test_lists_and_pages_show_hostile_text_as_text(admin: Client, full: Task, model: Any) -> None:
    row = model.objects.latest("pk")
    for path in (locate(model, "changelist"), locate(model, "change", row.pk)):
        response = admin.get(path)
        assert response.status_code == 200
        text = response.content.decode()
        assert "<script>alert" not in text
        assert "<img src=x" not in text
        assert "<b>" not in text
        assert len(text) < 120_000  # the long values are cut


@pytest.mark.parametrize("model", RECORDS, ids=lambda model: model.__name__)
def test_records_are_read_only(admin: Client, full: Task, model: Any) -> None:
    row = model.objects.latest("pk")
    stored = model.objects.filter(pk__lte=row.pk)  # each refusal adds to the audit log
    before = list(stored.values())
    assert admin.get(locate(model, "add")).status_code == 403
    assert admin.post(locate(model, "add"), {}).status_code == 403
    assert admin.post(locate(model, "change", row.pk), {"data": "{}"}).status_code == 403
    delete_everywhere(admin, model, row)
    assert list(stored.values()) == before
    assert "_save" not in admin.get(locate(model, "change", row.pk)).content.decode()


def delete_everywhere(client: Client, model: Any, row: Any) -> None:
    """Try to delete a row, single and in bulk."""
    assert client.get(locate(model, "delete", row.pk)).status_code == 403
    assert client.post(locate(model, "delete", row.pk), {"post": "yes"}).status_code == 403
    body = {"action": "delete_selected", "_selected_action": [str(row.pk)], "post": "yes"}
    client.post(locate(model, "changelist"), body)
    assert model.objects.filter(pk=row.pk).exists()


@pytest.mark.parametrize("status", ["queued", "running", "waiting", "scheduled", "completed"])
def test_no_task_is_deleted(admin: Client, flow: Workflow, status: str) -> None:
    task = make_in(status, flow)
    delete_everywhere(admin, Task, task)
    assert admin.get(locate(Task, "add")).status_code == 403


@pytest.mark.parametrize("role", ["", "viewer", "approver", "operator"])
def test_only_admins_come_in(full: Task, role: str) -> None:
    client = Client()
    client.force_login(make_user(role, "somebody"))
    places = [reverse("admin:index"), locate(Task, "change", full.pk), locate(Event, "changelist")]
    for path in places:
        response = client.get(path, follow=True)
        assert response.status_code == 403
        # But for its own address, to be loaded anew by somebody who may.
        assert str(full.pk) not in response.content.decode().replace(path, "")
    before = Task.objects.values().get()
    client.post(locate(Task, "change", full.pk), {"title": "mine", "reason": "r"})
    assert Task.objects.values().get() == before


def test_a_stranger_signs_in_where_everybody_does(full: Task) -> None:
    path = locate(Task, "change", full.pk)
    response = Client().get(path, follow=True)
    assert response.request["PATH_INFO"] == "/login/"
    assert response.context["goal"] == path


def test_a_list_counts_no_further_than_it_pages(
    admin: Client, flow: Workflow, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(base, "MAX_ROWS", 5)
    monkeypatch.setattr(base.AdminOnly, "list_per_page", 2)
    for _ in range(8):
        submit(flow)
    for model in MODELS:
        with CaptureQueriesContext(connection) as queries:
            response = admin.get(locate(model, "changelist"))
        counts = [q["sql"] for q in queries if "COUNT(" in q["sql"].upper()]
        assert counts
        assert all("LIMIT 5" in sql for sql in counts)
        assert len(queries) <= 8
        assert not any(" DISTINCT " in q["sql"] for q in queries)
        if model is Task:
            assert response.context["cl"].result_count == 5
            heavy = next(q["sql"] for q in queries if '"title"' in q["sql"] and "LIMIT" in q["sql"])
            assert '"progress"' not in heavy


@pytest.mark.parametrize(
    "query",
    ["q=junk", "q=%00", "q=" + "9" * 400, "p=99999999999999999999", "p=-1", "all=1", "status=x",
     "q='%22)", "o=1.2.-3", "status=queued", "task__id__exact=x", "fence__gt=1"],
)  # fmt: skip
def test_a_list_takes_any_query(admin: Client, full: Task, query: str) -> None:
    for model in (Task, Event, Blob):
        response = admin.get(f"{locate(model, 'changelist')}?{query}", follow=True)
        assert response.status_code in {200, 400}


@pytest.mark.parametrize("key", ["0", "99999999999999999999", "-1", "x", "%00", "a" * 300])
def test_a_page_that_is_not_there_says_so(admin: Client, key: str, db: None) -> None:
    for model in MODELS:
        path = locate(model, "changelist") + f"{key}/change/"
        assert admin.get(path, follow=True).status_code in {200, 404}


def test_the_records_of_a_task_are_found_from_its_page(admin: Client, full: Task) -> None:
    page = admin.get(locate(Task, "change", full.pk)).content.decode()
    path = f"{locate(Event, 'changelist')}?q={full.pk}"
    assert path in page
    assert admin.get(path).context["cl"].result_count == full.events.count()
    other = submit_other(full)
    assert admin.get(f"{locate(Event, 'changelist')}?q={other.pk}").context["cl"].result_count == 1


def submit_other(task: Task) -> Task:
    return submit(registry.get(task.workflow))


def test_tokens_are_revoked_and_never_shown(admin: Client, db: None) -> None:
    row, text = make_token("laptop", ["read"], created_by="cli:me")
    keep, _ = make_token("other", ["read"], created_by="cli:me")
    page = admin.get(locate(ApiToken, "change", row.pk)).content.decode()
    assert row.digest not in page
    body = {"action": "revoke_tokens", "_selected_action": [str(row.pk)]}
    response = admin.post(locate(ApiToken, "changelist"), body, follow=True)
    assert "1 revoked." in response.content.decode()
    assert find_token(text) is None
    keep.refresh_from_db()
    assert keep.revoked_at is None
    revoked = AuditEntry.objects.filter(action="revoke_token")
    entry = revoked.get()
    assert (entry.actor[:5], entry.target) == ("user:", f"token:{row.pk}")
    assert (entry.address, len(entry.request_id)) == ("127.0.0.1", 16)
    admin.post(locate(ApiToken, "changelist"), body)
    assert revoked.count() == 1  # it was revoked before


def test_django_q_is_hidden(admin: Client, db: None) -> None:
    page = admin.get(reverse("admin:index")).content.decode()
    assert not [m for m in django_admin.site._registry if m._meta.app_label == "django_q"]
    assert "django_q" not in page
    assert "Django Q" not in page
    assert admin.get("/admin/django_q/").status_code == 404


def test_signing_out_of_the_admin_ends_at_the_sign_in_page(admin: Client, db: None) -> None:
    response = admin.post(reverse("admin:logout"))
    assert (response.status_code, response["Location"]) == (302, "/login/")
    assert admin.get(reverse("admin:index"), follow=True).request["PATH_INFO"] == "/login/"
