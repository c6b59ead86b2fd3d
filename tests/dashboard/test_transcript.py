"""The transcript of an agent: every part of it, safely, within bounds, for who may see it."""

from __future__ import annotations

import html
import json
import re
from collections.abc import Callable
from typing import Any

import pytest
from django.contrib.auth import get_user_model
from django.test import Client
from django.urls import reverse

from dashboard.transcript import FRAME
from ledger import artifacts, registry, sql, transcripts
from ledger.models import Artifact, Reach, StepOutput, Task
from ledger.sql import Claimed
from ledger.transitions.effects import begin_effect, finish_effect
from ledger.transitions.steering import take_messages
from ledger.workflows import Workflow
from tests.dashboard.conftest import PART
from tests.factories import LEASE, ask, claim, make_unit, submit

pytestmark = pytest.mark.both_databases

EVIL = "<script>alert(1)</script> \u202efdp.exe ![x](http://far.example/x.png)"


def say(*parts: dict[str, Any], kind: str = "response") -> dict[str, Any]:
    return {"kind": kind, "parts": list(parts)}


def call(name: str, args: Any, key: str) -> dict[str, Any]:
    return {"part_kind": "tool-call", "tool_name": name, "args": args, "tool_call_id": key}


def give(name: str, content: Any, key: str, outcome: str = "success") -> dict[str, Any]:
    return {"part_kind": "tool-return", "tool_name": name, "content": content,
            "tool_call_id": key, "outcome": outcome}  # fmt: skip


def store_turn(held: Claimed, flow: Workflow, turn: int, *messages: Any, **more: Any) -> Claimed:
    """A unit that an agent left; the task goes on at the same step."""
    kept = {"session": 0, "began": 0, "messages": list(messages), "calls": [], "open": [],
            "spent": {"tokens_in": 100, "tokens_out": 20, "cost": "0.5"}, **more}  # fmt: skip
    data = artifacts.fit_values(held, {"transcript": kept}, 65_536)
    unit = make_unit(
        held, flow, output=json.dumps(data), progress=json.dumps(data), next_index=0, next_name="a",
        next_turn=turn + 1, tokens=120, cost=5 * 10**8,
    )  # fmt: skip
    settled = sql.checkpoint_unit(held, unit, lease_seconds=LEASE, groups=None)
    assert settled is not None
    return sql.read_task(Task.objects.get(pk=held.task_id))


def read(client: Client, task: Task, **query: Any) -> str:
    """The page as people read it."""
    answer = client.get(reverse("dashboard:transcript", args=[task.pk]), query)
    assert answer.status_code == 200
    body = answer.content.decode().partition('id="task-transcript"')[2]
    return " ".join(html.unescape(re.sub(r"<[^>]+>", " ", body)).split())


def test_every_part_is_told_and_nothing_of_it_is_run(operator: Client, three: Workflow) -> None:
    task = submit(three)
    picture = {"kind": "binary", "media_type": "image/png", "data": "QUJD" * 100}
    store_turn(
        claim(three), three, 0,
        say({"part_kind": "user-prompt", "content": ["Find tea.", picture]}, kind="request"),
        say({"part_kind": "thinking", "content": EVIL}, {"part_kind": "thinking", "content": ""},
            {"part_kind": "text", "content": f"**Looking** {EVIL}"},
            call("look", '{"what": "tea"}', "c1"), call("look", '{"wh', "c2"),
            {"part_kind": "of tomorrow", "content": {"x": 1}}),
        say(give("look", {"found": picture, "at": EVIL}, "c1"),
            give("look", "no such thing", "c2", "retried"),
            {"part_kind": "retry-feedback", "content": "say more"}, kind="request"),
        "no message", say("no part"), calls=[{"id": "c1", "decision": "allow"}],
        compaction="of an older version", whatever={"x": "of tomorrow"},
    )  # fmt: skip
    page = operator.get(reverse("dashboard:transcript", args=[task.pk])).content.decode()
    assert "<script>alert" not in page
    assert 'far.example/x.png"' not in page
    assert "\u202e" not in page
    assert "QUJD" not in page
    assert "<strong>Looking</strong>" in page
    text = read(operator, task)
    for told in ("Find tea. [image/png, 300 bytes]", "Thinking", "keeps it to itself",
                 "[U+202E]fdp.exe", 'look {"what": "tea"}', 'look {"wh', "Refused by the tool",
                 "no such thing", "of tomorrow", "say more", "no part", "whatever",
                 "100 tokens in, 20 out, $0.50; so far 120 tokens, $0.50"):  # fmt: skip
        assert told in text, told


def test_five_hundred_turns_are_read_page_by_page_and_long_ones_in_part(
    operator: Client,
    three: Workflow,
    django_assert_max_num_queries: Any,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    task = submit(three)
    held = claim(three)
    for turn in range(45):
        size = 100_000 if turn > 25 else 10
        content = f"turn {turn} says " + "w" * size
        held = store_turn(held, three, turn, say({"part_kind": "text", "content": content}))
    seen: list[int] = []
    query: dict[str, Any] = {}
    while True:
        with django_assert_max_num_queries(12):
            answer = operator.get(reverse("dashboard:transcript", args=[task.pk]), query)
        page = answer.content.decode()
        assert len(page) < 250_000
        seen += [int(n) for n in re.findall(r"turn (\d+) says", page)]
        found = re.search(r'\?before=(\d+)">Earlier turns', page)
        if not found:
            break
        query = {"before": found[1]}
    assert seen == list(range(45))[::-1]
    panel = operator.get(
        reverse("dashboard:transcript", args=[task.pk]), {"panel": 1}, headers=PART
    ).content.decode()
    assert [int(n) for n in re.findall(r"turn (\d+) says", panel)] == [44, 43, 42, 41, 40]
    assert "more characters, in" in panel
    first, last = (operator.get(f"/api/v1/tasks/{task.pk}/transcript", q).json() for q in (
        {"limit": 1}, {"limit": 50}))  # fmt: skip
    assert [one["turn"] for one in first["items"]] == [0]
    assert [one["turn"] for one in last["items"]] == list(range(45))
    assert last["items"][44]["messages"][0]["parts"][0]["content"].startswith("turn 44")
    assert last["items"][44]["total"] == {"tokens": 45 * 120, "cost": "22.50"}
    monkeypatch.setattr(transcripts, "MAX_ANSWER", 250_000)
    path = f"/api/v1/tasks/{task.pk}/transcript"
    items = operator.get(path, {"limit": 50}).json()["items"]
    assert [one["turn"] for one in items if not one["messages"]] == list(range(28, 45))
    kept = Artifact.objects.get(pk=items[44]["more"]["artifact"])
    assert kept.task_id == task.pk


def test_a_page_that_follows_adds_up_what_is_new_only(operator: Client, three: Workflow) -> None:
    task = submit(three)
    held = claim(three)
    for turn in range(9):
        held = store_turn(held, three, turn, say({"part_kind": "text", "content": f"turn {turn}"}))
        if turn < 6:
            continue
        spent = f"so far {(turn + 1) * 120:,} tokens, ${(turn + 1) / 2:.2f}"
        assert spent in read(operator, task, panel=1)
        # No output is ever changed: were this one read again, the next sum would tell.
        task.outputs.filter(turn=turn - 6).update(cost=0)
    assert "so far 120 tokens, $0.00" in read(operator, task)


def test_who_decided_of_a_call_stands_beside_it(operator: Client, three: Workflow) -> None:
    task = submit(three)
    ann = get_user_model().objects.create_user("ann")
    held = store_turn(
        claim(three), three, 0, say(call("pay", {"amount": 500}, "c1"), call("drop", {}, "c2")),
        say(give("drop", "not allowed", "c2", "denied"), kind="request"),
        calls=[{"id": "c1", "decision": "ask"}, {"id": "c2", "decision": "deny", "reason": "no!"}],
        open=[{"id": "c1", "tool": "pay"}],
    )  # fmt: skip
    asked = ask(held, three, payload={"call": "c1"}, proposal={"amount": 500})
    text = read(operator, task)
    assert 'pay {"amount": 500} Waits for an answer' in text
    assert "drop Denied by a rule no! Denied" in text
    type(asked).objects.filter(pk=asked.pk).update(
        status="approved", decision="approve", decided_by=f"user:{ann.pk}",
        values={"amount": 300}, comment="less", decided_at=asked.requested_at,
    )  # fmt: skip
    text = read(operator, task)
    assert "Approved by ann, with other arguments: less" in text
    assert '"amount": 300' in text


def test_a_call_leads_to_its_child_task_where_one_sees_it(
    operator: Client, three: Workflow, sign_in: Callable[..., Client]
) -> None:
    task, near = submit(three, priority=100), submit(three)
    far = submit(three)
    Task.objects.filter(pk=far.pk).update(lane="far")
    held = store_turn(
        claim(three), three, 0, say(call("errand", {}, "c1"), call("errand", {}, "c2")),
        open=[{"id": "c1", "child": {"workflow": "errand"}}, {"id": "c2", "child": {}}],
    )  # fmt: skip
    assert read(operator, task).count("Waits for its child task") == 2
    children = [
        {"id": key, "tool": "errand", "task": str(one.pk), "workflow": "errand", "status": status}
        for key, one, status in (("c1", near, "completed"), ("c2", far, "dead"))
    ] + [{"id": "c3", "task": "no id", "status": ["?"]}]
    store_turn(
        held, three, 1, say(give("errand", "done", "c1"), give("errand", "not", "c2", "failed"),
                            give("errand", "not", "c3"), kind="request"), children=children,
    )  # fmt: skip
    text = read(operator, task)
    assert "Waits for its child" not in text
    for told in ("(errand): Completed", "(errand): Gave up"):
        assert text.count(told) == 2, told  # at the call, and at its result
    dora = sign_in("operator", "dora")
    Reach.objects.create(user=get_user_model().objects.get(username="dora"), lanes=[task.lane])
    for client, links in ((operator, 2), (dora, 0)):
        page = client.get(reverse("dashboard:transcript", args=[task.pk])).content.decode()
        place = "/tasks/{}/"
        assert page.count(f'href="{place.format(near.pk)}"') == 2
        assert page.count(f'href="{place.format(far.pk)}"') == links
        listed = client.get(f"/api/v1/tasks/{task.pk}/transcript").json()["items"][1]["children"]
        assert [one["task"] for one in listed] == [
            str(near.pk), str(far.pk) if links else None, None
        ]  # fmt: skip


def test_a_compaction_is_a_line_that_leads_to_the_turns(operator: Client, three: Workflow) -> None:
    task = submit(three)
    held = claim(three)
    kept = artifacts.save_artifact(held, "a-turns-0-39.json", "{}")
    told = {"turns": [0, 39], "name": kept.name, "artifact": str(kept.pk), "opening": {"x": "OPEN"}}
    held = store_turn(held, three, 0, compaction={"by": "model", "text": f"So {EVIL}", **told})
    text = read(operator, task)
    assert "Turns 0\u201339 are summarised: a-turns-0-39.json" in text
    assert "OPEN" not in text
    page = operator.get(reverse("dashboard:transcript", args=[task.pk])).content.decode()
    assert f'href="{reverse("dashboard:artifact-view", args=[kept.pk])}"' in page
    assert "<script>alert" not in page
    listed = operator.get(f"/api/v1/tasks/{task.pk}/transcript").json()["items"][0]["compaction"]
    assert listed["turns"] == [0, 39]
    assert "opening" not in listed
    store_turn(held, three, 1, compaction={"by": "handoff", "turns": "?", "artifact": "?"})
    assert "Older turns are no longer sent: artifact" in read(operator, task)


def test_superseded_turns_are_marked_and_sessions_lead_to_their_handoff(
    operator: Client, three: Workflow
) -> None:
    task = submit(three)
    held = store_turn(claim(three), three, 0, say({"part_kind": "text", "content": "old"}))
    StepOutput.objects.update(superseded_in_round=1)
    store_turn(held, three, 1, say({"part_kind": "text", "content": "new"}), session=1, began=1)
    text = read(operator, task)
    assert text.index("new") < text.index("superseded in round 1") < text.index("old")
    assert "session 2 begins" in text
    path = f"/api/v1/tasks/{task.pk}/transcript"
    assert len(operator.get(path).json()["items"]) == 1
    assert len(operator.get(path, {"all": 1}).json()["items"]) == 2


def test_what_the_agent_does_now_is_followed_until_it_is_done(
    operator: Client, three: Workflow
) -> None:
    task = submit(three)
    held = claim(three)
    assert "No turn is stored" in read(operator, task)
    begin_effect(held, "agent.model", None)
    assert "Asks the model, begun" in read(operator, task)
    finish_effect(held, "agent.model", {})
    begin_effect(held, "tool.look_up.c1", {"tool": "look_up", "args": {}})
    place = reverse("dashboard:transcript", args=[task.pk])
    answer = operator.get(place, {"panel": 1}, headers=PART)
    assert 'Runs <b class="mono">look_up</b>' in answer.content.decode()
    tagged = PART | {"HX-PTag": answer["HX-PTag"]}
    assert operator.get(place, {"panel": 1}, headers=tagged).status_code == 304
    finish_effect(held, "tool.look_up.c1", {})
    answer = operator.get(place, {"panel": 1}, headers=tagged)
    assert "Works on a, turn 0" in answer.content.decode()


def test_the_panel_stands_on_pages_of_tasks_with_an_agent_only(
    operator: Client, three: Workflow, sign_in: Callable[..., Client]
) -> None:
    plain = submit(three)
    assert "transcript-h" not in operator.get(
        reverse("dashboard:task", args=[plain.pk])
    ).content.decode()  # fmt: skip
    task = submit(three, priority=100)
    store_turn(claim(three), three, 0)
    place = reverse("dashboard:task", args=[task.pk])
    assert "transcript-h" in operator.get(place).content.decode()
    dora = sign_in("operator", "dora")
    Reach.objects.create(user=get_user_model().objects.get(username="dora"), payload=False)
    assert "transcript-h" not in dora.get(place).content.decode()
    for path in (f"{place}transcript/", f"/api/v1/tasks/{task.pk}/transcript"):
        assert dora.get(path).status_code == 403
    three.steps[0].fn.__dict__[registry.AGENT] = True
    assert "transcript-h" in operator.get(
        reverse("dashboard:task", args=[plain.pk])
    ).content.decode()  # fmt: skip


def test_what_people_say_stands_above_the_turns_until_it_is_told(
    operator: Client, three: Workflow, sign_in: Callable[..., Client], monkeypatch: Any
) -> None:
    monkeypatch.setattr(three.steps[0].fn, registry.AGENT, True, raising=False)
    task = submit(three)
    place = reverse("dashboard:act", args=[task.pk, "steer"])
    back = reverse("dashboard:transcript", args=[task.pk])
    given = {"text": f"go left {EVIL}", "revision": 0, "seen": "x", "token": "t", "back": back}
    assert operator.post(place, given)["Location"] == back
    assert operator.post(place, given).status_code == 302  # the same form twice is one message
    operator.post(place, given | {"text": "no, right", "token": "u"})
    operator.post(f"/api/v1/tasks/{task.pk}/messages", {"text": "third"}, "application/json")
    listed = operator.get(f"/api/v1/tasks/{task.pk}/messages").json()["items"]
    assert [one["text"] for one in listed][:2] == ["third", "no, right"]
    text = read(operator, task)
    assert "operator says Told at the next turn" in text
    assert "[U+202E]fdp.exe" in text
    assert text.index("go left") < text.index("no, right") < text.index("third")
    withdraw = {"message": listed[1]["id"], "revision": 0, "seen": "x", "back": back}
    operator.post(reverse("dashboard:act", args=[task.pk, "withdraw"]), withdraw)
    held = claim(three)
    heard = take_messages(held)
    assert [one["text"] for one in heard] == [given["text"], "third"]
    assert read(operator, task).count("Being told") == 2
    parts = [{"part_kind": "user-prompt", "content": FRAME + one["text"]} for one in heard]
    store_turn(held, three, 0, say(*parts, kind="request"), heard=heard)
    text = read(operator, task)
    assert "Being told" not in text
    assert text.count("operator says") == text.count("third") + 1 == 2
    path = f"/api/v1/tasks/{task.pk}/messages"
    assert [one["state"] for one in operator.get(path).json()["items"]] == [
        "told",
        "withdrawn",
        "told",
    ]
    dora = sign_in("operator", "dora")
    Reach.objects.create(user=get_user_model().objects.get(username="dora"), payload=False)
    assert dora.post(place, given | {"token": "v"}).status_code == 422
    assert dora.post(path, {"text": "x"}, "application/json").status_code == 403
    assert sign_in("viewer").post(place, given).status_code == 403


def test_the_same_call_that_fails_or_brings_the_same_three_times_is_named(
    operator: Client, three: Workflow
) -> None:
    task = submit(three)
    held = claim(three)

    def play(turn: int, what: str, result: str, outcome: str = "success") -> str:
        nonlocal held
        asked = say(call("look", {"what": what}, f"c{turn}"))
        back = say(give("look", result, f"c{turn}", outcome), kind="request")
        held = store_turn(held, three, turn, asked, back)
        return read(operator, task)

    pages = [play(n, "tea", f"no {n}", "retried") for n in range(3)]
    assert ["circles" in page for page in pages] == [False, False, True]
    assert 'look {"what": "tea"} has failed 3 times' in pages[2]
    pages = [play(3 + n, "state", f"{n} of 9 done") for n in range(4)]
    assert not any("circles" in page for page in pages), "what changes may be asked again"
    pages = [play(7 + n, "door", "shut") for n in range(3)]
    assert "brought the same 3 times" in pages[2]


def test_a_change_of_a_file_is_read_line_by_line(operator: Client, three: Workflow) -> None:
    task = submit(three)
    edit = json.dumps({"path": "a/b.py", "old": f"one\n{EVIL}\nthree", "new": "one\ntwo\nthree"})
    store_turn(
        claim(three), three, 0,
        say({"part_kind": "text", "content": "**Mending** it"}, call("edit_file", edit, "c1"),
            call("write_file", '{"path": "new.txt", "text": "a line"}', "c2"),
            call("edit_file", '{"path": "cut', "c3"), call("edit_file", '["no", "names"]', "c4")),
        say(give("edit_file", "done", "c1"), kind="request"),
    )  # fmt: skip
    page = operator.get(reverse("dashboard:transcript", args=[task.pk])).content.decode()
    assert page.count('<table class="diff"') == 2
    assert "<script>alert" not in page
    text = read(operator, task)
    for told in ("a/b.py", "removed", "+ added two", "new.txt", "+ added a line",
                 'edit_file {"path": "cut', '["no", "names"]'):  # fmt: skip
        assert told in text, told
    assert "one\\\\n" not in text


def test_the_last_output_of_an_agent_can_be_read(operator: Client, three: Workflow) -> None:
    task = submit(three)
    args = {"path": "x.py", "old": "a", "new": "b"}
    store_turn(
        claim(three), three, 0,
        say({"part_kind": "text", "content": f"**Mending** it {EVIL}"},
            call("edit_file", json.dumps(args), "c1")),
    )  # fmt: skip
    page = operator.get(reverse("dashboard:task", args=[task.pk])).content.decode()
    panel = page[page.index('id="task-panel"') : page.index('id="panel-stored"')]
    assert "<strong>Mending</strong>" in panel
    assert "<script>alert" not in panel
    assert "edit_file {" in panel
    assert f"{reverse('dashboard:transcript', args=[task.pk])}?before=" in panel
    assert "&quot;part_kind&quot;" not in panel
