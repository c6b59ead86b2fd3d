"""A task whose contents went, from every side: pages, routes, actions, its bundle, the figures."""

from __future__ import annotations

import hashlib
import io
import json
import re
import time
import zipfile
from collections import Counter
from typing import Any
from uuid import UUID

import pytest
from django.core.management import CommandError, call_command
from django.test import Client
from django.urls import reverse

from dashboard.actions import ACTIONS
from ledger import clock, forgetting, states, tallies
from ledger.canonical import dump_json
from ledger.collecting import being_alone
from ledger.keeping import REMOVED
from ledger.models import Artifact, Effect, Outbox, StepOutput, Task
from ledger.testing import run
from ledger.tokens import make_token
from ledger.transitions.forks import fork_task
from ledger.workflows import Fail, Workflow, registered
from tests.dashboard.conftest import make_user
from tests.factories import make_in, make_workflow, submit
from tests.test_forgetting import (
    ACTOR,
    CHILD,
    DAY,
    SECRET,
    forget,
    make_rich,
    places,  # noqa: F401
    run_rich,
)

pytestmark = [
    pytest.mark.both_databases,
    pytest.mark.django_db(transaction=True),
    pytest.mark.case(38),
]

LINK = re.compile(r'(?:href|hx-get|src)="(/[^"#]*)')


def thin_rich() -> UUID:
    key = run_rich()
    clock.offset = 31 * DAY
    assert forget() == {forgetting.CONTENTS: 2}
    return key


def read_answer(answer: Any) -> str:
    body = b"".join(answer.streaming_content) if answer.streaming else answer.content
    return str(body.decode(errors="replace"))


def test_every_page_that_a_thinned_task_leads_to_opens_and_tells_no_contents(
    client: Client,
) -> None:
    """Whatever its pages link to, two steps far."""
    key = thin_rich()
    client.force_login(make_user("operator"))
    seen: set[str] = set()
    todo = {reverse("dashboard:task", args=[key])}
    with registered(make_rich(), CHILD):
        for _ in range(3):
            found: set[str] = set()
            for path in sorted(todo - seen):
                answer = client.get(path)
                text = read_answer(answer)
                assert answer.status_code in {200, 204, 302, 404, 410}, (path, text[:300])
                assert (answer.status_code != 404) or "/static/" in path, path
                assert SECRET not in text, path
                seen.add(path)
                found |= {one.replace("&amp;", "&") for one in LINK.findall(text)}
            todo = {one for one in found if str(key) in one or "/artifacts/" in one}
    assert len(seen) > 15, seen


def test_every_route_answers_for_a_thinned_task(client: Client) -> None:
    key = thin_rich()
    _, token = make_token("t", ["read", "operate", "submit", "approve"], created_by="cli:test")
    head = {"Authorization": f"Bearer {token}"}
    schema = client.get("/api/v1/openapi.json", headers=head).json()
    asked = 0
    first = StepOutput.objects.filter(task=key).order_by("seq").values_list("seq", flat=True)[0]
    effect = Effect.objects.get(task=key).pk
    with registered(make_rich(), CHILD):
        for path, methods in schema["paths"].items():
            if "{task_id}" not in path:
                continue
            place = path.replace("{task_id}", str(key)).replace("{seq}", str(first))
            place = re.sub(r"\{effect\w*\}", str(effect), place)
            place = re.sub(r"\{\w+\}", "make", place)
            for method in methods:
                answer = client.generic(
                    method.upper(), place, "{}", content_type="application/json", headers=head
                )
                text = read_answer(answer)
                assert answer.status_code < 500, (method, place, text)
                assert SECRET not in text, (method, place)
                asked += 1
    assert asked > 20, schema["paths"].keys()
    assert Task.objects.exclude(finished_at=None).count() == 2
    assert Task.objects.count() == 2


def test_what_is_pressed_on_a_thinned_tasks_page_is_refused_in_words(client: Client) -> None:
    key = thin_rich()
    client.force_login(make_user("operator"))
    with registered(make_rich(), CHILD):
        for name in ACTIONS:
            row = Task.objects.get(pk=key)
            answer = client.post(
                reverse("dashboard:act", args=[key, name]),
                {"revision": row.revision, "reason": "why", "to_step": "make", "note": "why",
                 "from_step": "make", "seq": 1, "priority": 3, "text": "go on", "units": 99},
            )  # fmt: skip
            assert answer.status_code < 500, (name, answer.content[-500:])
            assert SECRET not in read_answer(answer)
    assert not Task.objects.filter(finished_at=None).exists()


def test_what_stands_in_removed_values_is_the_digest_of_what_a_bundle_held(client: Client) -> None:
    """Who kept a bundle can prove with the ledger that it was so."""
    key = run_rich()
    client.force_login(make_user("operator"))
    held = read_bundle(client, key)
    clock.offset = 31 * DAY
    forget()
    left = read_bundle(client, key)
    task, thin = json.loads(held["task.json"]), json.loads(left["task.json"])
    proven: Counter[str] = Counter()
    for name in ("input", "result"):
        assert thin[name][REMOVED]["sha256"] == digest(task[name]), name
        proven[name] += 1
    for name, column in (("outputs.jsonl", "output"), ("events.jsonl", "data")):
        pairs = zip(held[name].splitlines(), left[name].splitlines(), strict=True)
        for before, after in pairs:
            old, new = json.loads(before)[column], json.loads(after)[column]
            if isinstance(new, dict) and REMOVED in new:
                assert new[REMOVED]["sha256"] == digest(old), (name, before)
                proven[name] += 1
                continue
            for part in old if old != new else ():
                if old[part] != new[part]:
                    sha256 = hashlib.sha256(old[part].encode()).hexdigest()
                    assert sha256 in new[part], (name, part)
                    proven[part] += 1
    wanted = ("input", "result", "outputs.jsonl", "events.jsonl", "log_tail")
    assert min(proven[name] for name in wanted) > 0, proven
    files = [json.loads(line) for line in held["artifacts.jsonl"].splitlines()]
    for row in files:
        assert Artifact.objects.get(pk=row["id"]).proof["sha256"] == row["sha256"]
    assert files


def read_bundle(client: Client, key: UUID) -> dict[str, str]:
    answer: Any = client.get(reverse("dashboard:bundle", args=[key]))
    whole = zipfile.ZipFile(io.BytesIO(b"".join(answer.streaming_content)))
    return {name: whole.read(name).decode() for name in whole.namelist()}


def digest(value: Any) -> str:
    return hashlib.sha256(dump_json(value).encode()).hexdigest()


def test_figures_stay_as_they_were_when_contents_and_then_tasks_go() -> None:
    """What was counted and paid stays counted and paid."""
    run_rich()
    before = tallies.read_totals()
    assert "0.5" in repr(before) or "500000000" in repr(before), before
    for days in (31, 400):
        clock.offset = days * DAY
        while forgetting.forget(ACTOR).numbers:
            pass
        assert tallies.read_totals() == before, days
    assert not Task.objects.exists()


def test_a_dry_run_tells_what_then_happens(settings: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Families and copies over several batches too: who goes first lets others go."""
    monkeypatch.setattr(forgetting, "BATCH", 1)
    settings.LONGWATCH_RETENTION = {
        "rules": [
            {"workflow": ["kept"]},
            {"workflow": ["thin"], "payload_days": 10},
            {"payload_days": 30, "task_days": 365},
        ]
    }
    flows = {name: make_workflow(name) for name in ("plain", "kept", "thin")}
    with registered(*flows.values()):
        for name, flow in flows.items():
            made = make_in(states.COMPLETED, flow)
            copied = fork_task(made.pk, from_step="a", actor=ACTOR)[0]
            again = fork_task(copied.pk, from_step="a", actor=ACTOR)[0]
            mixed = fork_task(made.pk, from_step="a", actor=ACTOR)[0]
            Task.objects.filter(pk=mixed.pk).update(workflow="kept" if name == "plain" else "plain")
            end = {"status": states.CANCELLED, "finished_at": clock.now(), "wall_until": None,
                   "wall_left": 1.0}  # fmt: skip
            Task.objects.filter(pk__in=[copied.pk, again.pk, mixed.pk]).update(**end)
            Task.objects.filter(pk=made.pk).update(finished_at=clock.now(5))
            Task.objects.filter(pk=again.pk).update(finished_at=clock.now(-5))
    for days in (11, 31, 366, 400):
        clock.offset = days * DAY
        for _ in range(4):
            told = forget(dry=True)
            assert forget() == told, days


def test_what_is_due_to_go_but_has_to_stay_loses_its_contents_in_time(settings: Any) -> None:
    """Retention that is begun late finds old tasks due for both; one that another task names can't
    go, but what it worked with does."""
    settings.LONGWATCH_RETENTION = {
        "rules": [{"workflow": ["kept"]}, {"payload_days": 30, "task_days": 365}]
    }
    flow, kept = make_workflow("plain"), make_workflow("kept")
    with registered(flow, kept):
        made = make_in(states.COMPLETED, flow)
        copied = fork_task(made.pk, from_step="a", actor=ACTOR)[0]
        Task.objects.filter(pk=copied.pk).update(
            workflow="kept", status=states.CANCELLED, finished_at=clock.now(), wall_until=None,
            wall_left=1.0,
        )  # fmt: skip
    clock.offset = 400 * DAY
    assert forget(dry=True) == {forgetting.CONTENTS: 1}
    assert forget() == {forgetting.CONTENTS: 1}
    assert Task.objects.get(pk=made.pk).thinned_days == 30
    assert Task.objects.get(pk=copied.pk).thinned_at is None
    assert forget() == {forgetting.NEEDED: 1}, "once is enough"


@pytest.mark.parametrize("rule", [{"payload_days": 7}, {"task_days": 7}])
def test_what_alerts_say_of_an_error_goes_with_the_contents(settings: Any, rule: Any) -> None:
    """They are kept for LONGWATCH_ALERT_DAYS, which may be longer."""
    settings.LONGWATCH_RETENTION = {"rules": [rule]}
    flow = Workflow("boom")

    @flow.step
    def break_down(ctx: Any) -> Any:
        raise Fail("broken", SECRET)

    with registered(flow):
        ended = [run(flow, {}) for _ in range(2)]
    Task.objects.filter(pk=ended[1].id).update(finished_at=clock.now(30 * DAY))
    assert Outbox.objects.filter(kind="failed").count() == 2
    clock.offset = 8 * DAY
    forget()
    told = {row.task: row.data for row in Outbox.objects.filter(kind="failed")}
    assert SECRET not in repr(told[ended[0].id])
    assert told[ended[0].id]["error"]["type"]
    assert SECRET in repr(told[ended[1].id]), "its task has it still"


def test_a_second_retention_gives_way_and_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    with registered(flow := make_workflow("three")):
        submit(flow)
    with being_alone(), pytest.raises(CommandError, match="already"):
        call_command("retention", run=True)


def test_a_clock_that_was_a_day_ahead_makes_nothing_go_twice_or_never() -> None:
    with registered(flow := make_workflow("three")):
        clock.offset = 1 * DAY
        ahead = make_in(states.COMPLETED, flow)
        clock.offset = 0.0
        right = make_in(states.COMPLETED, flow)
        clock.offset = 30.5 * DAY
        assert forget() == {forgetting.CONTENTS: 1}
        thinned = Task.objects.exclude(thinned_at=None).values_list("pk", flat=True)
        assert list(thinned) == [right.pk]
        clock.offset = 0.0
        assert forget() == {}
        clock.offset = 31.5 * DAY
        assert forget() == {forgetting.CONTENTS: 1}
        assert Task.objects.get(pk=ahead.pk).thinned_days == 30


def test_retention_takes_a_tenth_of_the_time_while_workers_store_units(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Half of the time, and two busy workers stored a third fewer."""
    slept: list[float] = []
    monkeypatch.setattr(forgetting.time, "sleep", slept.append)
    monkeypatch.setattr(forgetting, "LOOK_SECONDS", 0.0)
    monkeypatch.setattr(forgetting, "BUSY", 0.0)
    began = time.monotonic()
    pace = forgetting._Pace()
    Task.objects.count()
    pace.rest()
    assert slept[0] <= time.monotonic() - began
    began = time.monotonic()
    with registered(flow := make_workflow("three")):
        make_in(states.COMPLETED, flow)
    worked = time.monotonic() - began
    pace.rest()
    assert slept[1] >= min(5.0, 9 * worked)
