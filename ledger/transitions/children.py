"""Tasks that a task spawns: made with its unit in one commit, waited for, ended with it.

A child is an ordinary task. That it ended is counted by a sweep, in its parent's row and under that
row's lock, so neither the hot statements nor a crash between the two can part them. Locks are taken
child first, and sweeps wait for nobody.
"""

from __future__ import annotations

import dataclasses
import datetime as dt
from collections.abc import Mapping, Sequence
from typing import Any, cast
from uuid import UUID

from django.db.models import Count, F, Q

from ledger import clock, hours, queries, sql, states
from ledger.errors import InvalidInput
from ledger.events import SYSTEM, Actor, record_event
from ledger.models import Spend, Task
from ledger.sql import Claimed, Unit
from ledger.transitions.approvals import void_open_approval
from ledger.transitions.endings import end_task
from ledger.transitions.holder import leave_if_cancelled, store_unit
from ledger.transitions.moves import (
    end_wait,
    lock_held,
    lock_if_free,
    make_error,
    move_task,
    skip_locked,
    update_row,
)
from ledger.transitions.submit import Draft, draft_task, naming_item, store_draft
from ledger.workflows import Spawn

MAX_DEPTH = 8
"""Generations: a workflow that spawns itself comes to an end."""

RECHECK = dt.timedelta(hours=1)
"""A parent is looked at that often even if no child tells it anything."""

TOLD_AT_ONCE = 200
SHOWN = 20


def draft_children(held: Claimed, spawn: Spawn) -> list[Draft]:
    """The children as checked submissions, within what the parent has left of its limits.

    Lane and priority are the parent's unless given. Raises UnknownWorkflow, and InvalidInput naming
    the child and its field.
    """
    parent = Task.objects.get(pk=held.task_id)
    if is_deepest(parent):
        raise InvalidInput("children", f"tasks spawn tasks at most {MAX_DEPTH} deep")
    actor = Actor("task", str(parent.pk))
    drafts = []
    for number, child in enumerate(spawn.tasks):
        with naming_item(f"children.{number}"):
            draft = draft_task(
                workflow=queries.find_workflow(child.workflow, child.version), input=child.input,
                actor=actor, version=child.version, title=child.title, tags=child.tags,
                lane=parent.lane if child.lane is None else child.lane,
                priority=parent.priority if child.priority is None else child.priority,
                limits_given=cast(Mapping[str, Any] | None, child.limits),
                max_repairs=child.max_repairs,
            )  # fmt: skip
        drafts.append(dataclasses.replace(draft, columns=_bound(draft.columns, parent)))
    return drafts


def _bound(columns: dict[str, Any], parent: Task) -> dict[str, Any]:
    # Tokens and money are shared, see limits.lock_line: a bound of today would hold after a raise.
    units = max(0, min(columns["limit_units"], parent.limit_units - parent.used_units))
    ends = [moment for moment in (columns["deadline_at"], parent.deadline_at) if moment]
    return columns | {"limit_units": units, "deadline_at": min(ends, default=None)}


def is_deepest(task: Task) -> bool:
    """True for a task that may have no children, as it has so many generations above it."""
    count, above = 1, task.parent_id
    while above is not None and count < MAX_DEPTH:
        count += 1
        above = Task.objects.filter(pk=above).values_list("parent_id", flat=True).first()
    return count >= MAX_DEPTH


def spawn_children(
    held: Claimed, unit: Unit, drafts: Sequence[Draft], spawn: Spawn, *, last: bool
) -> None:
    """running -> waiting (children): output, children and release are one commit.

    `last`: no step follows, so the children's end completes the task. Raises LeaseLost or
    AlreadySettled.
    """
    with lock_held(held.lease, "spawn") as (task, now):
        fields = store_unit(task, held, unit, now)
        if leave_if_cancelled(task, held, now, "spawn_children", fields):
            return
        seq = task.event_seq
        mark = {"parent_id": task.pk, "parent_seq": seq}
        made = [
            store_draft(dataclasses.replace(draft, columns=draft.columns | mark))[0].pk
            for draft in drafts
        ]
        most = spawn.max_failed
        if most is None:
            most = 0 if spawn.until == "all" else len(made) - 1
        waits = {
            "for": states.CHILDREN, "seq": seq, "count": len(made), "until": spawn.until,
            "max_failed": most, "last": last, "step": unit.next_name,
        }  # fmt: skip
        if spawn.then == "again":  # no step after it is kept from running, and one turn sees them
            waits |= {"last": None, "turn": unit.next_turn}
        worker = Actor("worker", held.owner)
        record_event(task, "spawned", worker, now, count=len(made),
                     children=[str(pk) for pk in made[:SHOWN]])  # fmt: skip
        record_event(task, "waiting", worker, now, reason=states.CHILDREN, until=spawn.until,
                     max_failed=most)  # fmt: skip
        move_task(
            task, now, "spawn_children", states.WAITING, reason=states.CHILDREN, by_holder=True,
            **{"available_at": now + RECHECK, "children_open": task.children_open + len(made),
               "waits": waits, **fields},
        )  # fmt: skip
        sql.wake_workers()


# --- Their end ------------------------------------------------------------------------------------


def tell_parent(parent_id: UUID) -> bool:
    """Count the ended children of a task, with what they used; it may go on, or fail, by that."""
    with sql.atomic():
        untold = Task.objects.filter(
            parent_id=parent_id, finished_at__isnull=False, parent_told=False
        )
        children = list(skip_locked(untold.order_by("id"))[:TOLD_AT_ONCE])
        parent = skip_locked(Task.objects.filter(pk=parent_id)).first()
        if not children or parent is None:
            return False
        now = clock.read()
        Task.objects.filter(pk__in=[child.pk for child in children]).update(parent_told=True)
        for child in children:
            _book_spend(parent, child, now)
        parent.children_open -= len(children)
        open_now = {"children_open": parent.children_open}
        if not _join(parent, now, **open_now):
            update_row(parent, open_now)
        return True


def _book_spend(parent: Task, child: Task, now: dt.datetime) -> None:
    """What the child used is its parent's too: what it used since it was last counted."""
    key = f"child:{child.pk}:"
    before = list(Spend.objects.filter(task=parent, key__startswith=key))
    amounts = {
        name: getattr(child, f"used_{name}") - sum(getattr(one, name) for one in before)
        for name in ("tokens_in", "tokens_out", "cost")
    }
    if not any(amounts.values()):
        return
    Spend.objects.create(
        task=parent, key=f"{key}{len(before)}", at=now, fence=parent.fence, step=parent.step_name,
        turn=parent.turn, note=f"child task {child.title or child.workflow}"[:500], **amounts,
    )  # fmt: skip
    hours.note_change(parent.finished_at)
    Task.objects.filter(pk=parent.pk).update(
        **{f"used_{name}": F(f"used_{name}") + amount for name, amount in amounts.items()}
    )


def join_children(task_id: UUID) -> bool:
    """waiting (children) -> on, completed or failed, if its children decide it; else a later look.

    For what nobody told it: a task that died of a limit while its children ended.
    """
    with lock_if_free(task_id) as found:
        if found is None:
            return False
        task, now = found
        if task.status_reason != states.CHILDREN or task.available_at > now:
            return False
        if not _join(task, now):
            update_row(task, {"available_at": now + RECHECK})
            return False
        return True


def _join(task: Task, now: dt.datetime, **fields: Any) -> bool:
    """Let a task that waits for children go on, or fail, if what is counted of them says so."""
    waits = task.waits
    if (task.status, task.status_reason) != (states.WAITING, states.CHILDREN) or waits is None:
        return False
    told = Q(parent_told=True)
    counted = Task.objects.filter(parent=task, parent_seq=waits["seq"]).aggregate(
        good=Count("pk", filter=told & Q(status=states.COMPLETED)),
        bad=Count("pk", filter=told & ~Q(status=states.COMPLETED)),
    )
    good, bad, count = counted["good"], counted["bad"], waits["count"]
    if bad > waits["max_failed"]:
        text = f"{bad} of {count} child tasks did not complete; {waits['max_failed']} may."
        error = make_error(task, "ChildrenFailed", text)
        end_task(task, now, "join_children", states.FAILED, actor=SYSTEM, error=error,
                 reason=states.WORKFLOW_FAILED,
                 said={"reason": states.WORKFLOW_FAILED, "error": error}, **fields)  # fmt: skip
        return True
    if good + bad < count and not (good and waits["until"] == "any"):
        return False
    record_event(task, "promoted", SYSTEM, now, reason=states.CHILDREN, completed=good, others=bad)
    # By the parent's id as well: a copy of this task sees the same ones.
    seen = {"children": [str(task.pk), waits["seq"]]}
    end_wait(task, now, "join_children", seen, **fields)
    return True


def end_children(parent_id: UUID, limit: int = 100) -> bool:
    """Cancel the children that a task left behind, one each; True once something was done."""
    upto = Task.objects.filter(pk=parent_id).values_list("cascade_upto", flat=True).first()
    if upto is None:
        return False
    left = Task.objects.filter(
        parent_id=parent_id, parent_seq__lte=upto, finished_at__isnull=True,
        cancel_requested=False, ending__isnull=True,
    )  # fmt: skip
    keys = list(left.values_list("pk", flat=True)[:limit])
    if keys:
        return sum(cancel_child(key) for key in keys) > 0
    return bool(Task.objects.filter(pk=parent_id, cascade_upto=upto).update(cascade_upto=None))


def cancel_child(task_id: UUID) -> bool:
    """Any unfinished task -> cancelled (by its parent), or the flag of one that runs.

    Or -> queued, to undo its effects first; it counts as ended after that.
    """
    with lock_if_free(task_id) as found:
        if found is None:
            return False
        task, now = found
        if task.status in states.FINISHED or task.cancel_requested or task.parent_id is None:
            return False
        if task.ending is not None:
            return False
        by = Actor("task", str(task.parent_id))
        task.cancel_by = str(by)
        if task.status == states.RUNNING:
            record_event(task, "cancel_requested", by, now, reason="")
            update_row(task, {"cancel_requested": True, "cancel_by": str(by), "updated_at": now})
            return True
        void_open_approval(task, by, now, "the task was cancelled")
        end_task(task, now, "cancel_child", states.CANCELLED, actor=by,
                 reason=states.CANCELLED_BY_PARENT)  # fmt: skip
        return True
