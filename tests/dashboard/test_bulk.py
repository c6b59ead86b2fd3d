"""Many tasks at once on the pages: the preview, the form, the page of an operation."""

from __future__ import annotations

import csv
import json
import re
from collections.abc import Callable
from typing import Any
from urllib.parse import urlencode

import pytest
from django.http import HttpResponse
from django.test import Client
from django.urls import reverse

from ledger import states
from ledger.bulk.doing import do_pending
from ledger.models import BulkOperation, Task
from ledger.workflows import Workflow
from tests.dashboard.conftest import PART
from tests.factories import make_in, submit

pytestmark = pytest.mark.both_databases

NEW = "/bulk/new/"


def read_form(response: HttpResponse) -> dict[str, Any]:
    """The fields of the form that begins an operation."""
    text = response.content.decode()
    form = text[text.index('class="bulkf"') : text.index("</form>", text.index('class="bulkf"'))]
    fields: dict[str, Any] = {}
    for tag in re.findall(r"<input[^>]*>", form):
        name, value = re.search(r'name="([^"]*)"', tag), re.search(r'value="([^"]*)"', tag)
        if name:
            fields.setdefault(name[1], []).append(value[1] if value else "")
    return fields


def begin(client: Client, query: str, **typed: str) -> Any:
    """Look at the preview and send its form, typed into."""
    return client.post(NEW, read_form(client.get(f"{NEW}?{query}")) | name(typed))


def name(typed: dict[str, str]) -> dict[str, str]:
    """What is typed, by the names of the fields: those of filters stand beside them."""
    return {f"do-{field}": text for field, text in typed.items()}


def finish() -> None:
    while do_pending():
        pass


def test_what_is_chosen_on_the_list_becomes_an_address(operator: Client, three: Workflow) -> None:
    tasks = [submit(three, title=f"task {n}") for n in range(3)]
    back = "/tasks/?lane=default"
    sent = {"action": "cancel", "task": [str(task.pk) for task in tasks[:2]], "back": back}
    response = operator.post(NEW, sent)
    assert response.status_code == 303
    page = operator.get(response["Location"])
    text = page.content.decode()
    assert "Cancel 2 tasks" in text
    assert "task 1" in text
    assert "task 2" not in text
    done = operator.post(NEW, read_form(page) | name({"reason": "wrong input"}))
    assert done.status_code == 303
    operation = BulkOperation.objects.get()
    assert (operation.action, operation.reason, operation.total) == ("cancel", "wrong input", 2)
    shown = operator.get(done["Location"]).content.decode()
    assert f'href="{back}"' in shown
    assert "No worker beats" in shown
    finish()
    assert Task.objects.filter(status=states.CANCELLED).count() == 2


def test_all_that_match_keeps_the_filter_and_says_what_is_left_out(
    operator: Client, three: Workflow
) -> None:
    for status in (states.DEAD, states.PAUSED, states.COMPLETED, states.QUEUED):
        make_in(status, three)
    submit(three, lane="night")
    text = operator.get(f"{NEW}?action=pause&all=1&lane=default").content.decode()
    assert "Pause 1 task" in text
    assert "It is paused already, or pauses after its unit." in text
    assert "It has ended." in text
    response = begin(operator, "action=pause&all=1&lane=default")
    operation = BulkOperation.objects.get()
    assert operation.selection == {"filter": [["lane", "default"]]}
    finish()
    page = operator.get(response["Location"]).content.decode()
    assert 'href="/tasks/?lane=default"' in page
    assert 'hx-trigger="every' not in page
    failed = operator.get(f"{response['Location']}?outcome=skipped").content.decode()
    assert failed.count('id="item-') == 3
    assert Task.objects.get(lane="night").status == states.QUEUED


def test_over_25_the_number_is_typed_and_more_than_shown_are_asked_about_again(
    operator: Client, three: Workflow
) -> None:
    for _ in range(26):
        submit(three)
    query = "action=cancel&all=1"
    assert begin(operator, query).status_code == 422
    assert begin(operator, query, typed="25").status_code == 422
    form = read_form(operator.get(f"{NEW}?{query}"))
    submit(three)
    response = operator.post(NEW, form | name({"typed": "26", "reason": "kept text"}))
    text = response.content.decode()
    assert response.status_code == 409
    assert "kept text" in text
    assert "Type 27 to confirm" in text
    assert not BulkOperation.objects.exists()
    assert operator.post(NEW, read_form(response) | name({"typed": "27"})).status_code == 303


def test_a_form_sent_twice_begins_one_operation(operator: Client, three: Workflow) -> None:
    submit(three)
    form = read_form(operator.get(f"{NEW}?action=pause&all=1"))
    first, second = operator.post(NEW, form), operator.post(NEW, form)
    assert first["Location"] == second["Location"]
    assert BulkOperation.objects.count() == 1


@pytest.mark.parametrize(
    "query",
    ["action=cancel", "action=cancel&all=1&status=nonsense", "action=cancel&all=1&created=soon",
     "action=cancel&task=x", "action=nonsense&all=1", "action=cancel&all=1&q=stauts:dead"],
)  # fmt: skip
def test_a_choice_that_is_wrong_begins_nothing(
    operator: Client, three: Workflow, query: str
) -> None:
    """A filter that the list would leave out chooses nothing here: without it there were more."""
    submit(three)
    response = operator.get(f"{NEW}?{query}")
    assert response.status_code == 422
    assert 'class="bulkf"' not in response.content.decode()


@pytest.mark.parametrize(
    ("action", "typed", "kept"),
    [("restart", {"note": "shorter", "to_step": "a"}, {"to_step": "a", "note": "shorter"}),
     ("limits", {"cost": "150.50", "wall": "200"}, {"cost": "150.50", "wall": 720000.0}),
     ("tag", {"tags": "a, b"}, {"tags": ["a", "b"]}), ("priority", {"priority": "3"}, None),
     ("untag", {"tags": "old"}, None), ("retry", {}, None), ("resume", {}, None)],
)  # fmt: skip
def test_the_form_asks_what_the_single_action_asks(
    operator: Client, three: Workflow, action: str, typed: dict[str, str], kept: Any
) -> None:
    make_in(states.PAUSED if action == "resume" else states.SCHEDULED, three)
    query = f"action={action}&all=1"
    if typed:
        empty = dict.fromkeys(typed, "")
        assert begin(operator, query, **empty).status_code == 422
    assert begin(operator, query, **typed).status_code == 303
    operation = BulkOperation.objects.get()
    assert kept is None or operation.arguments == kept
    finish()
    wanted = {"done"} if action != "untag" else {"skipped"}
    assert set(operation.items.values_list("outcome", flat=True)) == wanted


def test_a_poll_is_answered_only_when_something_changed(operator: Client, three: Workflow) -> None:
    submit(three)
    path = begin(operator, "action=pause&all=1")["Location"]
    first = operator.get(path, headers=PART)
    headers = PART | {"HX-PTag": first["HX-PTag"]}
    assert operator.get(path, headers=headers).status_code == 304
    assert b"hx-trigger" in first.content
    finish()
    last = operator.get(path, headers=headers)
    assert last.status_code == 200
    assert b"hx-trigger" not in last.content


def test_a_stop_is_one_press_and_the_list_says_who(operator: Client, three: Workflow) -> None:
    for _ in range(2):
        submit(three)
    path = begin(operator, "action=pause&all=1")["Location"]
    do_pending(limit=1)
    operation = BulkOperation.objects.get()
    assert b"Stop</button>" in operator.get(path).content
    assert operator.post(reverse("dashboard:bulk-stop", args=[operation.pk])).status_code == 303
    text = operator.get(path).content.decode()
    assert "stopped by operator" in text
    assert "Stop</button>" not in text
    listed = operator.get("/bulk/").content.decode()
    assert "Pause 2 tasks" in listed
    assert "Stopped" in listed


def test_who_only_reads_sees_the_operation_and_can_not_stop_it(
    sign_in: Callable[..., Client], three: Workflow
) -> None:
    submit(three)
    path = begin(sign_in("operator"), "action=pause&all=1")["Location"]
    viewer = sign_in("viewer")
    assert b"Stop</button>" not in viewer.get(path).content
    assert viewer.post(f"{path}stop/").status_code == 403


def test_an_export_has_times_in_the_zone_and_in_utc(operator: Client, three: Workflow) -> None:
    operator.post("/settings/", {"zone": "Asia/Tokyo", "hours": "24", "theme": "system",
                                 "density": "roomy", "keys": "on", "view": ""})  # fmt: skip
    tasks = [submit(three, title="=1+1", lane="night"), submit(three)]
    query = urlencode({"all": "1", "lane": "night"})
    rows = json.loads(operator.get(f"/bulk/export/json/?{query}").getvalue())
    assert [row["id"] for row in rows] == [str(tasks[0].pk)]
    assert rows[0]["created_at_utc"].endswith("+00:00")
    assert rows[0]["created_at_local"].endswith("+09:00")
    text = operator.get(f"/bulk/export/csv/?task={tasks[0].pk}").getvalue().decode()
    [line] = csv.DictReader(text.splitlines())
    assert line["title"] == "'=1+1"
    assert b"bulk/export/csv" in operator.get(f"{NEW}?action=export&{query}").content
