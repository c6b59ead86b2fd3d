"""docs/agents.md: its commands take a newcomer from a clean clone to an agent that asks, with a
scripted model in the place of OpenAI's; its code runs as it is printed there."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
from pathlib import Path
from typing import Any

import pytest

from harness_site.workflows.code_task.source import read_example
from ledger import agents
from tests.agents.kit import play_recording
from tests.agents.model_server import ModelServer, Reply, count_answers
from tests.conftest import ROOT
from tests.crash.cluster_kit import wait_for
from tests.pg import find_free_port
from tests.workflows.test_bundles import run_git

PAGE = (ROOT / "docs" / "agents.md").read_text()

BEGIN, _, REST = PAGE.partition("\n## code-task\n")
CODE_TASK = REST.partition("\n## ")[0]


def list_commands(text: str) -> list[str]:
    """Every line of the page's commands."""
    blocks = re.findall(r"```sh\n(.*?)```", text, re.DOTALL)
    return [line for block in blocks for line in block.splitlines()]


COMMANDS = list_commands(BEGIN)


def test_the_code_on_the_page_runs_and_every_name_is_on_it(monkeypatch: Any) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "none")
    scope: dict[str, Any] = {"__name__": "docs_agents"}
    for block in re.finditer(r"^```python\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL):
        line = PAGE.count("\n", 0, block.start(1))
        exec(compile("\n" * line + block[1], "docs/agents.md", "exec"), scope)
    assert scope["shopping"].steps[0].name == "buy"
    rules = agents.rules.Policy(scope["rules"])
    counts = {2: "allow", 20: "ask", 2000: "deny"}
    assert {n: rules.find("order").judge({"count": n}).decision for n in counts} == counts
    words = set(re.findall(r"\w+", PAGE))
    assert set(agents.__all__) <= words
    assert {"session_turns", "patience", "unpriced", "deps", "goal", "verify"} <= words


def copy_tree(target: Path) -> None:
    """What a clone would have of this tree, uncommitted changes included, and its environment."""
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT, capture_output=True, check=True,
    ).stdout  # fmt: skip
    for name in filter(None, listed.decode().split("\0")):
        if (ROOT / name).is_file():
            (target / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, target / name)
    (target / ".venv").symlink_to((ROOT / ".venv").resolve())


def order_tea(body: dict[str, Any]) -> Reply:
    """A model that looks up, orders, and says so."""
    calls = [("look_up", {"article": "tea"}), ("order", {"article": "tea", "count": 2})]
    turn = count_answers(body)
    return Reply(calls=[calls[turn]]) if turn < 2 else Reply("The tea is ordered.")


@pytest.mark.timeout(240)
def test_a_newcomer_has_an_agent_that_asks_in_at_most_eight_commands(tmp_path: Path) -> None:
    assert len(COMMANDS) <= 8
    clone = tmp_path / "longwatch"
    copy_tree(clone)
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("LONGWATCH_", "DJANGO_"))}
    with ModelServer(order_tea) as server:
        where = {
            "OPENAI_BASE_URL": server.url,
            "PORT": str(find_free_port()),
            "PYTHONUNBUFFERED": "1",
        }
        shell = _Shell(clone, kept | where)
        try:
            for command in COMMANDS:
                shell.run(command)
        finally:
            shell.stop()
        assert [count_answers(call.body) for call in server.calls] == [0, 1, 2]
    assert "completed" in shell.said


@pytest.mark.timeout(240)
def test_code_task_plays_its_example_and_mends_a_project_as_the_page_says(tmp_path: Path) -> None:
    *example, export, key, up = list_commands(CODE_TASK)[:7]
    clone, project = tmp_path / "longwatch", tmp_path / "my-project"
    copy_tree(clone)
    project.mkdir()
    for name, text in read_example().files.items():
        (project / name).write_text(text)
    for given in (["init", "-q"], ["add", "-A"], ["commit", "-q", "-m", "one"]):
        run_git(project, *given)
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("LONGWATCH_", "DJANGO_"))}
    with ModelServer(play_recording(read_example())) as server:
        where = {
            "OPENAI_BASE_URL": server.url, "PORT": str(find_free_port()), "PYTHONUNBUFFERED": "1",
        }  # fmt: skip
        shell = _Shell(clone, kept | where)
        try:
            for command in (export, key, up, *example):
                shell.run(command)
            assert all(name in shell.said for name in ("example.patch", "report.md"))
            assert server.calls == [], "the example asks nobody"
            for command in list_commands(CODE_TASK)[7:]:
                shell.run(command)
        finally:
            shell.stop()
        assert len(server.paid) == 9
    assert "completed" in shell.said


class _Shell:
    """Two terminals: what stays in the foreground has the first to itself."""

    def __init__(self, folder: Path, environment: dict[str, str]) -> None:
        self.folder = folder
        self.environment = environment
        self.product: subprocess.Popen[bytes] | None = None
        self.said = ""

    def run(self, command: str) -> None:
        """Run a command as a person would: an answer once there is a question."""
        if match := re.fullmatch(r"export (\w+)=(.*)", command):
            self.environment[match[1]] = match[2]
        elif " up " in command:
            with (self.folder / "up.log").open("wb") as log:
                self.product = subprocess.Popen(
                    command.split(), cwd=self.folder, env=self.environment, stdout=log, stderr=log
                )
        elif match := re.fullmatch(r"(\w+)=\$\((.*)\)", command):
            done = wait_for("the product is up", lambda: self.try_out(match[2]), 90)
            self.environment[match[1]] = done.strip()
        elif " answer " in command:
            wait_for("the agent asks", lambda: self.try_out(command), 90)
        else:
            done = subprocess.run(
                command, shell=True, cwd=self.folder, env=self.environment,
                capture_output=True, text=True, timeout=120, check=False,
            )  # fmt: skip
            self.said = done.stdout + done.stderr
            assert done.returncode == 0, self.said

    def try_out(self, command: str) -> str:
        """What it prints; nothing while it is refused."""
        done = subprocess.run(
            command, shell=True, cwd=self.folder, env=self.environment, capture_output=True,
            text=True, timeout=120, check=False,
        )  # fmt: skip
        return done.stdout if done.returncode == 0 else ""

    def stop(self) -> None:
        """Ctrl-C in the first terminal."""
        if self.product is not None:
            self.product.send_signal(signal.SIGINT)
            self.product.wait(60)
