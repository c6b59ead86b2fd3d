"""`code-task`: an agent changes a tree of files until a check of the site's passes.

unpack -> plan -> work (an agent, one model request a unit) -> verify (the check, and lint of what
was changed; findings lead back to work) -> review by a person -> publish. What any worker needs to
go on stands in the ledger, so that one may be killed in any unit.
"""

from __future__ import annotations

import tempfile
from typing import Any

from django.db.models import Count, Sum

from harness_site.workflows.code_task.checking import (
    ChangeLayer,
    CheckLayer,
    LintLayer,
    run_check,
)
from harness_site.workflows.code_task.given import CodeTask, read_model_name
from harness_site.workflows.code_task.planning import list_items, list_ticked
from harness_site.workflows.code_task.review import Spent, Work
from harness_site.workflows.code_task.source import fetch_tree, read_goal
from harness_site.workflows.shared.originals import keep_original, open_original
from harness_site.workflows.shared.publishing import publish_change
from harness_site.workflows.shared.showing import write_changes
from harness_site.workflows.shared.submitters import may_run_code
from harness_site.workflows.shared.tree import compare_trees, diff_file
from ledger.conf import format_money
from ledger.context import Context
from ledger.evaluators import EvaluatorFailed, evaluate
from ledger.models import Spend
from ledger.workflows import AskApproval, Fail, Limits, Repair, Workflow, minutes

code_task = Workflow(
    "code-task",
    version="1",
    input=CodeTask,
    max_repairs=5,
    self_approval=True,
    limits=Limits(tokens=2_000_000, cost="5.00"),
    on_limit="ask",
    description="An agent changes your code until your check passes; a person reviews the diff.",
)


@code_task.step(timeout=minutes(20))
def unpack(ctx: Context) -> Any:
    """Fetch the tree, keep it as it came, and see what the check finds before any change."""
    from harness_site.workflows.code_task.models import make_model

    make_model(ctx)  # what it lacks, somebody has to set; nothing is begun before
    if not ctx.input.example and not may_run_code(ctx.submitted_by):
        raise Fail(
            "not_allowed", "the check runs what was uploaded; its token lacks the scope operate"
        )
    name, label = fetch_tree(ctx)
    keep_original(ctx)
    ctx.report(note=f"check {ctx.input.check}")
    try:
        before = run_check(ctx)
    except EvaluatorFailed as error:
        raise Fail("check_unusable", str(error)) from error
    return {"name": name, "label": label, "check_before": before.problem, "ticked": []}


@code_task.step(timeout=minutes(30))
async def plan(ctx: Context) -> Any:
    """The agent looks at the tree and makes the plan."""
    from harness_site.workflows.code_task._agents import plan_step

    return await plan_step(ctx)


@code_task.step(timeout=minutes(30))
async def work(ctx: Context) -> Any:
    """The agent works on the tree."""
    from harness_site.workflows.code_task._agents import work_step

    return await work_step(ctx)


@code_task.step(timeout=minutes(30))
def verify(ctx: Any) -> Any:
    """Something was changed, the check passes, and ruff finds nothing new in what was changed."""
    check = CheckLayer(ctx.input.check)
    verdict = evaluate(ctx, [ChangeLayer(), LintLayer(), check], ctx.progress)
    told = {**verdict.output, "ticked": list_ticked(ctx)}
    if not verdict.passed:
        return Repair("work", verdict.feedback, **told)
    assert check.run is not None
    return {**told, "held": check.run.held, "fence": check.run.fence}


@code_task.step
def review(ctx: Context) -> Any:
    """Ask whether the change is wanted."""
    if not ctx.input.review:
        return {}
    work = _describe_work(ctx)
    payload = work.describe_payload() | {"evaluation": ctx.progress["evaluation"]}
    if any(file["cut"] for file in payload["files"]):
        with tempfile.TemporaryFile() as made:
            write_changes(work.diffs, made)
            made.seek(0)
            payload["whole"] = str(ctx.save_artifact("changes.txt", made, "text/plain").id)
    return AskApproval(
        work.subject, body=work.write_body(), payload=payload, risk=work.risk, send_back_to="work"
    )


@code_task.step
def publish(ctx: Context) -> Any:
    """Publish the patch, the report and the archive."""
    work = _describe_work(ctx)
    with open_original(ctx) as original:
        published = publish_change(ctx, original, work.diffs, work.write_report(ctx.answer))
    return {
        "published": published,
        "changed": len(work.diffs), "added": work.added, "removed": work.removed,
    }  # fmt: skip


def _describe_work(ctx: Context) -> Work:
    progress, ticked = ctx.progress, set(list_ticked(ctx))
    with open_original(ctx) as original:
        paths = compare_trees(original, ctx.workspace)
        diffs = [diff_file(original, ctx.workspace, path) for path in paths]
    return Work(
        label=progress["label"], goal=read_goal(ctx), check=ctx.input.check,
        before=progress["check_before"], held=progress["held"],
        fence=progress.get("fence", ""),
        plan=[(item, n in ticked) for n, item in enumerate(list_items(ctx), 1)],
        summary=str(progress["work"]), diffs=diffs, restarts=ctx.round,
        model="recorded" if ctx.input.example else read_model_name(), spent=_sum_spent(ctx),
    )  # fmt: skip


def _sum_spent(ctx: Context) -> Spent:
    """What is settled: a request in flight at a lost worker is on the task's page alone."""
    sums = Spend.objects.filter(task=ctx.task_id).aggregate(
        requests=Count("pk"), tokens_in=Sum("tokens_in"), tokens_out=Sum("tokens_out"),
        cost=Sum("cost"),
    )  # fmt: skip
    return Spent(
        sums["requests"], sums["tokens_in"] or 0, sums["tokens_out"] or 0,
        format_money(sums["cost"] or 0),
    )  # fmt: skip
