"""The database's clock has stepped back in the middle of units: pages and API stay sensible."""

from __future__ import annotations

import re

import pytest
from django.test import Client

from ledger import clock
from ledger.sweeper import sweep
from ledger.transitions import holder
from ledger.workflows import Workflow
from tests.factories import attempt, claim, complete, make_unit, submit

pytestmark = [pytest.mark.both_databases, pytest.mark.django_db]

NEGATIVE = re.compile(r"(?<![\w-])[-\N{MINUS SIGN}]\d[\d.,]*\s?(ms|s|min|h|d)\b")


@pytest.mark.case(13)
def test_no_page_shows_a_negative_duration_and_the_record_keeps_its_order(
    three: Workflow, operator: Client
) -> None:
    task = submit(three)
    held = claim(three)
    clock.offset -= 3600
    holder.settle_unit(held, make_unit(held, three))
    held = claim(three)
    clock.offset -= 3600
    holder.record_failure(held, attempt(), retries=3, backoff=0.001)
    clock.offset += 1
    assert sweep().promoted == 1
    held = claim(three)
    clock.offset -= 3600
    holder.settle_unit(held, make_unit(held, three))
    complete(claim(three), three)
    here = f"/tasks/{task.pk}/"
    for path in (here, f"{here}outputs/", f"{here}events/", "/", "/tasks/", "/workflows/three/"):
        page = operator.get(path)
        assert page.status_code == 200, path
        text = re.sub(r"<[^>]+>", " ", page.content.decode())
        assert not NEGATIVE.search(text), path
    events = operator.get(f"/api/v1/tasks/{task.pk}/events").json()["items"]
    assert [event["seq"] for event in events] == list(range(1, len(events) + 1))
    assert (events[0]["kind"], events[-1]["kind"]) == ("submitted", "completed")
