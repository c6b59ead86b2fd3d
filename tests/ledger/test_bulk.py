"""One action on many tasks: each exactly once, by the same rules as on one."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable
from typing import Any

import pytest
from django.contrib.auth import get_user_model
from django.contrib.auth.models import Group

from ledger import states, sweeper
from ledger.bulk import doing, making, selecting
from ledger.bulk.actions import BULK_ACTIONS
from ledger.bulk.doing import do_pending
from ledger.bulk.making import SelectionGrew, make_operation, stop_operation
from ledger.bulk.selecting import Selection, preview
from ledger.calls import Call, answer_call
from ledger.errors import IdempotencyConflict, InvalidInput, LedgerError
from ledger.events import Actor
from ledger.models import AuditEntry, BulkItem, BulkOperation, Event, Task
from ledger.queries import filters
from ledger.queries.bulk import list_items, list_operations, show_operation
from ledger.tokens import make_token, revoke_token
from ledger.transitions import operators
from ledger.workflows import Workflow
from tests.factories import CLIENT, make_in, submit

pytestmark = pytest.mark.django_db

CLI = Actor("cli", "ann")
EACH = sorted(states.STATUSES, key=lambda status: status == states.QUEUED)
"""Queued last, as the others are made of what is queued."""


@pytest.fixture(autouse=True)
def no_hurry(monkeypatch: pytest.MonkeyPatch) -> None:
    """A turn ends by its number of items, however slow the machine is."""
    monkeypatch.setattr(doing, "TURN_SECONDS", 600.0)


def choose(tasks: Iterable[Task]) -> Selection:
    return Selection(ids=tuple(task.pk for task in tasks))


def start(name: str, selection: Selection, **options: Any) -> BulkOperation:
    return make_operation(name, selection, **({"actor": CLI} | options))[0]


def finish(operation: BulkOperation) -> dict[str, int]:
    """Sweep to the end; its counts."""
    for _ in range(100):
        do_pending()
        shown = show_operation(operation.pk)
        if shown["finished_at"]:
            return {name: number for name, number in shown["counts"].items() if number}
    raise AssertionError(shown)


def list_outcomes(operation: BulkOperation) -> dict[Any, tuple[str, str]]:
    return {row.task: (row.outcome, row.why) for row in operation.items.all()}


def make_person(role: str) -> Actor:
    user = get_user_model().objects.create_user(role)
    user.groups.add(Group.objects.get(name=role))
    return Actor("user", str(user.pk))


def test_a_filter_is_resolved_once_and_what_it_matches_is_done(flow: Workflow) -> None:
    chosen = [submit(flow, lane="night") for _ in range(3)]
    other = submit(flow)
    operation = start("cancel", Selection(pairs=(("lane", "night"),)), reason="wrong input")
    late = submit(flow, lane="night")
    assert finish(operation) == {"done": 3}
    assert set(Task.objects.filter(status=states.CANCELLED)) == set(chosen)
    assert {Task.objects.get(pk=task.pk).status for task in (other, late)} == {states.QUEUED}
    events = Event.objects.filter(kind="cancelled")
    assert {(event.actor, event.data["reason"]) for event in events} == {("cli:ann", "wrong input")}
    audited = AuditEntry.objects.filter(request_id=doing.name_call(operation.pk))
    assert {entry.task for entry in audited} == {task.pk for task in chosen}
    assert set(audited.values_list("actor", "action")) == {("cli:ann", "cancelled")}
    [entry] = AuditEntry.objects.filter(target=f"bulk:{operation.pk}")
    assert (entry.action, entry.after["tasks"]) == ("bulk_started", 3)
    assert do_pending() == 0


def test_what_it_does_not_apply_to_is_left_out_and_says_why(flow: Workflow) -> None:
    tasks = {status: make_in(status, flow) for status in EACH}
    for name, action in BULK_ACTIONS.items():
        found = preview(action, choose(tasks.values()))
        assert found.total == len(tasks), name
    found = preview(BULK_ACTIONS["retry"], choose(tasks.values()))
    goes = {states.SCHEDULED, states.FAILED, states.DEAD, states.RUNNING}
    assert found.count_statuses() == dict.fromkeys(goes, 1)
    operation = start("retry", choose(tasks.values()), expected=4)
    assert finish(operation) == {"done": 4, "skipped": 5}
    outcomes = list_outcomes(operation)
    assert outcomes[tasks[states.PAUSED].pk] == ("skipped", "It is paused; resume it.")
    assert Task.objects.filter(status=states.QUEUED).count() == 5


@pytest.mark.parametrize("name", sorted(BULK_ACTIONS))
def test_the_conditions_say_what_the_transition_says(name: str, flow: Workflow) -> None:
    """Nothing is left out that one by one would be done, and nothing that is begun is refused for
    its status."""
    given = {"limits": {"units": 20_000}, "tag": {"tags": ["x"]}, "untag": {"tags": ["x"]},
             "priority": {"priority": 7}}.get(name, {})  # fmt: skip
    tasks = [make_in(status, flow) for status in EACH]
    operation = start(name, choose(tasks), arguments=given)
    finish(operation)
    assert not operation.items.filter(outcome="refused").exists(), list_outcomes(operation)
    for item in operation.items.filter(outcome="skipped"):
        before = Task.objects.get(pk=item.task)
        with contextlib.suppress(LedgerError):
            BULK_ACTIONS[name].run(before, CLI, "", operation.arguments)
        after = Task.objects.get(pk=item.task)
        assert (after.status, after.event_seq) == (before.status, before.event_seq), item.why


def test_a_task_that_changed_since_it_was_chosen_is_refused(flow: Workflow) -> None:
    first, second, third = (make_in(states.DEAD, flow) for _ in range(3))
    operation = start("retry", choose([first, second, third]))
    operators.cancel_task(first.pk, actor=CLIENT)
    operators.retry_task(second.pk, actor=CLIENT)
    assert finish(operation) == {"done": 1, "refused": 2}
    outcomes = list_outcomes(operation)
    assert outcomes[first.pk][1] == "It was dead when it was chosen, and is cancelled."
    assert outcomes[second.pk][1] == "It was dead when it was chosen, and is queued."
    assert outcomes[third.pk] == ("done", "")


def test_two_operations_on_the_same_tasks_each_say_what_came_of_it(flow: Workflow) -> None:
    tasks = [submit(flow) for _ in range(6)]
    pause, cancel = start("pause", choose(tasks[:4])), start("cancel", choose(tasks[2:]))
    assert sum(finish(pause).values()) == 4
    assert sum(finish(cancel).values()) == 4
    for task in tasks:
        row = Task.objects.get(pk=task.pk)
        kinds = list(Event.objects.filter(task=row).values_list("kind", flat=True))
        assert max(kinds.count("paused"), kinds.count("cancelled")) == 1
    assert {Task.objects.get(pk=task.pk).status for task in tasks[:2]} == {states.PAUSED}
    assert {Task.objects.get(pk=task.pk).status for task in tasks[4:]} == {states.CANCELLED}


def test_a_stop_leaves_what_is_done_and_begins_nothing_more(flow: Workflow) -> None:
    operation = start("pause", choose([submit(flow) for _ in range(5)]))
    assert do_pending(limit=2) == 2
    stopped = stop_operation(operation.pk, actor=CLI)
    assert (stopped.status, stopped.stopped_by) == ("stopped", "cli:ann")
    assert do_pending() == 0
    assert finish(operation) == {"done": 2, "stopped": 3}
    assert Task.objects.filter(status=states.PAUSED).count() == 2
    assert stop_operation(operation.pk, actor=CLI).status == "stopped"
    assert AuditEntry.objects.filter(action="bulk_stopped").count() == 1


def test_the_role_counts_when_an_item_is_done(flow: Workflow) -> None:
    ann = make_person("operator")
    operation = start("pause", choose([submit(flow) for _ in range(3)]), actor=ann)
    assert do_pending(limit=1) == 1
    get_user_model().objects.get(pk=ann.id).groups.clear()
    assert finish(operation) == {"done": 1, "refused": 2}
    assert "has no longer the permission operate" in str(list_outcomes(operation))


def test_a_token_that_is_revoked_does_nothing_more(flow: Workflow) -> None:
    token, _ = make_token("ci", ["operate"], created_by="cli:ann")
    own = Actor("token", str(token.pk))
    operation = start("pause", choose([submit(flow) for _ in range(2)]), actor=own)
    assert do_pending(limit=1) == 1
    revoke_token(token.pk, by="cli:ann")
    assert finish(operation) == {"done": 1, "refused": 1}


def test_nothing_outside_of_the_lanes_is_chosen_or_done(flow: Workflow) -> None:
    own, foreign = submit(flow, lane="night"), submit(flow, lane="day")
    token, _ = make_token("ci", ["operate"], created_by="cli:ann", lanes=["night", "day"])
    actor = Actor("token", str(token.pk))
    with answer_call(Call(actor=str(actor), lanes=frozenset({"night"}))):
        all_of_it = start("pause", Selection(), actor=actor)
        by_id = start("cancel", choose([own, foreign]), actor=actor)
        assert {one["id"] for one in list_operations().items} == {
            str(all_of_it.pk), str(by_id.pk)
        }  # fmt: skip
        assert list_outcomes(all_of_it) == {own.pk: ("pending", "")}
        assert list_outcomes(by_id)[foreign.pk] == ("refused", f"There is no task {foreign.pk}.")
    with answer_call(Call(actor="user:99", lanes=frozenset({"night"}))):
        assert list_operations().items == []
    type(token).objects.filter(pk=token.pk).update(lanes=["day"])
    assert finish(all_of_it) == {"refused": 1}
    assert Task.objects.get(pk=own.pk).status == states.QUEUED


def test_more_than_were_shown_are_not_done_and_more_than_the_bound_are_refused(
    flow: Workflow, monkeypatch: pytest.MonkeyPatch
) -> None:
    for _ in range(3):
        submit(flow)
    with pytest.raises(SelectionGrew):
        start("cancel", Selection(), expected=2)
    monkeypatch.setattr(selecting, "MAX_ITEMS", 2)
    monkeypatch.setattr(making, "MAX_ITEMS", 2)
    with pytest.raises(InvalidInput, match="narrow the filter"):
        start("cancel", Selection())
    with pytest.raises(InvalidInput, match="narrow the filter"):
        preview(BULK_ACTIONS["cancel"], Selection())
    with pytest.raises(InvalidInput, match="no task matches"):
        start("cancel", Selection(pairs=(("lane", "none"),)))
    assert not BulkOperation.objects.exists()
    assert not BulkItem.objects.exists()


def test_a_search_that_stops_at_its_bound_chooses_nothing(
    flow: Workflow, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What it did not find would be left out and nobody told."""
    monkeypatch.setattr(filters, "MOST_FOUND", 3)
    for _ in range(2):
        submit(flow, title="a needle")
    needles = (("q", "needle"), ("status", "queued"))
    assert preview(BULK_ACTIONS["pause"], Selection(pairs=needles)).applies == 2
    submit(flow, title="a needle")
    with pytest.raises(InvalidInput, match=r"3 or more have this text.*narrow the filter"):
        preview(BULK_ACTIONS["pause"], Selection(pairs=needles))
    with pytest.raises(InvalidInput, match="narrow the filter"):
        start("pause", Selection(pairs=needles))


def test_one_request_sent_twice_is_one_operation(flow: Workflow) -> None:
    task = submit(flow)
    first, new = make_operation("pause", choose([task]), actor=CLI, key="k")
    again, twice = make_operation("pause", choose([task]), actor=CLI, key="k")
    assert (first.pk, new, twice) == (again.pk, True, False)
    with pytest.raises(IdempotencyConflict):
        make_operation("cancel", choose([task]), actor=CLI, key="k")
    assert finish(first) == {"done": 1}


def test_the_arguments_are_those_of_the_single_action(flow: Workflow) -> None:
    tasks = [make_in(states.DEAD, flow), submit(flow, tags=["old", "kept"])]
    assert finish(start("tag", choose(tasks), arguments={"tags": ["kept", "new"]})) == {"done": 2}
    assert finish(start("untag", choose(tasks), arguments={"tags": ["old"]})) == {
        "done": 1, "skipped": 1,
    }  # fmt: skip
    assert Task.objects.get(pk=tasks[1].pk).tags == ["kept", "new"]
    assert finish(start("priority", choose(tasks), arguments={"priority": 5})) == {"done": 2}
    assert finish(start("limits", choose(tasks[1:]), arguments={"units": 50_000})) == {"done": 1}
    assert Task.objects.get(pk=tasks[1].pk).limit_units == 50_000
    lower = start("limits", choose(tasks[1:]), arguments={"units": 10})
    assert finish(lower) == {"skipped": 1}
    restart = start("restart", choose(tasks[:1]), arguments={"note": "shorter"}, reason="too long")
    assert finish(restart) == {"done": 1}
    row = Task.objects.get(pk=tasks[0].pk)
    assert (row.status, row.round, row.feedback["comment"]) == (states.QUEUED, 1, "shorter")
    for name, wrong in (("tag", {}), ("priority", {"priority": 101}), ("cancel", {"x": 1}),
                        ("limits", {}), ("limits", {"cost": "many"}), ("restart", {"note": 3}),
                        ("untag", {"tags": "x"}), ("no such", {})):  # fmt: skip
        with pytest.raises(InvalidInput):
            start(name, choose(tasks), arguments=wrong)


def test_an_item_that_fails_by_our_error_does_not_stop_the_others(
    flow: Workflow, monkeypatch: pytest.MonkeyPatch
) -> None:
    tasks = [submit(flow) for _ in range(3)]
    operation = start("pause", choose(tasks))
    plain = operators.lock_task

    def fail(task_id: Any, revision: Any = None) -> Any:
        if task_id == tasks[0].pk:
            raise RuntimeError("boom")
        return plain(task_id, revision)

    monkeypatch.setattr(operators, "lock_task", fail)
    assert finish(operation) == {"done": 2, "refused": 1}
    assert list_outcomes(operation)[tasks[0].pk][1].endswith("RuntimeError.")


def test_a_small_operation_does_not_wait_for_a_large_one(flow: Workflow) -> None:
    large = start("pause", choose([submit(flow) for _ in range(20)]))
    small = start("cancel", choose([submit(flow)]))
    do_pending(limit=4)
    assert small.items.get().outcome == "done"
    assert large.items.filter(outcome="pending").exists()


def test_the_sweeper_looks_only_while_one_is_open(flow: Workflow) -> None:
    assert not sweeper.look_ahead().bulk
    operation = start("pause", choose([submit(flow)]))
    assert sweeper.sweep(due=sweeper.look_ahead()).bulk == 1
    assert finish(operation) == {"done": 1}
    assert not sweeper.look_ahead().bulk


def test_items_are_paged_and_narrowed(flow: Workflow) -> None:
    operation = start("pause", choose([submit(flow, title=f"t{n}") for n in range(5)]))
    do_pending(limit=3)
    page = list_items(operation.pk, limit=2)
    more = list_items(operation.pk, limit=9, cursor=page.next_cursor or "")
    assert [one["title"] for one in (*page.items, *more.items)] == [f"t{n}" for n in range(5)]
    assert [one["title"] for one in list_items(operation.pk, outcome="pending").items] == [
        "t3", "t4",
    ]  # fmt: skip
    with pytest.raises(InvalidInput):
        list_items(operation.pk, outcome="nonsense")
