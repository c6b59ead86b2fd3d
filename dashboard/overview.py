"""The overview's figures, from facts of the ledger to what the page shows."""

from __future__ import annotations

import collections
from collections.abc import Sequence
from typing import Any
from urllib.parse import urlencode

from django.urls import reverse

from dashboard import charts, words
from dashboard.failures import group_failures
from dashboard.templatetags.longwatch import duration, grouped
from ledger import conf, queries, states
from ledger.models import Worker
from ledger.queries import Ended, Trouble, Unfinished, trouble

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
    more = f" and {len(versions) - 1} more" if len(versions) > 1 else ""
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


def list_tiles(
    statuses: Sequence[str],
    counts: dict[str, int],
    span: charts.Span,
    points: Sequence[tuple[str, float]],
) -> list[dict[str, Any]]:
    """One tile for each status; `points` are (status, seconds ago) of what its bars count."""
    tiles = []
    ages: dict[str, list[float]] = collections.defaultdict(list)
    for status, ago in points:
        ages[status].append(ago)
    for status in statuses:
        bars = span.sum_up((ago, 1) for ago in ages[status])
        query = urlencode({"status": status})
        tiles.append(
            {
                "look": words.LOOKS[status],
                "href": f"{reverse('dashboard:tasks')}?{query}",
                "count": counts[status],
                "fresh": int(sum(bars)),
                "bars": bars,
            }
        )
    return tiles


def show_throughput(
    ended: Sequence[Ended], unfinished: Sequence[Unfinished], span: charts.Span
) -> dict[str, Any]:
    """Started, finished, failed in the range, and a bar for each bucket."""
    starts = [None if one.took is None else one.ago + one.took for one in ended]
    starts += [one.started for one in unfinished]
    started = span.sum_up((ago, 1) for ago in starts)
    good = span.sum_up((one.ago, 1) for one in ended if one.status == states.COMPLETED)
    bad = span.sum_up((one.ago, 1) for one in ended if one.status in BAD)
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


def show_duration(ended: Sequence[Ended], span: charts.Span) -> dict[str, Any]:
    """Median and 95th percentile of completed tasks, from the first claim to the end."""
    took: list[list[float]] = [[] for _ in range(span.count)]
    for one in ended:
        bucket = span.find_bucket(one.ago)
        if one.status == states.COMPLETED and one.took is not None and bucket is not None:
            took[bucket].append(one.took)
    every = [seconds for bucket in took for seconds in bucket]
    medians = [charts.find_quantile(bucket, 0.5) for bucket in took]
    highs = [charts.find_quantile(bucket, 0.95) for bucket in took]
    median, high = charts.find_quantile(every, 0.5), charts.find_quantile(every, 0.95)
    top = charts.find_top(max((one for one in highs if one), default=0), charts.NICE_SECONDS)
    says = f"Duration of {len(every)} completed tasks: "
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


def show_money(
    ended: Sequence[Ended], unfinished: Sequence[Unfinished], span: charts.Span
) -> dict[str, Any]:
    """What the tasks used that ended in the range, and what those under way have used so far."""
    total, tokens = sum(one.cost for one in ended), sum(one.tokens for one in ended)
    sums = span.sum_up((one.ago, one.cost / conf.NANO) for one in ended)
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
    ended: Sequence[Ended],
    unfinished: Sequence[Unfinished],
    span: charts.Span,
    limit: int = WORKFLOWS_SHOWN,
) -> list[dict[str, Any]]:
    """The workflow versions with most tasks in the range or under way."""
    done: dict[tuple[str, str], list[Ended]] = collections.defaultdict(list)
    open_now: dict[tuple[str, str], list[Unfinished]] = collections.defaultdict(list)
    for one in ended:
        done[one.workflow, one.version].append(one)
    for other in unfinished:
        open_now[other.workflow, other.version].append(other)
    busiest = sorted(
        done.keys() | open_now.keys(), key=lambda key: (-len(done[key]) - len(open_now[key]), key)
    )
    return [
        {
            "name": name,
            "version": version,
            "running": sum(one.status == states.RUNNING for one in open_now[name, version]),
            "unfinished": len(open_now[name, version]),
            "finished": len(done[name, version]),
            "bad": sum(one.status in BAD for one in done[name, version]),
            "median": charts.find_quantile(
                [
                    one.took
                    for one in done[name, version]
                    if one.took is not None and one.status == states.COMPLETED
                ],
                0.5,
            ),
            "repairs": sum(one.repairs for one in done[name, version]),
            "money": words.say_money(sum(one.cost for one in done[name, version])),
            "bars": span.sum_up((one.ago, 1) for one in done[name, version]),
        }
        for name, version in busiest[:limit]
    ]


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
    """Everything on the page: eight queries."""
    workers = list(queries.list_live_workers())
    unknown = queries.list_unknown(
        queries.build_fleet([row.knows for row in workers], [row.told for row in workers])
    )
    counts = queries.count_trouble(unknown)
    by_status = queries.count_by_status()
    ended = queries.list_ended(span.seconds)
    unfinished = queries.list_unfinished()
    return {
        "attention": list_attention(counts, unknown),
        "needing": sum(counts[kind].count for kind in trouble.FOR_PEOPLE),
        "waiting": counts[trouble.APPROVALS].count,
        "calm": not any(found.count for found in counts.values()),
        "open_tiles": list_tiles(
            UNFINISHED, by_status, span, [(one.status, one.submitted) for one in unfinished]
        ),
        "ended_tiles": list_tiles(
            FINISHED, by_status, span, [(one.status, one.ago) for one in ended]
        ),
        "throughput": show_throughput(ended, unfinished, span),
        "time": show_duration(ended, span),
        "money": show_money(ended, unfinished, span),
        "trials": queries.count_trials(span.seconds),
        "repairs": sum(one.repairs for one in ended),
        "workers": show_workers(workers, unfinished),
        "workflows": list_workflow_rows(ended, unfinished, span),
        "groups": group_failures(queries.list_failures(span.seconds))[:GROUPS_SHOWN],
        "cut": len(ended) >= queries.COUNT_CAP,
    }
