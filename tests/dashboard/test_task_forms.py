"""Copy, edit an output, change, signal: what their forms say, take and keep."""

from __future__ import annotations

import re
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.test import Client
from django.urls import reverse
from django.utils.html import escape

from ledger.errors import NotEditable
from ledger.models import Reach, Signal, StepOutput, Task
from ledger.transitions import operators, outputs
from ledger.transitions.forks import fork_task
from ledger.workflows import Workflow
from tests.dashboard.conftest import PART
from tests.dashboard.test_actions import ask_path, fill, make_dead_at_b, path_of
from tests.factories import OPERATOR, ask, claim, make_unit, submit, wait_for

pytestmark = pytest.mark.both_databases

WAYS = [{}, PART]


def read_page(client: Client, task: Task, name: str = "task", *more: Any) -> str:
    """A page of the task."""
    path = reverse(f"dashboard:{name}", args=[task.id, *more])
    return " ".join(client.get(path).content.decode().split())


def test_a_copy_takes_another_input_and_says_where_it_is_from(
    operator: Client, three: Workflow
) -> None:
    task = make_dead_at_b(three)
    text = operator.get(ask_path(task, "fork")).content.decode()
    for part in ("1 output copied", "nothing is copied, all of it runs", "Copy from b</button>"):
        assert part in text
    form = fill(task, "fork", from_step="b", input='{"big": 12345678901234567890}')
    operator.post(path_of(task, "fork"), form)
    copy = Task.objects.get(copied_from=task)
    assert (copy.step_name, copy.input) == ("b", {"big": 12345678901234567890})
    page, seq = read_page(operator, copy), StepOutput.objects.get(task=copy).seq
    source = reverse("dashboard:output", args=[task.id, StepOutput.objects.get(task=task).seq])
    for text in (page, read_page(operator, copy, "output", seq)):
        assert f'href="{source}"' in text
        assert "Took 0" not in text
        assert ">0 ms</dd>" not in text
    assert "None yet" in page  # no worker did anything for it
    assert ">copied</span>" in read_page(operator, copy, "outputs")


def test_sending_a_form_twice_makes_one_copy_and_one_signal(
    operator: Client, three: Workflow
) -> None:
    task = make_dead_at_b(three)
    form = fill(task, "fork", from_step="b")
    goals = {operator.post(path_of(task, "fork"), form)["Location"] for _ in range(2)}
    assert len(goals) == Task.objects.filter(copied_from=task).count() == 1
    other = submit(three)
    form = fill(other, "signal")
    assert [operator.post(path_of(other, "signal"), form).status_code for _ in "12"] == [302, 302]
    assert Signal.objects.get(task=other).data == {"n": 1}


def test_an_edit_is_on_record_with_who_and_why(operator: Client, three: Workflow) -> None:
    task = make_dead_at_b(three)
    text = operator.get(ask_path(task, "edit")).content.decode()
    for part in ("&quot;ok&quot;: true", "all later ones are superseded", "Round 1."):
        assert part in text
    operator.post(path_of(task, "edit"), fill(task, "edit"))
    row = StepOutput.objects.get(task=task, superseded_in_round=None)
    assert row.output == {"ok": False}
    page = read_page(operator, task)
    assert "Edited by operator: the source is wrong" in page
    assert "Took 0" not in page
    assert "<dd>the source is wrong</dd>" in read_page(operator, task, "output", row.seq)
    assert "Edited by operator." in read_page(operator, task, "outputs")


@pytest.mark.parametrize("headers", WAYS)
def test_who_edits_what_another_edited_first_keeps_what_was_typed(
    operator: Client, three: Workflow, headers: dict[str, str]
) -> None:
    task = make_dead_at_b(three)
    form = fill(task, "edit", output='{"ok": "mine"}')
    seq = int(form["seq"])
    outputs.edit_output(task.id, seq, output={"ok": "theirs"}, actor=OPERATOR, reason="first")
    response = operator.post(path_of(task, "edit"), form, headers=headers)
    assert response.status_code == 409
    text = response.content.decode()
    assert "The task has changed since you looked" in text
    assert "&quot;mine&quot;" in text
    live = StepOutput.objects.get(task=task, superseded_in_round=None)
    assert live.output == {"ok": "theirs"}


def test_who_changes_what_another_changed_first_keeps_what_was_typed(
    operator: Client, three: Workflow
) -> None:
    task = submit(three)
    form = fill(task, "change", title="mine")
    operators.change_task(task.id, title="theirs", actor=OPERATOR)
    response = operator.post(path_of(task, "change"), form)
    assert response.status_code == 409
    assert 'value="mine"' in response.content.decode()
    task.refresh_from_db()
    assert task.title == "theirs"


def test_what_is_not_changed_is_not_passed_on(operator: Client, three: Workflow) -> None:
    task = submit(three, title="Ferries", tags=["a"])
    same = {"title": "Ferries", "lane": "default", "priority": "0", "tags": "a"}
    response = operator.post(path_of(task, "change"), fill(task, "change", **same))
    assert response.status_code == 422
    assert "Nothing is changed." in response.content.decode()
    operator.post(path_of(task, "change"), fill(task, "change", **same | {"priority": "7"}))
    task.refresh_from_db()
    assert task.priority == 7
    assert task.events.get(kind="edited").data["after"] == {"priority": 7}


@pytest.mark.parametrize("headers", WAYS)
@pytest.mark.parametrize(
    ("name", "typed"),
    [
        ("fork", {"input": "{"}), ("fork", {"input": "[" * 100_000}), ("fork", {"input": "[1]"}),
        ("fork", {"from_step": "c"}), ("edit", {"output": "[1]"}), ("edit", {"output": ""}),
        ("edit", {"output": '{"a": NaN}'}), ("edit", {"reason": " "}), ("change", {"lane": ""}),
        ("edit", {"output": '{"a": "\\u0000"}'}), ("change", {"priority": "101"}),
        ("change", {"tags": "," .join("abcdefghijklmnopqrstuvw")}), ("signal", {"name": ""}),
        ("change", {"tags": "a" * 60}), ("signal", {"carries": "{'a': 1}"}),
        ("signal", {"carries": f'"{"x" * 70_000}"'}), ("signal", {"name": "a\x00b"}),
    ],
)  # fmt: skip
def test_what_does_not_fit_is_refused_and_kept(
    operator: Client, three: Workflow, name: str, typed: dict[str, str], headers: dict[str, str]
) -> None:
    task = make_dead_at_b(three)
    if name == "signal":
        operators.retry_task(task.id, actor=OPERATOR)
        task.refresh_from_db()
    response = operator.post(path_of(task, name), fill(task, name, **typed), headers=headers)
    assert response.status_code in {400, 413, 422}
    assert re.search(r'class="(fld|hint) bad"|notice is-fail', response.content.decode())
    before = task.revision
    task.refresh_from_db()
    assert task.revision == before
    assert not Task.objects.filter(copied_from=task).exists()


@pytest.mark.parametrize("unit", ["", "x", "99", "-1", "9" * 40])
def test_an_output_that_is_not_there_is_a_404(operator: Client, three: Workflow, unit: str) -> None:
    task = make_dead_at_b(three)
    assert operator.get(path_of(task, "edit"), {"unit": unit}).status_code == 404
    form = fill(task, "edit", seq=unit)
    assert operator.post(path_of(task, "edit"), form).status_code == 404


def test_the_signal_that_is_awaited_is_named(operator: Client, three: Workflow) -> None:
    task = submit(three)
    text = operator.get(path_of(task, "signal")).content.decode()
    assert "kept until a step waits for its name" in text
    wait_for(claim(three), three)
    text = operator.get(path_of(task, "signal")).content.decode()
    assert 'value="go"' in text
    assert "It waits for go, which lets it go on at once" in text


def test_only_who_may_act_is_offered_an_edit(
    operator: Client, sign_in: Any, three: Workflow
) -> None:
    task = make_dead_at_b(three)
    link, seq = "Edit and go on…", StepOutput.objects.get(task=task).seq
    viewer = sign_in("viewer")
    for name, more in (("task", []), ("output", [seq])):
        assert link in read_page(operator, task, name, *more)
        assert link not in read_page(viewer, task, name, *more)
    operators.restart_task(task.id, to_step="a", note="", actor=OPERATOR)
    assert link not in read_page(operator, task, "output", seq)  # it is superseded


@pytest.mark.parametrize("park", [ask, wait_for])
def test_an_edit_that_the_ledger_would_refuse_is_not_offered(
    operator: Client, three: Workflow, park: Any
) -> None:
    task = submit(three)
    park(claim(three), three)
    task.refresh_from_db()
    seq = StepOutput.objects.get(task=task).seq
    why = outputs.explain_obstacle(task, seq)
    with pytest.raises(NotEditable, match=why):
        outputs.edit_output(task.id, seq, output={}, actor=OPERATOR, reason="late")
    for name, more in (("task", []), ("output", [seq])):
        text = read_page(operator, task, name, *more)
        assert escape(why) in text
        assert f"{ask_path(task, 'edit')}?unit=" not in text


def test_a_copy_of_a_copy_knows_the_nearer_one(operator: Client, three: Workflow) -> None:
    task = make_dead_at_b(three)
    first, _ = fork_task(task.id, from_step="b", actor=OPERATOR)
    held = claim(three)
    assert held.lease.task_id == first.id
    second, _ = fork_task(first.id, from_step="b", actor=OPERATOR)
    assert make_unit(held, three)
    assert f'Copied from <a class="mono" href="/tasks/{first.id}/outputs/' in read_page(
        operator, second
    )


def test_an_output_that_people_were_asked_about_says_so_before_anybody_types(
    operator: Client, three: Workflow
) -> None:
    task = submit(three)
    ask(claim(three), three)
    text = operator.get(ask_path(task, "edit")).content.decode()
    assert "people were asked about it as it is; restart from a" in text
    assert re.search(r'type="submit" disabled>Edit and go on', text)


def test_who_is_not_shown_contents_is_shown_none_here(sign_in: Any, three: Workflow) -> None:
    task = make_dead_at_b(three)
    Task.objects.filter(pk=task.pk).update(input={"secret": "ferries"})
    client = sign_in("operator", "blind")
    Reach.objects.create(user=User.objects.get(username="blind"), payload=False)
    text = client.get(ask_path(task, "fork")).content.decode()
    assert "Copy from b</button>" in text
    assert "ferries" not in text
    assert 'name="input"' not in text
    form = fill(task, "fork", from_step="b")
    assert client.post(path_of(task, "fork"), form).status_code == 302
    assert Task.objects.get(copied_from=task).input == {"secret": "ferries"}
    text = client.get(ask_path(task, "edit")).content.decode()
    assert "You are not shown contents, so somebody else edits them." in text
    assert "&quot;ok&quot;" not in text
