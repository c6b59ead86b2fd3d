"""A compensation that does not end, in the worker: by its deadline it does, and no other waits."""

from __future__ import annotations

import pytest

from ledger.events import Actor
from ledger.models import Effect
from ledger.transitions.effects import mark_effect
from ledger.transitions.operators import retry_task
from tests.crash.cluster_kit import SIGTERM
from tests.crash.site_kit import wait_for_status
from tests.poison.conftest import StartSite
from tests.poison.flows import canary, rueful

pytestmark = pytest.mark.django_db(transaction=True)

ENDS = {
    "swallows_every_stop": ("compensation_failed", "would not be stopped"),
    "loops_in_c_with_the_interpreter_lock": ("reclaims_exhausted", "interpreter's lock"),
}


def test_a_compensation_that_does_not_end_is_ended(start_site: StartSite) -> None:
    """And its effect is still owed: a person settles it, after which the task ends as it was to."""
    with start_site(LONGWATCH_MAX_RECLAIMS=0, LONGWATCH_UNIT_MARGIN_SECONDS=1) as cluster:
        tasks = {kind: cluster.submit(rueful, kind=kind) for kind in ENDS}
        canaries = [cluster.submit(canary, kind="") for _ in range(3)]
        for task in canaries:
            wait_for_status(task, "completed")
        for kind, task in tasks.items():
            wait_for_status(task, "dead")
            task.refresh_from_db()
            reason, text = ENDS[kind]
            assert (task.status_reason, task.ending["status"]) == (reason, "failed"), kind
            assert text in task.error["message"], kind
            effect = Effect.objects.get(task=task)
            assert (effect.status, effect.undo_tries) == ("done", 1), kind
            mark_effect(task.pk, effect.pk, to="compensated", actor=Actor("user", "1"))
            retry_task(task.pk, actor=Actor("user", "1"))
        for task in tasks.values():
            wait_for_status(task, "failed")
        cluster.signal(SIGTERM)
        assert cluster.wait_for_exit() == 0
