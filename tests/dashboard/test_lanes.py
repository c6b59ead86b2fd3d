"""The page of lanes: counts that are those of the lists, settings with a revision, a pause."""

from __future__ import annotations

import re
from html import unescape

import pytest
from django.test import Client

from ledger.models import AuditEntry, Lane, Reach
from ledger.runner import Engine
from ledger.transitions.lanes import set_lane
from ledger.workflows import Concurrency, Workflow, registered
from tests.dashboard.conftest import PART
from tests.dashboard.fleet import make_worker
from tests.factories import CLIENT, OWNER, claim, make_workflow, submit

pytestmark = pytest.mark.both_databases

ODD = "teams/ä b?#%&"
FORM = {"weight": "2", "cap": "", "rate": "", "per": "second", "burst": "1", "cost_day": "",
        "cost_month": "", "tokens_day": "", "tokens_month": ""}  # fmt: skip


def test_counts_equal_the_lists_that_they_open(operator: Client, three: Workflow) -> None:
    for lane, count in ((ODD, 3), ("other", 2)):
        for _ in range(count):
            submit(three, lane=lane)
    claim(three, lane=ODD)
    text = operator.get("/lanes/").content.decode()
    links = re.findall(r'href="(/tasks/\?lane=[^"]*status=[^"]*)">(\d+)<', text)
    assert sorted(count for _, count in links) == ["0", "1", "2", "2"]
    for path, count in links:
        listed = operator.get(unescape(path)).content.decode()
        assert len(set(re.findall(r'href="/tasks/[0-9a-f-]{36}/', listed))) == int(count), path


def test_a_poll_of_what_stands_is_304_and_costs_little(
    operator: Client, three: Workflow, django_assert_max_num_queries: object
) -> None:
    submit(three, lane="a")
    set_lane("a", {"cap": 2, "cost_day": "1"}, actor=CLIENT)
    with django_assert_max_num_queries(12):  # type: ignore[operator]
        text = operator.get("/lanes/").content.decode()
    tag = re.search(r'hx-ptag="([^"]*)"', text)
    assert tag
    headers = PART | {"HX-PTag": tag[1]}
    assert operator.get("/lanes/", headers=headers).status_code == 304
    submit(three, lane="a")
    assert operator.get("/lanes/", headers=headers).status_code == 200


def test_keys_in_use_and_who_waits_for_them_are_shown(operator: Client, db: None) -> None:
    keyed = make_workflow("fix", concurrency=Concurrency(key="input.on"))
    with registered(keyed):
        first, second = (submit(keyed, input={"on": "acme/\u202esite"}) for _ in range(2))
        for one in "bc":
            submit(keyed, input={"on": one})
        held = Engine(OWNER).claim()
        assert held is not None
        assert held.task_id == first.pk
        make_worker(keyed)
        text = operator.get("/lanes/").content.decode()
        (row,) = re.findall(
            r"<tr role=\"row\">\s*<th[^>]*><span class=\"mono\">.*?</tr>", text, re.S
        )
        assert "acme/[U+202E]site" in row
        assert f"/tasks/{first.pk}/" in row
        assert re.search(r"Waiting </span>1<", row)
        page = operator.get(f"/tasks/{second.pk}/").content.decode()
        assert f"/tasks/{first.pk}/" in page
        assert "waits for its concurrency key" in page
        assert ">No worker<" not in page
        listed = operator.get("/tasks/?status=queued").content.decode()
        assert "waits for its concurrency key" in listed


def test_what_somebody_else_changed_meanwhile_is_not_written_over(
    operator: Client, db: None
) -> None:
    set_lane(ODD, {"cap": 5}, actor=CLIENT)
    old = operator.post("/lanes/set/", {**FORM, "lane": ODD, "revision": "0"})
    assert old.status_code == 409
    assert "this is how it is now" in old.content.decode()
    assert Lane.objects.get().cap == 5
    bad = operator.post("/lanes/set/", {**FORM, "lane": ODD, "revision": "1", "cap": "0"})
    assert (bad.status_code, b"takes a whole number from 1" in bad.content) == (422, True)
    done = operator.post("/lanes/set/", {**FORM, "lane": ODD, "revision": "1", "reason": "calm"})
    assert done.status_code == 303
    entry = AuditEntry.objects.filter(action="lane_changed").latest("pk")
    assert (entry.reason, entry.before, entry.after) == (
        "calm", {"weight": 1, "cap": 5}, {"weight": 2, "cap": None}
    )  # fmt: skip


def test_what_can_not_be_done_is_said_above_the_lanes(operator: Client, three: Workflow) -> None:
    submit(three, lane="a")
    refused = operator.post("/lanes/act/", {"lane": "a", "do": "run-one"})
    assert refused.status_code == 409
    assert "Its lane is not paused" in refused.content.decode()


def test_who_sees_one_lane_sets_nothing(
    operator: Client, three: Workflow, django_user_model: type
) -> None:
    user = django_user_model.objects.get(pk=operator.session["_auth_user_id"])  # type: ignore[attr-defined]
    Reach.objects.create(user=user, lanes=["mine"])
    submit(three, lane="mine")
    submit(three, lane="theirs")
    text = operator.get("/lanes/").content.decode()
    assert "theirs" not in text
    assert "/lanes/set/" not in text
    denied = operator.post("/lanes/set/", {**FORM, "lane": "mine", "revision": "0"})
    assert denied.status_code == 403
    assert operator.post("/lanes/act/", {"lane": "theirs", "do": "pause"}).status_code == 404
    assert operator.post("/lanes/act/", {"lane": "mine", "do": "pause"}).status_code == 303
    assert Lane.objects.get().paused
