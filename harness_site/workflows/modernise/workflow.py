"""`modernise`: ruff's safe fixes for a real tree, held to its own tests, approved by a person.

import -> plan -> edit (a batch per unit) -> verify (on failure one test run per unit finds which
files are to blame, and edit leaves those as they were) -> review -> publish. Every unit starts from
the original and the plan, so a unit that runs again does the same again.
"""

from __future__ import annotations

import dataclasses
import itertools
import json
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from harness_site.workflows.modernise import review as texts
from harness_site.workflows.modernise.checks import (
    TestRun,
    compare_runs,
    run_tests,
)
from harness_site.workflows.modernise.given import Modernise
from harness_site.workflows.modernise.ruffing import (
    apply_fixes,
    count_findings,
    plan_changes,
)
from harness_site.workflows.modernise.search import Search
from harness_site.workflows.modernise.source import (
    copy_distribution,
)
from harness_site.workflows.shared.archive import Refused, name_after, unpack
from harness_site.workflows.shared.originals import (
    empty_folder,
    keep_original,
    make_scratch,
    open_original,
)
from harness_site.workflows.shared.publishing import publish_change
from harness_site.workflows.shared.showing import count, write_changes
from harness_site.workflows.shared.submitters import may_run_code
from harness_site.workflows.shared.tree import (
    copy_tree,
    diff_file,
    list_changes,
    show_path,
)
from ledger.artifacts import find_artifact
from ledger.canonical import clean_text
from ledger.context import Context
from ledger.errors import NotFound
from ledger.linting import RuffFailed
from ledger.workflows import Again, AskApproval, Fail, Finish, Repair, Sleep, Workflow, minutes

BASELINE, PLAN = "baseline.json", "plan.json"
MAX_TAIL = 8_000


@dataclasses.dataclass(frozen=True)
class Plan:
    """The files that the fixes would change, the findings of each before, and the batches."""

    files: list[str]
    findings: dict[str, int]
    batches: list[list[str]]


modernise = Workflow(
    "modernise",
    version="1",
    input=Modernise,
    max_repairs=5,
    self_approval=True,
    description="Applies ruff's safe fixes to a package and keeps those that its tests pass.",
)


@modernise.step(name="import", timeout=minutes(20))
def import_tree(ctx: Context) -> Any:
    """Fetch the tree, keep it as it came, and see its tests pass before anything is changed."""
    root = ctx.workspace
    empty_folder(root)
    name, label = _fetch_tree(ctx, root)
    kind, note = _choose_tests(ctx)
    run = run_tests(kind, root, tick=ctx.check)
    if not run.ok:
        raise Fail(
            "tests_failed", f"before any change: {run.problem}\n{clean_text(run.tail[-3_000:])}"
        )
    keep_original(ctx)
    ctx.save_artifact(BASELINE, json.dumps(dataclasses.asdict(run)))
    ctx.log.info("%s: %d tests ran (%s), %d skipped", label, run.ran, kind, run.skipped)
    return _go_on(
        ctx,
        {
            "name": name,
            "label": label,
            "tests": kind,
            "tests_note": note,
            "tests_before": _describe_run(run),
        },
    )


@modernise.step(timeout=minutes(20))
def plan(ctx: Context) -> Any:
    """Find the files that the fixes would change, without changing one."""
    given = ctx.input
    with open_original(ctx) as original, make_scratch(ctx) as trial:
        try:
            files = plan_changes(original, trial, given.rules, given.target)
            ctx.report(note=f"{count(len(files), 'file')} to change")
            findings = {
                path: count_findings(original, path, given.rules, given.target) for path in files
            }
        except RuffFailed as error:
            raise Fail("ruff_failed", str(error)) from error
    if not files:
        return Finish({"changed": 0, "why": "ruff finds nothing to fix"})
    batches = [list(batch) for batch in itertools.batched(files, given.batch_size)]
    ctx.save_artifact(PLAN, json.dumps(dataclasses.asdict(Plan(files, findings, batches))))
    return _go_on(ctx, {"files": len(files), "batches": len(batches), "left_alone": {}})


@modernise.step
def edit(ctx: Context) -> Any:
    """Write the fixes of one batch, from the originals; what was found guilty stays as it was."""
    plan = _read_plan(ctx)
    left_alone = dict(ctx.progress["left_alone"])
    if ctx.turn == 0:
        left_alone |= _read_feedback(ctx.feedback, [show_path(path) for path in plan.files])
    batch = plan.batches[ctx.turn]
    with open_original(ctx) as original:
        copy_tree(original, ctx.workspace, batch)
    wanted = [path for path in batch if show_path(path) not in left_alone]
    apply_fixes(ctx.workspace, wanted, ctx.input.rules, ctx.input.target)
    done = sum(map(len, plan.batches[: ctx.turn + 1]))
    ctx.report(done, len(plan.files), f"batch {ctx.turn + 1} of {len(plan.batches)}")
    data = {"edited": [show_path(path) for path in wanted], "left_alone": left_alone}
    if ctx.turn + 1 < len(plan.batches):
        return Again(data, after=ctx.input.pause)
    return _go_on(ctx, data)


@modernise.step(timeout=minutes(20))
def verify(ctx: Context) -> Any:
    """Hold the tree to what it was: everything compiles, as many tests pass, no new finding."""
    plan, before = _read_plan(ctx), _read_baseline(ctx)
    with open_original(ctx) as original:
        changed = list_changes(original, ctx.workspace)
        if ctx.turn > 0:
            return _search_on(ctx, changed, original, before)
        if not changed:
            left = ctx.progress["left_alone"]
            return Finish({"changed": 0, "why": "every fix broke something", "left_alone": left})
        after = run_tests(before.kind, ctx.workspace, tick=ctx.check)
    given = ctx.input
    if worse := [
        path
        for path in changed
        if count_findings(ctx.workspace, path, given.rules, given.target) > plan.findings[path]
    ]:
        return _repair(worse, "ruff finds more in it after its own fixes than before", after)
    problem = compare_runs(before, after)
    newly_broken = set(after.broken) - set(before.broken)
    if worse := [path for path in changed if show_path(path) in newly_broken]:
        return _repair(worse, "it does not compile with the fixes", after)
    if problem:
        ctx.log.info("with all %d files: %s", len(changed), problem)
        search = Search.start(list(range(len(changed))))
        failure = {"problem": problem, "tail": clean_text(after.tail, MAX_TAIL)}
        return _next_trial(ctx, changed, search, failure)
    return _go_on(ctx, {"tests_after": _describe_run(after), "changed": len(changed)})


@modernise.step
def review(ctx: Context) -> Any:
    """Ask whether the change is wanted."""
    with open_original(ctx) as original:
        proposal = _describe_proposal(ctx, original)
    payload = proposal.describe_payload()
    if any(file["cut"] for file in payload["files"]):
        with tempfile.TemporaryFile() as made:
            write_changes(proposal.diffs, made)
            made.seek(0)
            payload["whole"] = str(ctx.save_artifact("changes.txt", made, "text/plain").id)
    return AskApproval(
        proposal.subject,
        body=proposal.write_body(),
        payload=payload,
        risk=proposal.risk,
        send_back_to="edit",
        data={"added": proposal.added, "removed": proposal.removed},
    )


@modernise.step
def publish(ctx: Context) -> Any:
    """Publish the patch, the report and the archive."""
    with open_original(ctx) as original:
        proposal = _describe_proposal(ctx, original)
        report = proposal.write_report(ctx.answer)
        published = publish_change(ctx, original, proposal.diffs, report)
    return {
        "published": published,
        "changed": len(proposal.diffs),
        "added": proposal.added,
        "removed": proposal.removed,
    }


def _fetch_tree(ctx: Context, root: Path) -> tuple[str, str]:
    """Fill `root` and return what to call the results, and the tree in a sentence."""
    given = ctx.input
    try:
        if given.distribution is not None:
            return given.distribution, copy_distribution(given.distribution, root)
        name = find_artifact(given.archive, ctx.task_id).name
        with ctx.open_artifact(given.archive) as content:
            unpack(content, root)
    except NotFound as error:
        raise Fail(
            "archive_refused", f"input.archive: there is no upload {given.archive}"
        ) from error
    except Refused as error:
        field = "archive" if given.distribution is None else "distribution"
        raise Fail(f"{field}_refused", f"input.{field}: {error}.") from error
    return name_after(name), clean_text(name, 100)


def _choose_tests(ctx: Context) -> tuple[str, str]:
    """How to run the tests, and why it is not as it was asked for."""
    if ctx.input.archive is not None and not may_run_code(ctx.submitted_by):
        return "compile", texts.NOT_RUN
    return ctx.input.tests, ""


def _search_on(ctx: Context, changed: list[str], original: Path, before: TestRun) -> Any:
    """One trial of the search for what breaks the tests."""
    search = Search.from_json(ctx.progress["search"])
    undone = [path for number, path in enumerate(changed) if number not in set(search.trial)]
    run = run_tests(before.kind, ctx.workspace, originals=original, undone=undone, tick=ctx.check)
    problem = compare_runs(before, run)
    ctx.log.info("with %d of %d files: %s", len(search.trial), len(changed), problem or "passed")
    search.record(not problem)
    failure = ctx.progress["failure"]
    if problem:
        failure = {"problem": problem, "tail": clean_text(run.tail, MAX_TAIL)}
    return _next_trial(ctx, changed, search, failure)


def _next_trial(ctx: Context, changed: list[str], search: Search, failure: dict[str, str]) -> Any:
    """The search goes on in the next unit, or is over and names the guilty."""
    ctx.report(len(search.good) + len(search.guilty), len(changed), "looking for what breaks tests")
    if not search.done:
        return Again({"search": search.to_json(), "failure": failure}, after=ctx.input.pause)
    guilty = [show_path(changed[number]) for number in sorted(search.guilty)]
    feedback = {"files": guilty, "why": failure["problem"], "output": failure["tail"]}
    return Repair(to="edit", feedback=feedback, search=None, failure=None)


def _repair(paths: Iterable[str], why: str, run: TestRun) -> Repair:
    files = [show_path(path) for path in paths]
    output = clean_text(run.tail, MAX_TAIL)
    return Repair(to="edit", feedback={"files": files, "why": why, "output": output})


def _read_feedback(feedback: Any, shown: list[str]) -> dict[str, str]:
    """The files to leave alone, each with the reason: found guilty, or named in a comment."""
    if not isinstance(feedback, dict):
        return {}
    if feedback.get("files"):
        why = f"with its fixes {feedback['why']}"
        return {path: why for path in feedback["files"] if path in shown}
    comment = str(feedback.get("comment") or "")
    return {
        path: f"named by {feedback.get('by') or 'a person'}"
        for path in texts.find_named_files(comment, shown)
    }


def _describe_proposal(ctx: Context, original: Path) -> texts.Proposal:
    progress = ctx.progress
    before = _read_baseline(ctx)
    after = dataclasses.replace(before, **progress["tests_after"])
    return texts.Proposal(
        label=progress["label"],
        rules=ctx.input.rules,
        target=ctx.input.target,
        diffs=[
            diff_file(original, ctx.workspace, path)
            for path in list_changes(original, ctx.workspace)
        ],
        left_alone=progress["left_alone"],
        before=before,
        after=after,
        rounds=ctx.round,
        note=progress["tests_note"],
    )


def _describe_run(run: TestRun) -> dict[str, Any]:
    return {name: getattr(run, name) for name in ("ran", "skipped", "compiled", "held", "seconds")}


def _read_baseline(ctx: Context) -> TestRun:
    with ctx.open_artifact(BASELINE) as content:
        return TestRun(**json.load(content))


def _read_plan(ctx: Context) -> Plan:
    with ctx.open_artifact(PLAN) as content:
        return Plan(**json.load(content))


def _go_on(ctx: Context, data: dict[str, Any]) -> Any:
    """On to the next step, after the pause that was asked for."""
    return Sleep(ctx.input.pause, data=data) if ctx.input.pause else data
