"""The overview's figures, from facts of the ledger to what the page shows."""

from __future__ import annotations

import collections
import math
from collections.abc import Iterable, Sequence
from typing import Any
from urllib.parse import urlencode

from django.urls import reverse

from dashboard import charts, words
from dashboard.failures import group_failures
from dashboard.templatetags.longwatch import duration, grouped
from ledger import conf, queries, states
from ledger.models import Worker
from ledger.queries import EndedSums, Steps, Trouble, Unfinished, trouble

RANGES = {"1h": "1 h", "24h": "24 h", "7d": "7 d"}
UNFINISHED = (states.QUEUED, states.SCHEDULED, states.RUNNING, states.WAITING, states.PAUSED)
FINISHED = (states.COMPLETED, states.FAILED, states.DEAD, states.CANCELLED)
BAD = frozenset({states.FAILED, states.DEAD})
WORKFLOWS_SHOWN, GROUPS_SHOWN, WORKERS_SHOWN = 10, 6, 12

ATTENTION = {
    trouble.APPROVALS: words.Look("waiting for an answer", "wait", "is-wait"),
    trouble.GAVE_UP: words.Look("gave up", "dead", "is-dead"),
    trouble.STALLED: words.Look("stalled", "stall", "is-stall"),
    trouble.LOST: words.Look("lost", "lost", "is-stall"),
    trouble.NO_WORKER: words.Look("no worker", "none", "is-stall"),
}


def list_attention(
    counts: dict[str, Trouble], unknown: frozenset[tuple[str, str]]
) -> list[dict[str, Any]]:
    """What needs somebody, each with the list that holds as many."""
    stalled = reverse("dashboard:trouble")
    versions = [f"{workflow} version {version}" for workflow, version in sorted(unknown)]
    more = (
        f" and\N{NO-BREAK SPACE}{len(versions) - 1}\N{NO-BREAK SPACE}more"
        if len(versions) > 1
        else ""
    )
    notes = {
        trouble.LOST: "queues again by itself",
        trouble.STALLED: "lease alive, no progress",
        trouble.NO_WORKER: versions[0] + more if versions else "",
    }
    return [
        {
            "kind": kind,
            "look": look,
            "href": reverse("dashboard:approvals")
            if kind == trouble.APPROVALS
            else f"{stalled}?{urlencode({'kind': kind})}",
            "found": counts[kind],
            "note": notes.get(kind, ""),
        }
        for kind, look in ATTENTION.items()
    ]


def list_open_tiles(
    counts: dict[str, int], unfinished: Sequence[Unfinished], day: charts.Span
) -> list[dict[str, Any]]:
    """One tile for each status of tasks under way, its bars by when they were submitted."""
    ages: dict[str, list[float]] = collections.defaultdict(list)
    for one in unfinished:
        ages[one.status].append(one.submitted)
    return [
        make_tile(status, counts) | {"bars": day.sum_up((ago, 1) for ago in ages[status])}
        for status in UNFINISHED
    ]


def list_ended_tiles(counts: dict[str, int], ended: EndedSums) -> list[dict[str, Any]]:
    """One for each status of finished tasks: how many in the range, and in the last hour against
    the same one yesterday; its bars are the last 24 hours."""
    fresh = collections.Counter[str]()
    for (_, status), amount in ended.amounts.items():
        fresh[status] += amount.tasks
    last = int(ended.now) // 3600
    change = {
        status: ended.last_hour.get(status, 0) - ended.day_before.get(status, 0)
        for status in FINISHED
    }
    return [
        make_tile(status, counts)
        | {
            "fresh": fresh[status],
            "change": change[status],
            "fewer": -change[status],
            "bars": [ended.of_day.get((last - back, status), 0) for back in range(24, -1, -1)],
        }
        for status in FINISHED
    ]


def make_tile(status: str, counts: dict[str, int]) -> dict[str, Any]:
    """What every tile has."""
    query = urlencode({"status": status})
    return {
        "look": words.LOOKS[status],
        "href": f"{reverse('dashboard:tasks')}?{query}",
        "count": counts[status],
    }


def spread(slots: Iterable[tuple[int, float]], ended: EndedSums, span: charts.Span) -> list[float]:
    """One sum for each bucket of the range from (slot, amount)."""
    sums = [0.0] * span.count
    for slot, amount in slots:
        bucket = span.find_slot(slot, ended.size, ended.now)
        if bucket is not None:
            sums[bucket] += amount
    return sums


def show_throughput(
    ended: EndedSums, unfinished: Sequence[Unfinished], span: charts.Span
) -> dict[str, Any]:
    """Started, finished, failed in the range, and a bar for each bucket."""
    rows = ended.amounts.items()
    under_way = span.sum_up((one.started, 1) for one in unfinished)
    started = [sum(pair) for pair in zip(
        spread(ended.began.items(), ended, span), under_way, strict=True)]  # fmt: skip
    good = spread(((at, one.tasks) for (at, name), one in rows if name == states.COMPLETED),
                  ended, span)  # fmt: skip
    bad = spread(((at, one.tasks) for (at, name), one in rows if name in BAD), ended, span)
    top = charts.find_top(max(*started, *map(sum, zip(good, bad, strict=True))))
    finished = int(sum(good) + sum(bad))
    says = (
        f"Finished in {RANGES[span.name]}: {finished}, of these {sum(bad):.0f} failed or gave up; "
        f"{sum(started):.0f} started"
    )
    return {
        "started": int(sum(started)),
        "finished": finished,
        "failed": int(sum(bad)),
        "says": says,
        "ticks": span.list_ticks(),
        "top": f"{top:g}",
        "bars": charts.draw_bars((good, bad), ("c-ok", "c-bad"), top),
        "curves": charts.draw_curve(started, "l-high", top),
    }


def show_duration(ended: EndedSums, span: charts.Span) -> dict[str, Any]:
    """Median and 95th percentile of completed tasks, from the first claim to the end."""
    took: list[list[Steps]] = [[] for _ in range(span.count)]
    for slot, steps in ended.took.items():
        bucket = span.find_slot(slot, ended.size, ended.now)
        if bucket is not None:
            took[bucket].append(steps)
    every = [steps for bucket in took for steps in bucket]
    count = sum(tasks for steps in every for tasks, _ in steps.values())
    medians = [find_quantile(bucket, 0.5) for bucket in took]
    highs = [find_quantile(bucket, 0.95) for bucket in took]
    median, high = find_quantile(every, 0.5), find_quantile(every, 0.95)
    top = charts.find_top(max((one for one in highs if one), default=0), charts.NICE_SECONDS)
    says = f"Duration of {count} completed tasks: "
    says += f"median {duration(median)}, 95% under {duration(high)}" if every else "none yet"
    return {
        "median": median,
        "high": high,
        "says": says,
        "ticks": span.list_ticks(),
        "top": duration(top).removesuffix(" 00 s") if every else "",
        "bars": [],
        "curves": charts.draw_curve(highs, "l-high", top)
        + charts.draw_curve(medians, "l-mid", top),
    }


def find_quantile(some: Sequence[Steps], share: float) -> float | None:
    """The mean of the step of durations in which the value of that rank lies; None of nothing."""
    tasks, seconds = collections.Counter[int](), collections.Counter[int]()
    for steps in some:
        for step, (count, long) in steps.items():
            tasks[step] += count
            seconds[step] += long  # type: ignore[assignment]  # a float
    left = max(1, math.ceil(share * tasks.total()))
    for step in sorted(tasks):
        left -= tasks[step]
        if left <= 0:
            return seconds[step] / tasks[step]
    return None


def show_money(
    ended: EndedSums, unfinished: Sequence[Unfinished], span: charts.Span
) -> dict[str, Any]:
    """What the tasks used that ended in the range, and what those under way have used so far."""
    rows = ended.amounts.items()
    total, tokens = sum(one.cost for _, one in rows), sum(one.tokens for _, one in rows)
    sums = spread(((slot, one.cost / conf.NANO) for (slot, _), one in rows), ended, span)
    top = charts.find_top(max(sums))
    spent = words.say_money(total)
    return {
        "total": spent,
        "tokens": tokens,
        "open": words.say_money(sum(one.cost for one in unfinished)),
        "open_tokens": sum(one.tokens for one in unfinished),
        "says": f"Money of tasks that ended: {spent} in {RANGES[span.name]}, {grouped(tokens)} "
        "tokens",
        "ticks": span.list_ticks(),
        "top": f"${top:,.2f}" if total else "",
        "bars": charts.draw_bars((sums,), ("c-cost",), top),
        "curves": [],
    }


def list_workflow_rows(
    ended: EndedSums,
    unfinished: Sequence[Unfinished],
    span: charts.Span,
    limit: int = WORKFLOWS_SHOWN,
) -> list[dict[str, Any]]:
    """The workflow versions with most tasks in the range or under way."""
    done = {
        key: sum(one.tasks for one in found.values()) for key, found in ended.of_workflow.items()
    }
    open_now: dict[tuple[str, str], list[Unfinished]] = collections.defaultdict(list)
    for other in unfinished:
        open_now[other.workflow, other.version].append(other)
    busiest = sorted(
        done.keys() | open_now.keys(), key=lambda key: (-done.get(key, 0) - len(open_now[key]), key)
    )
    rows = []
    for key in busiest[:limit]:
        amounts = ended.of_workflow.get(key, {})
        took = ended.took_of_workflow.get(key)
        rows.append(
            {
                "name": key[0],
                "version": key[1],
                "running": sum(one.status == states.RUNNING for one in open_now[key]),
                "unfinished": len(open_now[key]),
                "finished": done.get(key, 0),
                "bad": sum(one.tasks for (_, name), one in amounts.items() if name in BAD),
                "median": find_quantile([took], 0.5) if took else None,
                "repairs": sum(one.repairs for one in amounts.values()),
                "money": words.say_money(sum(one.cost for one in amounts.values())),
                "bars": spread(((at, one.tasks) for (at, _), one in amounts.items()), ended, span),
            }
        )
    return rows


def show_workers(workers: Sequence[Worker], unfinished: Sequence[Unfinished]) -> dict[str, Any]:
    """How many workers beat, and what the first of them do."""
    holding = {one.owner for one in unfinished if one.owner}
    looks = []
    for row in sorted(workers, key=lambda row: (row.host, row.pid)):
        busy = row.owner in holding
        look = words.LOOKS[states.RUNNING] if busy else words.LOOKS[states.QUEUED]
        word = "draining" if row.draining else "busy" if busy else "idle"
        if row.draining:
            look = words.LOOKS[states.PAUSED]
        looks.append({"owner": row.owner, "look": look, "word": word})
    return {
        "live": len(workers),
        "busy": sum(row.owner in holding for row in workers),
        "draining": sum(row.draining for row in workers),
        "some": looks[:WORKERS_SHOWN],
        "more": max(0, len(looks) - WORKERS_SHOWN),
    }


def load_overview(span: charts.Span) -> dict[str, Any]:
    """Everything on the page: ten queries."""
    workers = list(queries.list_live_workers())
    unknown = queries.list_unknown(
        queries.build_fleet([row.knows for row in workers], [row.told for row in workers])
    )
    counts = queries.count_trouble(unknown)
    by_status = queries.count_by_status()
    ended = queries.sum_ended(span.seconds, span.size)
    unfinished = queries.list_unfinished()
    return {
        "attention": list_attention(counts, unknown),
        "needing": sum(counts[kind].count for kind in trouble.FOR_PEOPLE),
        "waiting": counts[trouble.APPROVALS].count,
        "calm": not any(found.count for found in counts.values()),
        "open_tiles": list_open_tiles(by_status, unfinished, charts.make_span("24h", span.now)),
        "ended_tiles": list_ended_tiles(by_status, ended),
        "throughput": show_throughput(ended, unfinished, span),
        "time": show_duration(ended, span),
        "money": show_money(ended, unfinished, span),
        "trials": queries.count_trials(span.seconds),
        "repairs": sum(one.repairs for one in ended.amounts.values()),
        "workers": show_workers(workers, unfinished),
        "workflows": list_workflow_rows(ended, unfinished, span),
        "groups": group_failures(queries.list_failures(span.seconds))[:GROUPS_SHOWN],
        "cut": ended.cut,
    }
