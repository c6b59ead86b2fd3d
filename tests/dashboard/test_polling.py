"""A page that stays open: while nothing is written it costs one small look, and it misses nothing.

A mark that did not change would be believed, so each kind of write is tried.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import psycopg
import pytest
from django.contrib.auth import get_user_model
from django.db import connection
from django.test import Client

from ledger import clock, sql
from ledger.models import Approval, Reach
from ledger.queries.marks import SECONDS, mark_ledger
from ledger.sql import Lease
from ledger.transitions import approvals, holder, operators
from ledger.workflows import Workflow
from tests.dashboard.conftest import PART
from tests.dashboard.fleet import make_worker
from tests.factories import (
    LEASE,
    OPERATOR,
    OTHER,
    OWNER,
    ask,
    attempt,
    claim,
    complete,
    submit,
)  # fmt: skip

pytestmark = pytest.mark.both_databases

PAGES = ("/", "/tasks/", "/approvals/", "/stalled/")


def poll(client: Client, path: str, tag: str) -> Any:
    return client.get(path, headers=PART | {"HX-PTag": tag})


SERVERS_OWN = (
    b"HTTP/1.1 304 Not Modified\r\nServer: gunicorn\r\nDate: Mon, 30 Nov 2026 15:53:51 GMT\r\n"
    b"Connection: keep-alive\r\n\r\n"
)
"""What gunicorn says besides."""


def count_bytes(answer: Any) -> int:
    """Of an answer without a body, on the wire."""
    lines = [*(f"{name}: {value}" for name, value in answer.items())]
    lines += [one.output() for one in answer.cookies.values()]
    return len(SERVERS_OWN) + sum(len(line) + 2 for line in lines)


def settle(client: Client, path: str) -> str:
    """The tag of a page that stands: the view's, and the mark behind it."""
    tag = client.get(path, headers=PART)["HX-PTag"]
    answer = poll(client, path, tag)
    assert answer.status_code == 304
    assert answer["HX-PTag"].startswith(f"{tag}~")
    return str(answer["HX-PTag"])


def test_every_kind_of_write_changes_the_mark(db: None, three: Workflow) -> None:
    seen = [mark_ledger()]

    def look(what: str) -> None:
        seen.append(mark_ledger())
        assert seen[-1] != seen[-2], what
        # The server itself may write between two looks, once in a minute.
        assert any(mark_ledger() == mark_ledger() for _ in range(3)), f"nothing since {what}"

    task = submit(three)
    look("submitted")
    held = claim(three)
    look("claimed")
    sql.beat_leases(OWNER, [Lease(task.pk, held.fence, OWNER)], LEASE)
    look("beaten")
    operators.pause_task(task.pk, actor=OPERATOR)
    look("flag set")
    operators.resume_task(task.pk, actor=OPERATOR)
    look("flag taken back")
    ask(held, three)
    look("asked")
    asked = Approval.objects.get()
    decide = {"decision": "approve", "actor": OPERATOR, "digest": asked.digest}
    approvals.decide_approval(asked.pk, undo_seconds=8.0, **decide)
    look("decided")
    approvals.undo_decision(asked.pk, actor=OPERATOR)
    look("undone")
    approvals.decide_approval(asked.pk, undo_seconds=0.0, **decide)
    look("decided again")
    held = claim(three)
    look("claimed again")
    holder.record_failure(held, attempt(), retries=0, backoff=1)
    look("gave up")
    operators.retry_task(task.pk, actor=OPERATOR)
    look("retried")
    held = claim(three)
    complete(held, three)
    look("completed")
    make_worker(three, owner=OTHER)
    look("a worker came")
    make_worker(three, owner=OTHER, draining=True)
    look("it drains")


def test_time_alone_changes_the_mark(db: None, three: Workflow) -> None:
    submit(three)
    claim(three)
    make_worker(three)
    marks = set()
    for seconds in (0.0, LEASE + 1, 3600.0):  # lost, stalled; and a worker is gone
        clock.offset = seconds
        marks.add(mark_ledger())
    clock.offset = 7200.0
    later = mark_ledger()
    clock.offset += SECONDS
    assert len({*marks, later, mark_ledger()}) == 5


@pytest.mark.postgresql
def test_a_write_that_is_under_way_is_not_taken_for_none(transactional_db: None) -> None:
    calm = mark_ledger()
    parameters = {**connection.get_connection_params()}
    where = {key: parameters[key] for key in ("host", "port", "user", "dbname")}
    with psycopg.connect(**where) as other:
        other.execute("SELECT pg_current_xact_id()")
        during = mark_ledger()
        other.commit()
    assert during != calm
    assert mark_ledger() != during


@pytest.mark.parametrize("path", PAGES)
def test_a_poll_that_finds_nothing_new_takes_one_look(
    operator: Client, three: Workflow, path: str, django_assert_num_queries: Any
) -> None:
    submit(three)
    tag = settle(operator, path)
    with django_assert_num_queries(4):  # the session, the person, what they may; the mark
        answer = poll(operator, path, tag)
    assert (answer.status_code, answer.content, answer["HX-PTag"]) == (304, b"", tag)
    assert count_bytes(answer) <= 300
    assert answer["Cache-Control"] == "no-store"
    assert answer["Cache-Control"]
    submit(three)
    if path in ("/", "/tasks/"):
        changed = poll(operator, path, tag)
        assert changed.status_code == 200
        assert changed["HX-PTag"].partition("~")[0] != tag.partition("~")[0]


def test_a_mark_is_no_pass(
    operator: Client, sign_in: Callable[..., Client], three: Workflow
) -> None:
    """Who signed out, lost the role or sees less than before is answered as anybody else."""
    submit(three)
    tag = settle(operator, "/tasks/")
    other = sign_in("viewer", "vera")
    assert poll(other, "/tasks/", tag)["HX-PTag"] != tag
    mine = settle(other, "/tasks/")
    vera = get_user_model().objects.get(username="vera")
    Reach.objects.create(user=vera, lanes=["night"])
    assert poll(other, "/tasks/", mine).status_code == 200
    vera.groups.clear()
    assert poll(other, "/tasks/", mine).status_code == 403
    operator.logout()
    assert poll(operator, "/tasks/", tag).status_code == 401


def test_a_mark_is_of_one_address(operator: Client, three: Workflow) -> None:
    submit(three)
    tag = settle(operator, "/tasks/")
    for path in itertools.chain(["/tasks/?status=failed"], PAGES[::2]):
        assert poll(operator, path, tag).status_code == 200
