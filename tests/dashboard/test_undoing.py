"""A task that undoes its effects: what its page says is going on, and where its log is."""

from __future__ import annotations

import pytest
from django.test import Client
from django.urls import reverse

from ledger import queries
from ledger.models import Effect
from ledger.queries.timeline import UNDONE
from ledger.transitions.effects import begin_undo, finish_undo
from ledger.transitions.endings import settle_undo
from ledger.workflows import registered
from tests.held import claim
from tests.test_compensations import Shop, fail_after, own_places, shop, work

__all__ = ["own_places", "shop"]  # fixtures

pytestmark = [pytest.mark.both_databases, pytest.mark.django_db(transaction=True)]


def read_page(client: Client, name: str, task_id: object) -> str:
    page = client.get(reverse(f"dashboard:{name}", args=[task_id]))
    return " ".join(page.content.decode().split())


def test_a_running_compensation_is_no_attempt_at_the_step(operator: Client, shop: Shop) -> None:
    task = fail_after(shop, "charge")
    with registered(shop.flow):
        held = claim(shop.flow, task_id=task.pk)
        begin_undo(held, Effect.objects.get().pk)
        text = read_page(operator, "task", task.pk)
        for part in ("<dt>Undoing</dt><dd>charge of pay, turn 0, by refund", "Being undone",
                     "Undoing an effect <span"):  # fmt: skip
            assert part in text
        for part in ("<dt>Running unit</dt>", "retries used", "This unit runs again"):
            assert part not in text
        finish_undo(held, Effect.objects.get().pk, "given back", "08:00:00 INFO refunded")
        settle_undo(held)
        assert "refunded" in read_page(operator, "log", task.pk)
        last = queries.list_attempts(task.pk)[-1]
        assert (last.fence, last.state, last.logged) == (held.fence, "undone", True)


def test_what_was_undone_is_drawn_where_the_task_was_to_end(operator: Client, shop: Shop) -> None:
    task = work(shop, fail_after(shop, "charge"))
    with registered(shop.flow):
        text = read_page(operator, "task", task.pk)
    assert "undone by refund" in text
    assert "Undoing an effect <span" in text
    row, units = queries.find_task(task.pk), queries.list_units(task.pk)
    now = row.updated_at
    spans = queries.build_timeline(row, units, queries.list_record(task.pk), now).spans
    assert [span.step for span in spans if span.kind == UNDONE] == [task.step_name]
