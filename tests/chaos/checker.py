"""What must be true of a ledger, whatever befell its workers: rules over what was read afterwards.

The ledger is judged against witnesses outside of it: the sink of attempts, the money stub, the
client's journal, and the seed's plans.
"""

from __future__ import annotations

import dataclasses
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from typing import Any

from tests.chaos.journal import Line
from tests.chaos.plans import Plan

LOST, DOUBLED, STUCK, BROKEN = "lost", "doubled", "stuck", "broken"

FINISHED = {"completed", "failed", "dead", "cancelled"}
ENDS = {"attempt_failed", "released", "reclaimed"}
"""Events that end an attempt; an output is the fourth way."""
PLANNED = {"Planned", "Fail"}
"""Error types of failed attempts that a plan asks for. Any other charged somebody for a fault."""

type Row = dict[str, Any]


@dataclasses.dataclass(frozen=True)
class Violation:
    """A broken rule, with what proves it."""

    sort: str
    rule: str
    task: str
    evidence: Any

    def __str__(self) -> str:
        return f"{self.sort}: {self.rule}, task {self.task}: {self.evidence}"


@dataclasses.dataclass
class History:
    """Everything about one task, from inside and outside."""

    task: Row
    plan: Plan | None = None
    outputs: list[Row] = dataclasses.field(default_factory=list)
    events: list[Row] = dataclasses.field(default_factory=list)
    spends: list[Row] = dataclasses.field(default_factory=list)
    artifacts: list[Row] = dataclasses.field(default_factory=list)
    sink: list[Line] = dataclasses.field(default_factory=list)
    stub: list[Line] = dataclasses.field(default_factory=list)
    seen_finished: list[str] = dataclasses.field(default_factory=list)
    """The statuses in which the client saw it finished."""

    def live(self) -> list[Row]:
        """The outputs that count."""
        return [row for row in self.outputs if row["superseded_in_round"] is None]

    def lines(self, what: str) -> list[Line]:
        """The sink's lines of one kind."""
        return [line for line in self.sink if line["what"] == what]


type Found = Iterator[tuple[str, Any]]
"""(which sort of violation, evidence)"""

RULES: dict[str, Callable[[History], Found]] = {}


def name_rule(text: str) -> Callable[[Callable[[History], Found]], Callable[[History], Found]]:
    """Register a rule under the sentence that says it."""

    def add(rule: Callable[[History], Found]) -> Callable[[History], Found]:
        RULES[text] = rule
        return rule

    return add


def judge(histories: list[History]) -> list[Violation]:
    """Every violation of every rule about single tasks."""
    return [
        Violation(sort, text, str(history.task["id"]), evidence)
        for history in histories
        for text, rule in RULES.items()
        for sort, evidence in rule(history)
    ]


@name_rule("every task comes to an end")
def check_end(h: History) -> Found:
    if h.task["status"] not in FINISHED:
        yield STUCK, [h.task[k] for k in ("status", "status_reason", "step_name", "lease_owner")]


@name_rule("a task ends in a status that its plan allows")
def check_status(h: History) -> Found:
    if h.task["status"] in FINISHED and h.plan and h.task["status"] not in h.plan.statuses:
        yield LOST, (h.task["status"], h.task["status_reason"], h.task["error"], h.plan.statuses)


@name_rule("a unit is accepted at most once")
def check_once(h: History) -> Found:
    keys = {
        "live": [(o["step_index"], o["turn"]) for o in h.live()],
        "round": [(o["step_index"], o["turn"], o["round"]) for o in h.outputs],
        "fence": [o["fence"] for o in h.outputs],
    }
    for what, found in keys.items():
        for key, count in Counter(found).items():
            if count > 1:
                yield DOUBLED, (what, key, [o["seq"] for o in h.outputs])


@name_rule("every unit of a completed task has its output")
def check_units(h: History) -> Found:
    if h.task["status"] == "completed" and h.plan:
        found = {(o["step_name"], o["turn"]) for o in h.live()}
        if found != set(h.plan.units):
            yield LOST, {"missing": set(h.plan.units) - found, "more": found - set(h.plan.units)}


@name_rule("an output's attempt was seen to come to its end")
def check_effect(h: History) -> Found:
    seen = {(n["step"], n["turn"], n["fence"], n["owner"]) for n in h.lines("end")}
    for o in h.outputs:
        if (o["step_name"], o["turn"], o["fence"], o["worker"]) not in seen:
            yield BROKEN, ("an output without its attempt", o["seq"], o["step_name"], o["fence"])


@name_rule("what a later unit saw accepted is there for good")
def check_witness(h: History) -> Found:
    stored = {(f"{o['step_name']}:{o['turn']}:{o['round']}", o["fence"]) for o in h.outputs}
    for line in h.lines("begin"):
        gone = set(line["seen"].items()) - stored
        if gone:
            yield LOST, (sorted(gone), "seen under fence", line["fence"])


@name_rule("an attempt begins once and ends once")
def check_attempts(h: History) -> Found:
    begun = Counter(line["fence"] for line in h.lines("begin"))
    ended = Counter(
        [o["fence"] for o in h.outputs] + [e["fence"] for e in h.events if e["kind"] in ENDS]
    )
    for what, counts in (("begun", begun), ("ended", ended)):
        for fence, count in counts.items():
            if count > 1:
                yield DOUBLED, (what, count, "fence", fence)


@name_rule("the fence rises")
def check_fences(h: History) -> Found:
    rows = [(o["seq"], o["fence"], "output") for o in h.outputs]
    # A refused write is on record under the fence that it was refused for.
    rows += [
        (e["seq"], e["fence"], e["kind"]) for e in h.events if e["kind"] != "stale_write_refused"
    ]
    last: tuple[int, int, str] = (0, 0, "")
    for row in sorted(rows):
        if row[1] < last[1] or row[1] > h.task["fence"]:
            yield BROKEN, (last, row, h.task["fence"])
        last = row


@name_rule("what is finished stays finished")
def check_finished(h: History) -> Found:
    """`failed` and `dead` are left by a person only, `completed` and `cancelled` by nobody."""
    record = [(o["seq"], "output", o["worker"]) for o in h.outputs]
    record += [(e["seq"], e["kind"], e["actor"]) for e in h.events]
    end = ""
    for seq, kind, actor in sorted(r for r in record if r[1] != "stale_write_refused"):
        if end in {"completed", "cancelled"} or (end and not actor.startswith("user:")):
            yield BROKEN, ("after it was", end, "came", (seq, kind, actor))
        end = kind if kind in FINISHED else ""
    if end != (h.task["status"] if h.task["status"] in FINISHED else ""):
        yield BROKEN, (h.task["status"], "on record:", end)
    for seen in set(h.seen_finished) - {h.task["status"]}:
        if seen not in {"failed", "dead"} or not any(e["kind"] == seen for e in h.events):
            yield BROKEN, ("the client saw it", seen, "now", h.task["status"])


@name_rule("no lease outside running")
def check_lease(h: History) -> Found:
    leased = h.task["lease_until"] is not None or h.task["lease_owner"] != ""
    if leased != (h.task["status"] == "running"):
        yield BROKEN, (h.task["status"], h.task["lease_owner"], h.task["lease_until"])


@name_rule("the record has no gap")
def check_seqs(h: History) -> Found:
    seqs = sorted([o["seq"] for o in h.outputs] + [e["seq"] for e in h.events])
    if seqs != list(range(1, h.task["event_seq"] + 1)):
        yield LOST, (seqs, h.task["event_seq"])
    if h.task["used_units"] != len(h.outputs):
        yield BROKEN, ("used_units", h.task["used_units"], "outputs", len(h.outputs))


@name_rule("nobody is charged for a fault")
def check_charges(h: History) -> Found:
    for e in h.events:
        if e["kind"] == "attempt_failed" and e["data"]["error"]["type"] not in PLANNED:
            yield BROKEN, (e["seq"], e["step"], e["data"]["error"])


@name_rule("money is recorded once, all of it")
def check_money(h: History) -> Found:
    charged = {n["key"]: n for n in h.stub if n["what"] == "charge"}
    told = {n["key"] for n in h.stub if n["what"] == "recorded"}
    stored = {s["key"]: s for s in h.spends}
    if len(stored) != len(h.spends):
        yield DOUBLED, sorted(s["key"] for s in h.spends)
    whole = {line["fence"] for line in h.sink if line["what"] in {"end", "raise"}}
    for key, charge in charged.items():
        row = stored.get(key)
        # Not told is excused if the attempt's process died between the two.
        if row is None and (key in told or charge["fence"] in whole):
            yield LOST, ("not recorded", charge)
        elif row and (row["tokens_in"], row["cost"]) != (charge["tokens"], nano(charge["cost"])):
            yield BROKEN, ("another amount", row, charge)
    if more := stored.keys() - charged.keys():
        yield DOUBLED, ("never charged", sorted(more))
    used = (h.task["used_tokens_in"], h.task["used_cost"])
    total = (sum(s["tokens_in"] for s in h.spends), sum(s["cost"] for s in h.spends))
    if used != total:
        yield BROKEN, ("used", used, "the sum of its amounts", total)


@name_rule("an artifact is the accepted attempt's, byte for byte")
def check_artifacts(h: History) -> Found:
    made = {n["fence"]: n for n in h.lines("made")}
    accepted = {(o["step_index"], o["turn"], o["round"]): o["fence"] for o in h.outputs}
    for a in h.artifacts:
        if a["found_digest"] != a["blob_id"]:
            yield LOST, (a["name"], a["blob_id"], "in the store:", a["found_digest"])
        place = (a["step_index"], a["turn"], a["round"])
        if place in accepted and a["fence"] != accepted[place]:
            yield BROKEN, (a["name"], "of fence", a["fence"], "accepted", accepted[place])
    if h.task["status"] == "completed" and h.task["workflow"] == "chaos_making":
        live = {o["fence"] for o in h.live() if o["step_name"] == "make"}
        names = {a["name"] for a in h.artifacts if a["fence"] in live}
        if not {"one.bin", "two.bin"} <= names or not live <= made.keys():
            yield LOST, (sorted(names), sorted(live))


def nano(cost: str) -> int:
    """A decimal below one with nine places, in nano-units."""
    return int(cost.removeprefix("0."))


def judge_keys(client: list[Line], tasks: list[Row]) -> list[Violation]:
    """No submitted key is lost or doubled: each was answered, always with the same one task."""
    given: dict[int, set[str]] = defaultdict(set)
    for line in client:
        if line["what"] == "want":
            given[line["number"]]
        elif line["what"] == "got":
            given[line["number"]].add(line["task"])
    by_key = Counter(task["idempotency_key"] for task in tasks)
    ids = {str(task["id"]): task["idempotency_key"] for task in tasks}
    rule, found = "a submitted key is one task", []
    for number, answers in given.items():
        key = f"plan-{number}"
        if by_key[key] > 1 or len(answers) > 1:
            found.append(Violation(DOUBLED, rule, key, sorted(answers)))
        elif by_key[key] == 0 or not answers or {ids.get(a) for a in answers} != {key}:
            found.append(Violation(LOST, rule, key, (by_key[key], sorted(answers))))
    strangers = by_key.keys() - {f"plan-{number}" for number in given}
    if strangers:
        found.append(Violation(DOUBLED, rule, "-", sorted(map(str, strangers))))
    return found
