"""Everything that can be done on the pages: one list, that tests, help and audits go by.

A form of a template that sends to a route which is not here fails a test, and so does an action
that is not driven by mouse, by keyboard alone and without JavaScript (tests/e2e/test_actions.py).
"""

from __future__ import annotations

import dataclasses

from dashboard.actions import ACTIONS
from dashboard.answers import DECISIONS
from ledger.access import ADMIN, APPROVE, OPERATE, READ, SUBMIT

ANYBODY = ""


@dataclasses.dataclass(frozen=True, slots=True)
class PageAction:
    """Something that a person does on a page.

    `route` is the name of the URL that it is sent to, `scope` who may (ANYBODY: also who is not
    signed in), `writes` whether it is a POST.
    """

    name: str
    route: str
    scope: str
    writes: bool = True


_ALL = (
    *(PageAction(f"task.{name}", "act", OPERATE) for name in ACTIONS),
    *(PageAction(f"answer.{decision}", "answer", APPROVE) for decision, _ in DECISIONS),
    PageAction("answer.approve-final", "answer", APPROVE),
    PageAction("answer.settings", "answer", APPROVE),
    PageAction("answer.undo", "undo", APPROVE),
    PageAction("queue.undo", "undo", APPROVE),
    PageAction("answer.next", "answer", APPROVE),
    PageAction("answers.filter", "answers", READ, writes=False),
    PageAction("trouble.filter", "trouble", READ, writes=False),
    PageAction("stuck.act", "act", OPERATE),
    PageAction("worker.drain", "worker-act", OPERATE),
    PageAction("worker.undrain", "worker-act", OPERATE),
    PageAction("worker.declare-dead", "worker-act", OPERATE),
    PageAction("token.make", "token-new", ADMIN),
    PageAction("token.rotate", "token-act", ADMIN),
    PageAction("token.revoke", "token-act", ADMIN),
    PageAction("workers.filter", "workers", READ, writes=False),
    PageAction("workflow.check", "workflow", SUBMIT),
    PageAction("workflow.start", "workflow", SUBMIT),
    PageAction("alert.make", "alert-new", ADMIN),
    PageAction("alert.edit", "alert", ADMIN),
    PageAction("alert.new-secret", "alert", ADMIN),
    PageAction("alert.remove", "alert", ADMIN),
    PageAction("alert.test", "alert-act", OPERATE),
    PageAction("alert.replay", "alert-act", OPERATE),
    PageAction("lane.set", "lane", OPERATE),
    PageAction("lane.pause", "lane-act", OPERATE),
    PageAction("lane.resume", "lane-act", OPERATE),
    PageAction("lane.run-one", "lane-act", OPERATE),
    PageAction("demo.delete", "delete-demo", OPERATE),
    PageAction("bulk.begin", "bulk-new", OPERATE),
    PageAction("bulk.stop", "bulk-stop", APPROVE),
    PageAction("together.begin", "together", APPROVE),
    PageAction("since.put-away", "since", READ),
    PageAction("settings.save", "settings", READ),
    PageAction("settings.theme", "settings", READ),
    PageAction("settings.zone", "settings", READ),
    PageAction("settings.keys", "settings", READ),
    PageAction("sign-in", "login", ANYBODY),
    PageAction("sign-out", "logout", ANYBODY),
    PageAction("tasks.filter", "tasks", READ, writes=False),
    PageAction("tasks.unfilter", "tasks", READ, writes=False),
    PageAction("tasks.tab", "tasks", READ, writes=False),
    PageAction("tasks.suggest", "tasks", READ, writes=False),
    PageAction("tasks.columns", "tasks", READ, writes=False),
    PageAction("tasks.select", "bulk-new", OPERATE),
    PageAction("view.save", "view-new", READ),
    *(
        PageAction(f"view.{name}", "view-act", READ)
        for name in ("update", "rename", "share", "pin", "delete")
    ),
    PageAction("request.open-file", "approval-file", READ, writes=False),
    PageAction("request.mark-seen", "answer", APPROVE),
)

PAGE_ACTIONS = {action.name: action for action in _ALL}
