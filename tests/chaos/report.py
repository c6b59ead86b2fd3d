"""A run in figures: for the terminal, and as a row of docs/reliability.md."""

from __future__ import annotations

import dataclasses
import statistics
from collections import Counter
from collections.abc import Iterable

from tests.chaos.checker import BROKEN, DOUBLED, LOST, STUCK, History, Violation
from tests.chaos.run import NOBODY, PHASES, Kill, Run


@dataclasses.dataclass(frozen=True)
class Figures:
    """What one run came to."""

    database: str
    seed: int
    seconds: float
    quiet: float
    last: str
    """The workflow of the task that was worked at last, with its failed attempts."""
    kills: int
    phases: dict[str, int]
    targets: dict[str, int]
    hits: int
    """Kills that met a process with a lease."""
    signals: dict[str, int]
    faults: dict[str, int]
    tasks: int
    statuses: dict[str, int]
    units: int
    attempts: int
    reclaims: int
    false_reclaims: int
    """Of processes that were neither killed nor stopped."""
    refused: int
    """Writes of a stale holder that are on record as refused."""
    reruns: list[float]
    """Seconds from a kill of a lease's holder to the next attempt at its task."""
    money: tuple[int, int, int]
    """Nano-units: charged by the stub, on record, of attempts that were cut off in between."""
    exits: dict[str, int]
    left_out: list[str]
    sorts: dict[str, int]
    """Violations by sort."""

    @property
    def hit_share(self) -> float:
        """Of the kills, the share that met a lease."""
        return self.hits / self.kills if self.kills else 0.0


def count_up(run: Run, histories: list[History], violations: list[Violation]) -> Figures:
    """The figures of a run that is over."""
    victims = {pid for kill in run.kills for pid in kill.pids} | run.stopped_pids
    reclaimed = [e for h in histories for e in h.events if e["kind"] == "reclaimed"]
    exits: Counter[str] = sum((c.exits for c in run.fleet.clusters), Counter())
    return Figures(
        database=run.stage.name,
        seed=run.options.seed,
        seconds=run.seconds,
        quiet=run.quiet_took,
        last=name_last(histories),
        kills=len(run.kills),
        phases={phase: sum(k.phase == phase for k in run.kills) for phase in PHASES},
        targets=dict(Counter(k.kind for k in run.kills)),
        hits=sum(k.phase != NOBODY for k in run.kills),
        signals=dict(run.signals),
        faults=dict(run.count_faults()),
        tasks=len(histories),
        statuses=dict(Counter(h.task["status"] for h in histories)),
        units=sum(len(h.outputs) for h in histories),
        attempts=sum(len(h.lines("begin")) for h in histories),
        reclaims=len(reclaimed),
        false_reclaims=sum(
            int(e["data"]["worker"].rsplit(":", 2)[1]) not in victims for e in reclaimed
        ),
        refused=sum(e["kind"] == "stale_write_refused" for h in histories for e in h.events),
        reruns=measure_reruns(run.kills, histories),
        money=sum_money(histories),
        exits=dict(exits),
        left_out=run.stage.left_out,
        sorts=dict(Counter(v.sort for v in violations)),
    )


def name_last(histories: list[History]) -> str:
    """Which task kept the others waiting."""
    begun = [h for h in histories if h.sink]
    if not begun:
        return "none"
    last = max(begun, key=lambda h: float(h.sink[-1]["at"]))
    failures = sum(e["kind"] == "attempt_failed" for e in last.events)
    return f"{last.task['workflow']}, {failures} failed attempts"


def measure_reruns(kills: Iterable[Kill], histories: list[History]) -> list[float]:
    """Of each lease that a kill met: how long until the task's next attempt."""
    begins = {
        str(h.task["id"]): [(line["fence"], line["at"]) for line in h.lines("begin")]
        for h in histories
    }
    found = []
    for kill in kills:
        for task, fence in kill.held:
            later = [at for other, at in begins.get(task, ()) if other > fence and at > kill.at]
            if later:
                found.append(min(later) - kill.at)
    return sorted(found)


def sum_money(histories: list[History]) -> tuple[int, int, int]:
    """Nano-units charged, recorded, and charged to attempts that were cut off before they told."""
    charged = recorded = cut = 0
    for h in histories:
        stored = {s["key"] for s in h.spends}
        recorded += sum(s["cost"] for s in h.spends)
        for line in h.stub:
            if line["what"] == "charge":
                amount = int(line["cost"].removeprefix("0."))
                charged += amount
                cut += amount if line["key"] not in stored else 0
    return charged, recorded, cut


def find_quantile(values: list[float], share: float) -> float:
    """Of sorted values."""
    return values[min(len(values) - 1, int(share * len(values)))] if values else 0.0


def write_lines(f: Figures) -> list[str]:
    """For people at a terminal."""

    def join(counts: dict[str, int]) -> str:
        return ", ".join(f"{name} {n}" for name, n in counts.items() if n) or "none"

    charged, recorded, cut = (f"{amount / 1e9:.9f}" for amount in f.money)
    median = statistics.median(f.reruns) if f.reruns else 0.0
    return [
        f"chaos {f.database}, seed {f.seed}: {f.seconds:.0f} s and {f.quiet:.0f} s to quiet down "
        f"(last: {f.last})",
        f"kills {f.kills}: {join(f.phases)}; {f.hits} met a lease ({f.hit_share:.0%})",
        f"  of: {join(f.targets)}",
        f"signals: {join(f.signals)}",
        f"faults {sum(f.faults.values())}: {join(f.faults)}",
        f"tasks {f.tasks}: {join(f.statuses)}; units {f.units}, attempts {f.attempts}",
        f"reclaims {f.reclaims}, of them {f.false_reclaims} of a worker that lived; "
        f"stale writes refused {f.refused}",
        f"from kill to re-run: p50 {median:.1f} s, p99 {find_quantile(f.reruns, 0.99):.1f} s "
        f"({len(f.reruns)})",
        f"money: charged {charged}, recorded {recorded}, cut off in between {cut}",
        f"exits of main processes: {join(f.exits)}",
        *(f"LEFT OUT: {reason}" for reason in f.left_out),
        f"lost {f.sorts.get(LOST, 0)}, doubled {f.sorts.get(DOUBLED, 0)}, "
        f"stuck {f.sorts.get(STUCK, 0)}, otherwise broken {f.sorts.get(BROKEN, 0)}",
    ]


HEAD = (
    "| date | commit | database | seed | minutes | kills | claimed / step / settling | "
    "met a lease | faults | tasks | units | lost | doubled | stuck | re-run p50 / p99 |"
)


def make_rule(head: str) -> str:
    """The line below a table's head."""
    return "|" + " --- |" * (head.count("|") - 1)


def write_row(f: Figures, date: str, commit: str) -> str:
    """For the table in docs/reliability.md."""
    _, claimed, step, settling = f.phases.values()
    lost, doubled, stuck = (f.sorts.get(sort, 0) for sort in (LOST, DOUBLED, STUCK))
    faults = f"{sum(f.faults.values())}" + "".join(f"; no {name}" for name in f.left_out)
    p50, p99 = find_quantile(f.reruns, 0.5), find_quantile(f.reruns, 0.99)
    cells = [
        date, commit, f.database, f.seed, f"{(f.seconds + f.quiet) / 60:.1f}", f.kills,
        f"{claimed} / {step} / {settling}", f"{f.hit_share:.0%}", faults, f.tasks, f.units,
        lost, doubled, stuck, f"{p50:.1f} / {p99:.1f} s",
    ]  # fmt: skip
    return f"| {' | '.join(map(str, cells))} |"
