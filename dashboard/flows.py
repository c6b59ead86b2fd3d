"""What the pages of workflows show: versions with their figures, steps, budgets and policies."""

from __future__ import annotations

import collections
from collections.abc import Sequence
from typing import Any

from dashboard import charts, words
from dashboard.overview import BAD
from ledger import conf, queries, registry, states
from ledger.errors import UnknownWorkflow
from ledger.queries import Ended, Unfinished
from ledger.queries.fleet import Fleet
from ledger.queries.runs import Runs
from ledger.workflows import Workflow

DAYS = 7
"""The list's figures are of the tasks that ended in so many days, the newest of them."""

type Key = tuple[str, str]


def list_versions(
    known: Sequence[dict[str, Any]],
    ended: Sequence[Ended],
    unfinished: Sequence[Unfinished],
    fleet: Fleet,
) -> list[dict[str, Any]]:
    """Every known version with its figures, the active one of each workflow first."""
    done: dict[Key, list[Ended]] = collections.defaultdict(list)
    open_now: dict[Key, list[Unfinished]] = collections.defaultdict(list)
    for one in ended:
        done[one.workflow, one.version].append(one)
    for other in unfinished:
        open_now[other.workflow, other.version].append(other)
    active = {name: find_active(name, fleet) for name in {row["name"] for row in known}}
    shown = []
    for row in known:
        key = (row["name"], row["version"])
        is_active = active[row["name"]] == row["version"]
        shown.append(row | show_version(done[key], open_now[key]) | {"active": is_active})
    return sorted(shown, key=lambda row: (row["name"], not row["active"]))


def find_active(name: str, fleet: Fleet) -> str | None:
    """The version that a task gets which names none."""
    try:
        return registry.get(name).version
    except UnknownWorkflow:
        return fleet.find_version(name)


def list_orphans(
    known: Sequence[dict[str, Any]], unfinished: Sequence[Unfinished]
) -> list[dict[str, Any]]:
    """Versions of tasks under way that nobody knows."""
    keys = {(row["name"], row["version"]) for row in known}
    counts = collections.Counter((one.workflow, one.version) for one in unfinished)
    return [
        {"name": name, "version": version, "unfinished": count}
        for (name, version), count in sorted(counts.items())
        if (name, version) not in keys
    ]


def show_version(ended: Sequence[Ended], unfinished: Sequence[Unfinished]) -> dict[str, Any]:
    """Its figures: runs that ended, how many well, how long and for how much; the last failure."""
    good = [one for one in ended if one.status == states.COMPLETED]
    bad = [one for one in ended if one.status in BAD]
    took = [one.took for one in good if one.took is not None]
    judged = len(good) + len(bad)
    return {
        "running": sum(one.status == states.RUNNING for one in unfinished),
        "unfinished": len(unfinished),
        "runs": len(ended),
        "bad": len(bad),
        "success": say_share(len(good), judged),
        "median": charts.find_quantile(took, 0.5),
        "high": charts.find_quantile(took, 0.95),
        "each": words.say_money(sum(one.cost for one in ended) // len(ended)) if ended else "",
        "failed_ago": min((one.ago for one in bad), default=None),
    }


def say_share(part: int, whole: int) -> str:
    """'98%'; never 100% of what is not all, nor 0% of something."""
    if not whole:
        return ""
    if 0 < part < whole:
        return f"{min(99, max(1, round(100 * part / whole)))}%"
    return "100%" if part else "0%"


def show_steps(workflow: Workflow, runs: Runs) -> list[dict[str, Any]]:
    """Its steps in order: how long a unit takes, how often it fails, what it costs."""
    whole = sum(step.nano for step in runs.steps.values())
    found = []
    for step in workflow.steps:
        did = runs.steps.get(step.name)
        tries = did.units + did.failed + did.lost if did else 0
        found.append(
            {
                "step": step,
                "did": did,
                "median": charts.find_quantile(did.seconds, 0.5) if did else None,
                "high": charts.find_quantile(did.seconds, 0.95) if did else None,
                "each": say_rate(did.units / runs.count) if did and did.units else "",
                "retried": say_share(did.failed + did.lost, tries) if did else "",
                "repaired": say_share(min(did.repairs, runs.count), runs.count) if did else "",
                "money": words.say_money(did.nano) if did else "",
                "share": round(100 * did.nano / whole) if did and whole else None,
            }
        )
    return found


def show_questions(runs: Runs) -> dict[str, Any]:
    """What was asked of people in the sample, and how long it waited."""
    return {
        "asked": runs.asked,
        "each": f"{runs.asked / runs.count:.2g}" if runs.count else "",
        "answered": len(runs.waits),
        "median": charts.find_quantile(runs.waits, 0.5),
    }


def count_on_versions(unfinished: Sequence[Unfinished], name: str) -> dict[str, int]:
    """How many tasks are under way on each version."""
    return dict(collections.Counter(one.version for one in unfinished if one.workflow == name))


def describe_bounds(workflow: Workflow) -> dict[str, Any]:
    """The limits of a task of this workflow: its own, else the site's."""
    site, own = conf.load(), workflow.limits
    cost = conf.parse_money(site.limit_cost) if own.cost_nano is None else own.cost_nano
    return {
        "units": own.units or site.limit_units,
        "tokens": own.tokens or site.limit_tokens,
        "cost": words.say_money(cost),
        "wall": own.wall or site.wall_seconds,
        "repairs": site.max_repairs if workflow.max_repairs is None else workflow.max_repairs,
        "reclaims": site.max_reclaims,
    }


def say_rate(rate: float) -> str:
    """How often in one run, to a tenth; whole numbers without one."""
    return f"{rate:,.1f}".removesuffix(".0")


def list_policies(workflow: Workflow) -> list[tuple[str, str]]:
    """What its author decided about people and limits, in words."""
    scope = queries.fleet.describe_scope(workflow)
    uses = "anything" if scope is None else "; ".join(
        f"{kind}: {', '.join(names) or 'none'}" for kind, names in scope.items()
    )  # fmt: skip
    return [
        ("A used-up limit", "asks people" if workflow.on_limit == "ask" else "ends the task"),
        ("Its submitter", f"may {'' if workflow.self_approval else 'not '}answer its questions"),
        ("Risk of its questions", f"{workflow.risk_floor} or more"),
        ("Its steps may use", uses),
    ]
