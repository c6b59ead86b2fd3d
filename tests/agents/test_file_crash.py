"""Workers are killed amid an agent's calls on files: what is left is what an undisturbed one
leaves, byte for byte."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from ledger.models import Task
from ledger.testing import run
from ledger.workspaces import read_manifest
from tests.agents.file_flows import building
from tests.agents.kit import tell_parts
from tests.agents.model_server import ModelServer, Reply, count_answers
from tests.crash.cluster_kit import SIGTERM, wait_for
from tests.crash.conftest import StartSite, start_site  # noqa: F401

pytestmark = [pytest.mark.both_databases, pytest.mark.django_db(transaction=True)]

SPARED = () if os.environ.get("LONGWATCH_TEST_PROOF") else ("first", "third")
APPEND = "open('log', 'a').write('x'); print(len(open('log').read()))"
TURNS: list[list[tuple[str, dict[str, Any]]]] = [
    [
        ("write_file", {"path": "a/tea.txt", "text": "tea\n"}),
        ("edit_file", {"path": "a/tea.txt", "old": "tea", "new": "tea tea"}),
        ("strike", {"place": "first"}),
        ("edit_file", {"path": "a/tea.txt", "old": "tea tea", "new": "tea, tea"}),
    ],
    [
        ("run_command", {"argv": ["python", "-c", APPEND]}),
        ("move_file", {"path": "a/tea.txt", "to": "b/tea.txt"}),
        ("strike", {"place": "second"}),
        ("run_command", {"argv": ["python", "-c", APPEND]}),
    ],
    [
        ("strike", {"place": "third"}),
        ("delete_file", {"path": "log"}),
        ("read_file", {"path": "b/tea.txt"}),
        ("strike", {"place": "fourth"}),
    ],
]


def answer(body: dict[str, Any]) -> Reply:
    """The model."""
    turn = count_answers(body)
    return Reply(calls=TURNS[turn]) if turn < len(TURNS) else Reply("built")


@pytest.mark.timeout(120)
def test_files_of_an_agent_whose_workers_are_killed_are_those_of_an_undisturbed_one(
    start_site: StartSite,  # noqa: F811
    tmp_path: Path,
) -> None:
    with (
        ModelServer(answer) as server,
        start_site(
            LONGWATCH_WORKFLOWS="tests.agents.file_flows", LONGWATCH_MAX_RECLAIMS=100,
            LONGWATCH_LEASE_SECONDS=2, LONGWATCH_HEARTBEAT_SECONDS=0.5,
            LONGWATCH_VAR=tmp_path / "var", LONGWATCH_ARTIFACTS=tmp_path / "artifacts",
        ) as cluster,
    ):  # fmt: skip
        for place in SPARED:
            (tmp_path / place).touch()
        task = cluster.submit(building, model=server.url, marks=str(tmp_path))
        finished = Task.objects.filter(pk=task.pk, finished_at__isnull=False)
        wait_for("the agent is done", finished.exists, 100)
        cluster.signal(SIGTERM)
        assert cluster.wait_for_exit() == 0
        assert len(server.calls) == len(TURNS) + 1, "no answer was asked for twice"
        task.refresh_from_db()
        assert (task.status, task.result) == ("completed", {"build": "built"}), task.error
        assert all((tmp_path / place).exists() for place in ("first", "second", "third", "fourth"))
        quiet = run(building, {"model": server.url, "marks": ""})
    assert quiet.status == "completed"
    other = Task.objects.get(pk=quiet.id)
    assert task.workspace == other.workspace, "one manifest, so the same bytes"
    files = {path for path, one in read_manifest(task.workspace).items() if one.kind == "file"}
    assert files == {"b/tea.txt"}
    told, undisturbed = tell_parts(task.pk, "build"), tell_parts(quiet.id, "build")
    assert [one for one in told if "tool-return" in one] == [
        one for one in undisturbed if "tool-return" in one
    ]
    assert "tool-return run_command: [exit code 0]\n2" in told
