"""The page of hand-offs: as sent, as it is now, and what is new in it."""

from __future__ import annotations

import html
import io
import re
from collections.abc import Callable
from typing import Any

import pytest
from django.contrib.auth import get_user_model
from django.core.management import CommandError, call_command
from django.test import Client
from django.urls import reverse

from ledger import limits, sql, sweeper
from ledger.handoff import build_handoff, count_tokens
from ledger.models import Handoff, Reach, Task
from ledger.transitions.effects import begin_effect
from ledger.workflows import Workflow
from tests.factories import LEASE, claim, complete, expire_lease, make_unit, spawn, submit
from tests.held import make_context

pytestmark = pytest.mark.both_databases


def read(client: Client, task: Task, **query: int) -> tuple[str, str]:
    """The text shown, and the page."""
    page = client.get(reverse("dashboard:handoff", args=[task.id]), query).content.decode()
    found = re.search(r'aria-label="Hand-off">(.*?)</pre>', page, re.DOTALL)
    assert found
    return html.unescape(found[1]), page


def test_it_shows_what_was_sent_and_what_is_new_since(operator: Client, three: Workflow) -> None:
    task = submit(three, title="Ferry <b>timetables</b>")
    text, page = read(operator, task)
    assert text.strip() == build_handoff(task.id).markdown.strip()
    assert "No unit of this task has asked for one." in page
    assert "<b>timetables" not in page
    held = claim(three)
    first = make_context(held, three).handoff()
    unit = make_unit(held, three, output='{"found":"a boat"}')
    assert sql.checkpoint_unit(held, unit, lease_seconds=LEASE, groups=None)
    held = sql.read_task(Task.objects.get(pk=task.pk))
    second = make_context(held, three).handoff()
    older, newer = Handoff.objects.order_by("id")
    text, page = read(operator, task, sent=older.pk)
    assert text.strip() == first.markdown.strip()
    assert "New since" not in page
    text, page = read(operator, task, sent=newer.pk)
    assert text.strip() == second.markdown.strip()
    added = re.findall(r'<tr class="add">.*?<td class="tx">(.*?)</td>', page)
    assert any("a boat" in html.unescape(line) for line in added)
    href = re.search(r'href="([^"]+)"[^>]*>JSON<', page)
    assert href
    assert operator.get(html.unescape(href[1])).json()["markdown"] == second.markdown
    text, page = read(operator, task)
    assert text.strip() == second.markdown.strip()
    assert "Nothing." in page
    assert operator.get(
        reverse("dashboard:handoff", args=[task.id]), {"sent": newer.pk + 1}
    ).status_code == 404  # fmt: skip


def test_every_door_shows_what_the_next_unit_is_given(operator: Client, three: Workflow) -> None:
    """Pages, REST and the terminal before the claim, and the unit after it: one text."""
    task = submit(three, title="Ferry timetables", input={"about": "boats"})
    spawn(claim(three), three, 1)
    complete(claim(three), three)
    sweeper.sweep()
    lost = claim(three)
    begin_effect(lost, "tell", {"whom": "all"})
    limits.record_spend(lost, key="k", tokens_in=7, cost="0.5")
    expire_lease()
    sweeper.sweep()
    text, _ = read(operator, task)
    rest = operator.get(f"/api/v1/tasks/{task.id}/handoff").json()
    terminal = io.StringIO()
    call_command("handoff", str(task.pk), stdout=terminal)
    held = claim(three)
    given = make_context(held, three).handoff()
    assert "tell of b, turn 0, round 0: unknown" in given.markdown
    assert text == rest["markdown"] == terminal.getvalue() == given.markdown
    assert (rest["data"], rest["digest"]) == (given.data, given.digest)
    unit = make_unit(held, three)
    assert sql.checkpoint_unit(held, unit, lease_seconds=LEASE, groups=None)
    check_kept(operator, task, given.markdown, given.digest)


def check_kept(operator: Client, task: Task, markdown: str, digest: str) -> None:
    """The output of the unit leads to the very text, by every door."""
    [_, unit] = operator.get(f"/api/v1/tasks/{task.id}/outputs").json()["items"]
    key = unit["handoff"]["id"]
    assert unit["handoff"]["digest"] == digest
    link = f"{reverse('dashboard:handoff', args=[task.id])}?sent={key}"
    for name, args in (("task", []), ("outputs", []), ("output", [unit["seq"]])):
        page = operator.get(
            reverse(f"dashboard:{name}", args=[task.id, *args]), {"unit": unit["seq"]}
        )
        assert f'href="{link}"' in page.content.decode(), name
    text, page = read(operator, task, sent=key)
    rest = operator.get(f"/api/v1/tasks/{task.id}/handoff", {"sent": key}).json()
    terminal = io.StringIO()
    call_command("handoff", str(task.pk), "--sent", str(key), stdout=terminal)
    assert text == rest["markdown"] == terminal.getvalue() == markdown
    assert digest in page
    assert (rest["digest"], rest["data"], rest["tokens"]) == (digest, None, count_tokens(markdown))
    Handoff.objects.update(text="")  # as of one that is long past
    page = operator.get(link).content.decode()
    assert "no longer kept" in page
    assert digest in page
    rest = operator.get(f"/api/v1/tasks/{task.id}/handoff", {"sent": key}).json()
    assert (rest["markdown"], rest["digest"]) == (None, digest)
    with pytest.raises(CommandError, match=digest):
        call_command("handoff", str(task.pk), "--sent", str(key))


def test_who_does_not_see_all_children_sees_no_handoff(
    sign_in: Callable[..., Client], three: Workflow
) -> None:
    task = submit(three)
    spawn(claim(three), three, 1)
    make_context(claim_parent(task, three), three).handoff()
    Task.objects.filter(parent=task).update(lane="other")
    dora = sign_in("operator", "dora")
    Reach.objects.create(user=get_user_model().objects.get(username="dora"), lanes=["default"])
    sent = Handoff.objects.get().pk
    for place in (reverse("dashboard:handoff", args=[task.id]), f"/api/v1/tasks/{task.id}/handoff"):
        for query in ({}, {"sent": sent}):
            assert dora.get(place, query).status_code == 403
    Task.objects.filter(parent=task).update(lane="default")
    assert dora.get(place).status_code == 200


def claim_parent(task: Task, flow: Workflow) -> Any:
    """The parent once its child has ended."""
    complete(claim(flow), flow)
    sweeper.sweep()
    return claim(flow)
