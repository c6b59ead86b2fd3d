"""Who could run what: live workers, the workflows they know and those this process knows."""

from __future__ import annotations

import dataclasses
import datetime as dt
from collections.abc import Sequence
from typing import Any
from uuid import UUID

from django.db.models import Exists, Q, QuerySet

from ledger import clock, conf, registry, states
from ledger.concurrency import Concurrency
from ledger.errors import UnknownWorkflow
from ledger.keys import Holders, read_holders
from ledger.lanes import list_closing, may_start, read_closed
from ledger.models import Task, Worker
from ledger.models.worker import DRAINS
from ledger.queries.paging import DEFAULT_LIMIT, Page, clamp_limit
from ledger.queries.seen import see_tasks
from ledger.workflows import Scope, Workflow, describe_change

MISSED_BEATS = 3
"""A worker that was not seen for so many heartbeats counts as gone."""


type Key = tuple[str, str]
"""(workflow, version)."""


@dataclasses.dataclass(slots=True)
class Known:
    """A workflow version as the live workers that know it describe it."""

    steps: list[str]
    digest: str
    rules: dict[str, Any] = dataclasses.field(default_factory=dict)
    workers: int = 0
    takers: int = 0
    """Those of the workers that were not told to drain."""
    digests: set[str] = dataclasses.field(default_factory=set)
    """Several while a deploy is under way, or where a version was changed in place."""


@dataclasses.dataclass(slots=True)
class Fleet:
    """The live workers at one moment: how many, and the workflow versions that they know.

    And which lanes start nothing, and who holds which concurrency key, read when a queued task is
    first asked about that may wait for it.
    """

    live: int
    knows: dict[Key, Known]
    closed: dict[str, tuple[str, UUID | None]] | None = None
    holders: Holders | None = None

    def find_reason(self, task: Task) -> str:
        """Why a queued task does not start, by its workflow, its lane or its concurrency key; empty
        when it can."""
        if why := self.find_obstacle(task.workflow, task.workflow_version):
            return why
        if self.closed is None:
            self.closed = read_closed()
        why = may_start(task, self.closed)
        if why or task.concurrency_key is None:
            return why
        return self.load_holders().find_reason(task)

    def load_holders(self) -> Holders:
        """Who holds which concurrency key, read once."""
        if self.holders is None:
            self.holders = read_holders()
        return self.holders

    def find_obstacle(self, workflow: str, version: str) -> str:
        """Why no live worker can run this version; empty when one can."""
        if known := self.knows.get((workflow, version)):
            return "" if known.takers else "every worker for it drains"
        if not self.live:
            return "no worker is running"
        if any(name == workflow for name, _ in self.knows):
            return "no worker for this version"
        return "no worker for this workflow"

    def find_change(self, workflow: str, version: str, digest: str) -> str:
        """What is said when a live worker's code is not what `digest` was taken of; else empty."""
        known = self.knows.get((workflow, version))
        return describe_change(version) if known and known.digests - {digest} else ""

    def find_version(self, workflow: str) -> str | None:
        """The version that most workers know of a workflow, of equals the last; None: unknown."""
        ranked = [
            (known.workers, version)
            for (name, version), known in self.knows.items()
            if name == workflow
        ]
        return max(ranked)[1] if ranked else None


class _Described(Workflow):
    """A workflow as a worker describes it: enough to submit, nothing to run."""

    def __init__(self, name: str, version: str, known: Known) -> None:
        scope, bound = (known.rules.get(name) for name in ("scope", "concurrency"))
        super().__init__(
            name, version, scope=None if scope is None else Scope(**scope),
            on_limit=known.rules.get("on_limit", "dead"),
            self_approval=known.rules.get("self_approval", False),
            concurrency=None if bound is None else Concurrency(**bound),
        )  # fmt: skip
        for step in known.steps:
            self.step(lambda ctx: None, name=step)
        self._digest = known.digest


def describe_known() -> list[dict[str, Any]]:
    """What this process can run, in the form of `Worker.knows`."""
    return [
        {
            "workflow": workflow.name,
            "version": workflow.version,
            "digest": workflow.digest(),
            "steps": [step.name for step in workflow.steps],
            "rules": {
                "scope": describe_scope(workflow),
                "on_limit": workflow.on_limit,
                "self_approval": workflow.self_approval,
                "concurrency": workflow.concurrency and dataclasses.asdict(workflow.concurrency),
            },
        }
        for workflow in registry.all_workflows()
    ]


def describe_scope(workflow: Workflow) -> dict[str, list[str]] | None:
    """What its steps may use, by kind; None: anything."""
    return None if workflow.scope is None else workflow.scope.describe()


def find_scope(name: str, version: str) -> dict[str, list[str]] | None:
    """What the steps of a workflow version may use; None: anything, or nobody knows it."""
    try:
        return describe_scope(find_workflow(name, version))
    except UnknownWorkflow:
        return None


def build_fleet(
    described: Sequence[list[dict[str, Any]]], told: Sequence[str] | None = None
) -> Fleet:
    """A fleet from what each live worker says that it knows, and what each is told."""
    knows: dict[Key, Known] = {}
    told = [""] * len(described) if told is None else told
    pairs = ((entry, word) for one, word in zip(described, told, strict=True) for entry in one)
    for entry, word in pairs:
        known = Known(entry["steps"], entry["digest"], entry.get("rules", {}))
        known = knows.setdefault((entry["workflow"], entry["version"]), known)
        known.workers += 1
        known.takers += word not in DRAINS
        known.digests.add(entry["digest"])
    return Fleet(len(described), knows)


def load_fleet() -> Fleet:
    """The fleet as of now: one query, and one more for who asks about lanes where any is closed."""
    rows = list(list_live_workers().values_list("knows", "told", Exists(list_closing())))
    fleet = build_fleet([knows for knows, *_ in rows], [told for _, told, _ in rows])
    if not any(closing for *_, closing in rows):
        fleet.closed = {}
    return fleet


def find_workflow(name: str, version: str | None = None) -> Workflow:
    """The workflow that this process knows, or a stand-in for one that a live worker knows.

    A stand-in has the steps' names and the digest and takes any JSON object: the worker checks
    the input when it runs. Raises UnknownWorkflow.
    """
    try:
        return registry.get(name, version)
    except UnknownWorkflow:
        fleet = load_fleet()
        wanted = version or fleet.find_version(name)
        known = fleet.knows.get((name, wanted)) if wanted else None
        if known is None or wanted is None:
            raise
        return _Described(name, wanted, known)


def count_workers() -> int:
    """How many workers beat."""
    return list_live_workers().count()


def list_workers(limit: int = DEFAULT_LIMIT) -> Page[dict[str, Any]]:
    """Workers, last seen first, each with the tasks it holds."""
    rows = list(Worker.objects.order_by("-seen_at", "owner")[: clamp_limit(limit)])
    held: dict[str, list[str]] = {}
    running = see_tasks().filter(status=states.RUNNING, lease_owner__in=[row.owner for row in rows])
    for owner, task_id in running.values_list("lease_owner", "id"):
        held.setdefault(owner, []).append(str(task_id))
    line = clock.read() - dt.timedelta(seconds=count_live_seconds())
    return Page([_show_worker(row, held.get(row.owner, []), line) for row in rows])


def list_workflows(fleet: Fleet | None = None) -> list[dict[str, Any]]:
    """Every workflow version that this process or a live worker knows."""
    fleet = fleet or load_fleet()
    here = {(wf.name, wf.version): wf for wf in registry.all_workflows()}
    keys = sorted(here.keys() | fleet.knows.keys())
    return [_show_workflow(key, here.get(key), fleet.knows.get(key)) for key in keys]


def count_live_seconds() -> float:
    """For how long a worker that is not heard of counts as live."""
    return MISSED_BEATS * conf.load().heartbeat_seconds


def is_live() -> Q:
    """True for a worker that beats."""
    return Q(stopped_at__isnull=True, seen_at__gt=clock.now(-count_live_seconds()))


def list_live_workers() -> QuerySet[Worker]:
    """The workers that beat, in no order."""
    return Worker.objects.filter(is_live()).order_by()


def _show_worker(row: Worker, tasks: list[str], line: dt.datetime) -> dict[str, Any]:
    return {
        "owner": row.owner,
        "host": row.host,
        "pid": row.pid,
        "cluster": row.cluster,
        "live": row.stopped_at is None and row.seen_at > line,
        "draining": row.draining,
        "told": row.told,
        "units": row.units,
        "tasks": tasks,
        "knows": [{key: entry[key] for key in ("workflow", "version")} for entry in row.knows],
        "started_at": row.started_at,
        "seen_at": row.seen_at,
        "stopped_at": row.stopped_at,
    }


def _show_workflow(key: Key, here: Workflow | None, known: Known | None) -> dict[str, Any]:
    steps = [step.name for step in here.steps] if here else known.steps if known else []
    return {
        "name": key[0],
        "version": key[1],
        "description": here.description if here else "",
        "steps": steps,
        "scope": describe_scope(here) if here else (known.rules.get("scope") if known else None),
        "workers": known.workers if known else 0,
        "input_schema": here.input.model_json_schema() if here and here.input else None,
    }
