"""The web side of the shop, in a process of its own: buys, fails to buy, approves, looks."""

import json
import re
import time

from django.contrib.auth import get_user_model
from django.contrib.auth.models import Group
from django.core.management import BaseCommand, call_command
from django.db import connection
from django.test import Client

from ledger import client as ledger
from ledger.events import Actor
from ledger.models import Approval, Artifact, Task
from ledger.tokens import make_token
from shop.models import Order

PATIENCE = 60.0


def wait_for(look):
    """What `look` returns once it is true."""
    until = time.monotonic() + PATIENCE
    while not (found := look()):
        assert time.monotonic() < until, look.__doc__ or "nothing came"
        time.sleep(0.05)
    return found


def fail_to_buy(browser):
    """The transaction of the request is rolled back, and the task with it."""
    try:
        browser.post("/buy/", {"subject": "lost", "fail": "1"})
    except RuntimeError:
        pass
    assert not Order.objects.exists()
    assert not Task.objects.exists()


def buy(browser):
    """The task runs to its question, is approved and completes; the shop's job runs too."""
    answer = browser.post("/buy/", {"subject": "tea"}).json()
    request = wait_for(lambda: Approval.objects.filter(task=answer["task"]).first())
    ledger.answer(request.pk, "approve", actor=Actor("user", "shop"), digest=request.digest)
    wait_for(lambda: Task.objects.get(pk=answer["task"]).status == "completed")
    order = wait_for(lambda: Order.objects.exclude(mailed_by="").filter(pk=answer["order"]).first())
    assert (order.packed_by, order.mailed_by) == ("ledger", "shop"), (
        order.packed_by,
        order.mailed_by,
    )
    assert Artifact.objects.get(task=answer["task"]).name == "slip.txt"
    return answer["task"]


def look(browser, person, task):
    """Our pages and API under the project's prefix, its own pages as they were."""
    assert b"The shop" in browser.get("/").content
    missing = browser.get("/longwatch/tasks/00000000-0000-7000-8000-000000000000/")
    assert missing.status_code in {302, 404}, missing.status_code
    sent = browser.get("/longwatch/")
    assert sent["Location"] == "/accounts/login/?next=/longwatch/", sent["Location"]
    browser.force_login(person)
    assert browser.get("/longwatch/").status_code == 403  # in no role yet
    person.groups.add(Group.objects.get(name="operator"))
    steer(browser)
    for path in ("/longwatch/", f"/longwatch/tasks/{task}/", "/longwatch/approvals/"):
        page = browser.get(path)
        assert page.status_code == 200, (path, page.status_code)
        assert b"Longwatch" in page.content
        assert b"The shop" not in page.content
    missing = browser.get("/longwatch/tasks/00000000-0000-7000-8000-000000000000/")
    assert missing.status_code == 404
    assert b"There is nothing here" in missing.content
    assert b"The shop" not in missing.content
    assert b"The shop has no such page" in browser.get("/nowhere/").content
    assert browser.get("/api/v1/tasks").status_code == 404  # the shop's, not ours
    _, text = make_token("till", ["read"], created_by="cli:test")
    api = Client(headers={"Authorization": f"Bearer {text}"})
    shown = api.get(f"/longwatch/api/v1/tasks/{task}").json()
    assert (shown["status"], shown["result"]) == ("completed", {"packed": True})
    assert browser.get("/admin/longwatch_ledger/task/").status_code == 302  # no staff
    boss = get_user_model().objects.create_superuser("boss@example.org", password="x")
    browser.force_login(boss)
    assert browser.get(f"/admin/longwatch_ledger/task/{task}/change/").status_code == 200
    assert browser.get("/admin/django_q/success/").status_code == 200


def steer(browser):
    """A button whose form carries a number that German would write with a dot."""
    asked = browser.post("/buy/", {"subject": "coffee"}).json()["task"]
    wait_for(lambda: Task.objects.get(pk=asked).status == "waiting")
    Task.objects.filter(pk=asked).update(revision=12_345)
    page = browser.get(f"/longwatch/tasks/{asked}/").content.decode()
    form = re.search(r'action="([^"]*/pause/)".*?</form>', page, re.DOTALL)
    fields = dict(re.findall(r'name="(revision|seen)" value="([^"]*)"', form[0]))
    assert fields["revision"] == "12345", fields
    assert browser.post(form[1], fields).status_code == 302
    assert Task.objects.get(pk=asked).pause_requested


class Command(BaseCommand):
    """`manage.py drive`: exit 0 when all of it held."""

    def handle(self, *args, **options):
        names = set(Group.objects.values_list("name", flat=True))
        assert names >= {"viewer", "approver", "operator", "admin"}, names
        browser = Client()
        person = get_user_model().objects.create_user("ann@example.org", password="x")
        fail_to_buy(browser)
        task = buy(browser)
        look(browser, person, task)
        call_command("check", fail_level="WARNING")
        pooled = connection.vendor == "postgresql" and connection.pool
        self.stdout.write(json.dumps({"task": task, "pool": bool(pooled)}))
