"""Fills an empty ledger with tasks in every status; run by `record` at the version recorded."""

from __future__ import annotations

import django

django.setup()

from ledger import states, workflows  # noqa: E402
from tests.factories import make_in, make_workflow, submit  # noqa: E402

for status in states.STATUSES:
    # A workflow each: a claim takes the head of its queue.
    workflow = make_workflow(f"recorded_{status}")
    with workflows.registered(workflow):
        make_in(status, workflow)
report = workflows.get("report")
submit(report, input={"subject": "an upgrade"}, title="queued before the upgrade")
