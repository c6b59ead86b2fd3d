"""/metrics: the ledger's figures as Prometheus and OpenMetrics read them.

All come from the database, so that every process answers the same and none forgets.
"""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Iterator
from itertools import accumulate
from typing import Final

from django.http import HttpRequest, HttpResponse, HttpResponseNotAllowed
from ninja.errors import AuthenticationError
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)
from prometheus_client.exposition import choose_encoder
from prometheus_client.registry import CollectorRegistry

from ledger import conf, registry, tallies
from ledger.access import READ
from ledger.api.auth import SessionAuth, TokenAuth, require_scope
from ledger.api.errors import make_problem
from ledger.calls import read_call
from ledger.errors import NotAllowed
from ledger.queries import crew, trouble
from ledger.queries.metrics import COUNTED, Metrics, load_metrics

HOLD_SECONDS: Final = 2.0
"""An answer is given again for so long: who asks more often costs the database no more."""

PATIENCE_SECONDS: Final = 5.0
"""For who reads the figures already. A slow database keeps one web thread with them, not all."""

COUNTERS: Final = {
    tallies.CREATED: ("tasks_submitted", "Tasks that were submitted, spawned or copied."),
    "reclaimed": ("reclaims", "Leases that ended because the worker was lost."),
    "attempt_failed": ("attempts_failed", "Attempts that failed, tried again or not."),
    "released": ("releases", "Attempts that were given back uncharged."),
    "repaired": ("repairs", "Restarts from an earlier step."),
    "stale_write_refused": ("stale_writes_refused", "Writes of workers that had lost the task."),
}
"""Kind of event -> name and help of its counter."""

ENDINGS: Final = ("completed", "failed", "dead", "cancelled")

GAUGES: Final = {
    trouble.STALLED: ("tasks_stalled", "Running tasks without a checkpoint or a report for long."),
    trouble.LOST: ("tasks_lost", "Running tasks whose lease is over: their workers are lost."),
    trouble.NO_WORKER: ("tasks_unclaimable", "Queued tasks that no live worker knows."),
    trouble.APPROVALS: ("approvals_waiting", "Questions that wait for people."),
}
"""Kind of trouble -> name and help of its gauge."""


def show_metrics(request: HttpRequest) -> HttpResponse:
    """The figures, for a token or a person with the scope `read` and no limit to lanes."""
    if request.method != "GET":
        return HttpResponseNotAllowed(["GET", "HEAD"])
    caller = TokenAuth()(request) or SessionAuth()(request)
    if caller is None:
        raise AuthenticationError
    request.auth = caller  # type: ignore[attr-defined]
    require_scope(request, READ)
    if read_call().lanes is not None:
        raise NotAllowed("The figures are those of all lanes, which the caller does not see.")
    found = _held.read()
    if found is None:
        return make_problem(503, "busy", "Not now: the figures are being read.")
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_Families(found))
    encode, media_type = choose_encoder(request.headers.get("Accept", ""))
    return HttpResponse(encode(registry), content_type=media_type)


class _Held:
    """The last figures of this process, and one at a time who reads new ones."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._found: Metrics | None = None
        self._until = 0.0

    def read(self) -> Metrics | None:
        """The figures; None when somebody else takes too long to read them."""
        if not self._lock.acquire(timeout=PATIENCE_SECONDS):
            return None
        try:
            if self._found is None or time.monotonic() >= self._until:
                self._found = load_metrics()
                self._until = time.monotonic() + HOLD_SECONDS
            return self._found
        finally:
            self._lock.release()

    def forget(self) -> None:
        """Read anew at the next request."""
        self._found = None


_held = _Held()
forget_metrics = _held.forget


class _Families:
    """One answer's metrics."""

    def __init__(self, found: Metrics) -> None:
        self.found = found
        self.totals = found.totals
        names = dict.fromkeys(sorted({workflow for _, workflow, _ in self.totals} - {""}))
        names |= dict.fromkeys(sorted(one.name for one in registry.all_workflows()))
        names |= dict.fromkeys(sorted({workflow for workflow, _ in found.tasks}))
        self.workflows = [name for name in names if name != tallies.OTHER][: tallies.LABELS]
        if len(names) > len(self.workflows):
            self.workflows.append(tallies.OTHER)

    def collect(self) -> Iterator[Metric]:
        """In the order in which they are written."""
        yield from self._show_tasks()
        yield from self._show_trouble()
        yield from self._show_counters()
        yield self._show_histogram(
            tallies.CLAIM, "claim_latency",
            "From when a new task was queued to its first claim; known once its first unit ended.",
        )  # fmt: skip
        yield self._show_histogram(
            tallies.UNIT, "unit_duration", "From the start of a unit to its checkpoint."
        )

    def _name(self, workflow: str) -> str:
        return workflow if workflow in self.workflows else tallies.OTHER

    def _show_tasks(self) -> Iterator[Metric]:
        counts = Counter[tuple[str, str]]()
        for (workflow, status), count in self.found.tasks.items():
            counts[self._name(workflow), status] += count
        tasks = GaugeMetricFamily(
            "longwatch_tasks", "Tasks, but for completed and cancelled ones.",
            labels=["workflow", "status"],
        )  # fmt: skip
        for workflow in self.workflows:
            for status in COUNTED:
                tasks.add_metric([workflow, status], counts[workflow, status])
        yield tasks
        capped = GaugeMetricFamily(
            "longwatch_tasks_capped", "1: there are more of the status than were counted.",
            labels=["status"],
        )  # fmt: skip
        for status in COUNTED:
            capped.add_metric([status], self.found.capped[status])
        yield capped
        ages = dict.fromkeys(self.workflows, 0.0)
        for workflow, age in self.found.oldest.items():
            ages[self._name(workflow)] = max(ages[self._name(workflow)], age)
        oldest = GaugeMetricFamily(
            "longwatch_queue_oldest_age_seconds",
            "For how long the task that comes next has been queued; 0 without one.",
            labels=["workflow"],
        )  # fmt: skip
        for workflow, age in ages.items():
            oldest.add_metric([workflow], age)
        yield oldest

    def _show_trouble(self) -> Iterator[Metric]:
        for kind, (name, text) in GAUGES.items():
            yield GaugeMetricFamily(f"longwatch_{name}", text, value=self.found.trouble[kind].count)
        yield GaugeMetricFamily(
            "longwatch_approvals_oldest_age_seconds",
            "For how long the first open question has waited; 0 without one.",
            value=self.found.age(trouble.APPROVALS),
        )
        workers = GaugeMetricFamily(
            "longwatch_workers", "Workers that were seen in the last ten minutes.",
            labels=["state"],
        )  # fmt: skip
        for state in crew.STATES:
            workers.add_metric([state], self.found.workers[state])
        yield workers

    def _show_counters(self) -> Iterator[Metric]:
        for kind, (name, text) in COUNTERS.items():
            yield self._count(name, text, tallies.EVENT, {"": kind})
        yield self._count(
            "tasks_ended", "Tasks that ended; one that is set going again may end again.",
            tallies.EVENT, {status: status for status in ENDINGS}, label="status",
        )  # fmt: skip
        yield self._count(
            "tokens", "Tokens that were spent.", tallies.TOKENS, {"in": "in", "out": "out"},
            label="direction",
        )  # fmt: skip
        yield self._count("cost", "Money that was spent.", tallies.COST, {"": ""}, scale=conf.NANO)

    def _count(
        self, name: str, text: str, kind: str, details: dict[str, str], *, label: str = "",
        scale: int = 1,
    ) -> CounterMetricFamily:  # fmt: skip
        labels = ["workflow", label] if label else ["workflow"]
        made = CounterMetricFamily(f"longwatch_{name}", text, labels=labels)
        for workflow in self.workflows:
            for shown, detail in details.items():
                value = self.totals.get((kind, workflow, detail), 0)
                made.add_metric([workflow, shown] if label else [workflow], value / scale)
        return made

    def _show_histogram(self, kind: str, name: str, text: str) -> HistogramMetricFamily:
        made = HistogramMetricFamily(f"longwatch_{name}_seconds", text, labels=["workflow"])
        ends = [str(end) for end in tallies.BUCKETS] + [tallies.REST]
        for workflow in self.workflows:
            counts = (self.totals.get((kind, workflow, end), 0) for end in ends)
            micros = self.totals.get((tallies.SECONDS_OF[kind], workflow, ""), 0)
            made.add_metric(
                [workflow], list(zip(ends, accumulate(counts), strict=True)), micros / 1e6
            )
        return made
