"""Reads what a run left: the ledger's tables, the store, the sink, the stub, the plans."""

from __future__ import annotations

import hashlib
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from tests.chaos.checker import History, Row
from tests.chaos.journal import Folder, Journal, Line
from tests.chaos.plans import make_plan


def gather(folder: Folder, seed: int, store: Path) -> list[History]:
    """One history for each task in the ledger, oldest first."""
    from ledger.models import Artifact, Event, Spend, StepOutput, Task

    client = folder.client.read_all()
    histories = {
        str(row["id"]): History(row) for row in Task.objects.order_by("created_at", "id").values()
    }
    for line in client:
        if line["what"] == "got" and line["task"] in histories:
            histories[line["task"]].plan = make_plan(seed, line["number"])
        elif line["what"] == "finished" and line["task"] in histories:
            histories[line["task"]].seen_finished.append(line["status"])
    deal(histories, "outputs", StepOutput.objects.order_by("seq").values())
    deal(histories, "events", Event.objects.order_by("seq").values())
    deal(histories, "spends", Spend.objects.order_by("id").values())
    deal(histories, "artifacts", read_artifacts(Artifact.objects.order_by("id").values(), store))
    sink: dict[str, list[Line]] = defaultdict(list)
    for line in folder.sink.read_all():
        sink[line["task"]].append(line)
    for key, history in histories.items():
        history.sink = sink.get(key, [])
        history.stub = Journal(folder.root / "stub" / key).read_all()
    return list(histories.values())


def deal(histories: dict[str, History], field: str, rows: Iterable[dict[str, Any]]) -> None:
    """Give each row to its task's history."""
    for row in rows:
        getattr(histories[str(row["task_id"])], field).append(row)


def read_artifacts(rows: Iterable[Row], store: Path) -> list[Row]:
    """Each row with `found_digest`: what its bytes in the store hash to, "" without bytes."""
    found = []
    digests: dict[str, str] = {}
    for row in rows:
        blob = str(row["blob_id"])
        if blob not in digests:
            file = store / blob[:2] / blob
            digests[blob] = hashlib.sha256(file.read_bytes()).hexdigest() if file.exists() else ""
        found.append({**row, "found_digest": digests[blob]})
    return found
