"""The list's filters: each alone and excluded, several values, what is wrong with one."""

from __future__ import annotations

import html
import re
from collections.abc import Callable
from typing import Any
from urllib.parse import parse_qsl

import pytest
from django.contrib.auth import get_user_model
from django.test import Client

from ledger import clock, queries
from ledger.models import Reach, Task
from ledger.queries import filters
from ledger.queries.alike import IsAlike
from ledger.workflows import Workflow
from tests.dashboard.test_tasks import read_rows
from tests.factories import OWNER, claim, expire_lease, make_in, make_workflow, spawn, submit

pytestmark = pytest.mark.both_databases


@pytest.fixture
def names(three: Workflow) -> dict[str, str]:
    """id -> name of tasks that differ in everything that a filter looks at."""
    made = {"held": submit(three, lane="one", tags=["night", "two words"], title="Ferry: north")}
    claim(three, lane="one")
    made["ready"] = submit(
        three, lane="two", tags=["day"], title="Ferry south", input={"note": 'Größe 50%_"'}
    )
    made["failed"] = make_in("failed", make_workflow("other"))
    made["done"] = make_in("completed", make_workflow("third"))
    Task.objects.filter(pk=made["failed"].pk).update(
        error={"type": "OddError", "message": "the Quay is shut"},
        submitted_by="token:7", started_at=clock.now(-7200.0), finished_at=clock.now(-3600.0),
    )  # fmt: skip
    return {str(task.pk): name for name, task in made.items()}


CASES = [
    ("lane:one", "held"),
    ("-lane:one", "ready failed done"),
    ("lane:one lane:two", "held ready"),
    ("-lane:one -lane:two", "failed done"),
    ("lane:one -lane:one", ""),
    ("workflow:three", "held ready"),
    ("-workflow:three", "failed done"),
    ("tag:night tag:day", "held ready"),
    ('tag:"two words"', "held"),
    ('-tag:"two words"', "ready failed done"),
    ("status:failed status:completed", "failed done"),
    ("-status:unfinished", "failed done"),
    ("status:unfinished -status:running", "ready"),
    (f"worker:{OWNER}", "held"),
    (f"-worker:{OWNER}", "ready failed done"),
    (f"worker:{OWNER.split(':')[0]}", "held"),
    (f"worker:{OWNER[:-1]}", ""),
    ("owner:token:7", "failed"),
    ("-owner:token:7", "held ready done"),
    ("error:odderror", "failed"),
    ("error:quay", "failed"),
    ("-error:quay", "held ready done"),
    ("started:>1h", "failed"),
    ("-started:>1h", "held ready done"),
    ("started:<1h", "held done"),
    ("finished:<90m", "failed done"),
    ("finished:<30m", "done"),
    ("created:>1h", ""),
    ("-stalled:yes", "held ready failed done"),
    ("ferry", "held ready"),
    ("ferry -lane:one", "ready"),
    ('"Ferry: north"', "held"),
    ("quay", "failed"),
    ("odderr", "failed"),
    ('Größe "50%_"', "ready"),
    ('"50x_"', ""),
    ("THREE", "held ready"),
]
COUNTED = ("-lane:one -lane:two", "status:unfinished -status:running", "-error:quay")


def test_each_filter_finds_what_it_names_and_its_tabs_count_that(
    operator: Client, names: dict[str, str]
) -> None:
    for typed, expected in CASES:
        page = operator.get("/tasks/", {"q": typed}, follow=True)
        assert page.status_code == 200, typed
        found = {names[row] for row in read_rows(page)}
        assert found == set(expected.split()), typed
        assert page.context["matching"] == len(found), typed
        for tab in page.context["tabs"] if typed in COUNTED else ():
            opened = operator.get(f"/tasks/?{tab['query']}")
            assert len(read_rows(opened)) == tab["count"], (typed, tab)


def test_stalled_and_parent_can_be_excluded(operator: Client, three: Workflow) -> None:
    parent = submit(three)
    spawn(claim(three), three, 2)
    claim(three)
    clock.offset = 3600.0 * 24
    stalled = read_rows(operator.get("/tasks/?stalled=yes"))
    others = read_rows(operator.get("/tasks/?not_stalled=yes"))
    assert (len(stalled), len(others)) == (1, 2)
    assert not {*stalled} & {*others}
    assert read_rows(operator.get(f"/tasks/?not_parent={parent.pk}")) == [str(parent.pk)]
    clock.offset = 0.0
    expire_lease()


@pytest.mark.parametrize(
    ("typed", "said"),
    [
        ("lnae:one", "lnae:one is no filter; put it in quotes"),
        ("-lane:", "-lane: has no value"),
        ("started:2h", "started: is &#x27;2h&#x27;; it takes today, &lt;2h"),
        ("-status:gone", "-status: is &#x27;gone&#x27;; it takes one of queued,"),
        ("parent:7", "parent: is &#x27;7&#x27;; it takes a task&#x27;s id."),
        ("stalled:perhaps", "it takes yes."),
        (f"tag:{'x' * 201}", "has no value"),
    ],
)
def test_a_wrong_filter_is_named_and_the_others_stay(
    operator: Client, names: dict[str, str], typed: str, said: str
) -> None:
    if len(typed) > 200:
        page = operator.get("/tasks/", {"lane": "one", "tag": "x" * 201})
        said = "tag: takes up to 200 characters"
    else:
        page = operator.get("/tasks/", {"q": f"lane:one {typed}"}, follow=True)
    text = page.content.decode()
    assert page.status_code == 422
    assert said in text
    assert [names[row] for row in read_rows(page)] == ["held"]
    poll = re.search(r'id="task-list" hx-get="([^"]*)"', text)
    assert poll
    assert operator.get(html.unescape(poll[1])).status_code == 200


def test_each_chip_takes_away_its_own_value(operator: Client, names: dict[str, str]) -> None:
    given = [("lane", "one"), ("lane", "two"), ("not_tag", "day"), ("q", '"Ferry: north"')]
    text = operator.get("/tasks/", given_query(given)).content.decode()
    chips = re.findall(r'<a href="\?([^"]*)" aria-label="Remove filter ([^"]*)"', text)
    assert [name for _, name in chips] == [
        "lane one", "lane two", "not tag day", "text Ferry: north"
    ]  # fmt: skip
    for number, (query, _) in enumerate(chips):
        kept = [pair for place, pair in enumerate(given) if place != number]
        assert parse_qsl(html.unescape(query)) == kept
    form = text[text.index('role="search"') :].partition("</form>")[0]
    hidden = re.findall(r'<input type="hidden" name="(\w+)" value="([^"]*)">', form)
    assert hidden == given[:3]


def given_query(pairs: list[tuple[str, str]]) -> dict[str, list[str]]:
    """Pairs as the test client takes them."""
    return {key: [value for name, value in pairs if name == key] for key, _ in pairs}


def test_who_may_not_read_an_error_cant_find_its_words(
    sign_in: Callable[..., Client], names: dict[str, str]
) -> None:
    viewer = sign_in("viewer", "vera")
    Reach.objects.create(user=get_user_model().objects.get(username="vera"), payload=False)
    for typed, count in (("error:quay", 0), ("quay", 0), ("error:oddError", 1), ("odderr", 1),
                         ("Größe", 0), ("ferry", 2)):  # fmt: skip
        assert len(read_rows(viewer.get("/tasks/", {"q": typed}, follow=True))) == count


def test_old_finished_tasks_are_left_out_and_the_page_says_so(
    operator: Client, three: Workflow, names: dict[str, str], monkeypatch: pytest.MonkeyPatch,
    django_assert_max_num_queries: Any,
) -> None:  # fmt: skip
    monkeypatch.setattr(filters, "SEARCHED", 1)
    submit(three, lane="three")
    with django_assert_max_num_queries(12):
        page = operator.get("/tasks/?not_lane=three")
    assert {names[row] for row in read_rows(page)} == {"held", "ready"}
    assert page.context["matching"] == 2
    assert "Finished tasks are looked for among the newest" in page.content.decode()
    assert len(read_rows(operator.get("/tasks/"))) == 5
    assert len(read_rows(operator.get("/tasks/?status=failed"))) == 1


def test_text_is_looked_for_among_the_newest_and_all_who_ask_find_the_same(
    operator: Client, three: Workflow, monkeypatch: pytest.MonkeyPatch,
    django_assert_max_num_queries: Any,
) -> None:  # fmt: skip
    make_in("completed", make_workflow("old-quay"))
    made = [submit(three, title=f"Quay {number}") for number in range(3)]
    monkeypatch.setattr(filters, "SEARCHED_TEXT", 3)
    found = {str(task.pk) for task in made}
    with django_assert_max_num_queries(12):
        page = operator.get("/tasks/?q=quay")
    assert {*read_rows(page)} == found
    assert page.context["matching"] == 3
    assert "Finished tasks are looked for among the newest 3." in page.content.decode()
    assert {one["id"] for one in operator.get("/api/v1/tasks?q=quay").json()["items"]} == found
    monkeypatch.setattr(filters, "MOST_FOUND", 2)
    page = operator.get("/tasks/?q=quay")
    assert len(read_rows(page)) == page.context["matching"] == 2
    assert sum(queries.count_by_status(queries.TaskFilter([("q", "quay")])).values()) == 2


def test_a_part_of_an_id_and_its_hyphens_finds_the_task(
    operator: Client, names: dict[str, str]
) -> None:
    for key, name in names.items():
        for typed in (key, key[-12:], key[9:23], key[-12:].upper()):
            assert [names[row] for row in read_rows(operator.get("/tasks/", {"q": typed}))] == [
                name
            ]


def test_a_condition_is_on_the_rows_of_its_own_query(db: None) -> None:
    """Of another one's it would be found anew for each of them: a minute for 100,000 tasks."""
    for one in (
        filters.IsStalled(), filters.HasTag("x"), filters.HasText("abcdef"), filters.IsAmong(""),
        IsAlike(["x"]),
    ):  # fmt: skip
        inner = Task.objects.filter(one).values("pk")[:1]
        statement, _ = Task.objects.filter(pk__in=inner).query.sql_with_params()
        assert "U0" in statement
        assert "longwatch_task." not in statement, one
