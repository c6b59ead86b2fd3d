"""Commands of the settings as evaluators: what they may do, what their end means, what is left."""

from __future__ import annotations

import os
import time
import tracemalloc
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from django.core.exceptions import ImproperlyConfigured

from harness_site import env
from ledger import commands, secrets
from ledger.checks import check_commands
from ledger.evaluators import Command
from ledger.models import StepOutput
from ledger.sandbox import Ended as End
from ledger.testing import Ended, run
from ledger.workflows import registered
from tests.evaluators.conftest import make_flow
from tests.evaluators.isolated_flow import alone
from tests.evaluators.test_evaluating import read_evaluation
from tests.workflows.test_sandbox import list_marked, wait_until

pytestmark = [pytest.mark.both_databases, pytest.mark.django_db]

type AddCheck = Callable[..., None]


def run_once(files: dict[str, str] | None = None, **options: Any) -> Ended:
    return run(make_flow([Command("tests")], [{}], files, max_repairs=0), **options)


def find_messages(ended: Ended) -> list[tuple[str, str]]:
    return [(one["where"], one["message"]) for one in read_evaluation(ended)[0]["findings"]]


def test_it_runs_in_the_workspace_and_its_exit_code_decides(add_check: AddCheck) -> None:
    add_check("tests", "print(open('a.txt').read()); open('made', 'w')")
    ended = run_once({"a.txt": "hello"})
    assert ended.status == "completed"
    assert [one["passed"] for one in read_evaluation(ended)] == [True]
    logs = "".join(StepOutput.objects.values_list("log_tail", flat=True))
    assert "CMD hello" in logs


def test_lines_of_its_output_with_a_file_of_the_workspace_are_findings(add_check: AddCheck) -> None:
    code = (
        "print('a.txt:3: wrong word\\n./a.txt:4:7: and here\\ngone.txt:1: no file')\n"
        "print('/etc/passwd:1: not ours\\n../a.txt:1: neither'); exit(1)"
    )
    add_check("tests", code)
    (first, *located) = find_messages(run_once({"a.txt": "hello"}))
    assert first[1].startswith("exit code 1; its output ends:\na.txt:3: wrong word")
    assert located == [("a.txt:3", "wrong word"), ("a.txt:4", "and here")]


@pytest.mark.parametrize(
    ("code", "means", "status"),
    [
        (0, {}, "pass"),
        (1, {}, "finding"),
        (5, {"passes": [0, 5]}, "pass"),
        (2, {"errors": [2]}, "error"),
        (127, {}, "error"),
        (124, {}, "error"),
        (-11, {}, "error"),
    ],
)
def test_what_an_exit_code_means_is_for_the_settings(
    code: int, means: dict[str, Any], status: str, add_check: AddCheck
) -> None:
    text = (
        f"import os; os.kill(os.getpid(), {-code})" if code < 0 else f"import os; os._exit({code})"
    )
    add_check("tests", text, **means)
    ended = run_once()
    got = {"completed": "pass", "repairs_exhausted": "finding", "retries_exhausted": "error"}
    assert got[ended.reason or ended.status] == status
    if status == "error":
        assert ended.task["error"]["type"] == "EvaluatorFailed"
        assert "exit code" in ended.task["error"]["message"]


def test_a_program_that_is_missing_fails_the_attempt(settings: Any) -> None:
    settings.LONGWATCH_CHECKS = {"tests": {"argv": ["no-such-program"]}}
    error = run_once().task["error"]
    assert error["type"] == "EvaluatorFailed"
    assert "no-such-program is not on" in error["message"]


def test_a_timeout_fails_the_attempt_and_leaves_no_process(add_check: AddCheck) -> None:
    mark = f"mark-{uuid.uuid4().hex}"
    code = (
        "import os, signal, subprocess, sys, time\n"
        "signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
        "for _ in range(2):\n"
        "    subprocess.Popen([sys.executable, '-c', 'import signal, time;'\n"
        "        'signal.signal(15, signal.SIG_IGN); time.sleep(600)', MARK],"
        " start_new_session=True)\n"
        "if not os.fork():\n"
        "    os.setsid()\n"
        "print('begun', flush=True); time.sleep(600)"
    )
    add_check("tests", code.replace("MARK", repr(mark)), timeout=1.5)
    began = time.monotonic()
    error = run_once().task["error"]
    assert error["type"] == "EvaluatorFailed"
    assert "it did not end in 1.5 s; its output ends:\nbegun" in error["message"]
    assert time.monotonic() - began < 30
    assert list_marked(mark) == []


def test_the_deadline_of_the_unit_ends_the_command(add_check: AddCheck) -> None:
    mark = f"mark-{uuid.uuid4().hex}"
    add_check("tests", f"import time; '{mark}'; time.sleep(600)")
    ended = run(make_flow([Command("tests")], [{}], timeout=1.0))
    assert ended.task["error"]["type"] == "UnitTimeout"
    wait_until(lambda: list_marked(mark) == [])


def test_of_a_huge_output_both_ends_are_kept_and_little_memory_is_taken(
    add_check: AddCheck,
) -> None:
    code = (
        "import sys\nprint('the beginning')\nline = 'x' * 9_999 + '\\n'\n"
        "for _ in range(10_000): sys.stdout.write(line)\nprint('the end'); sys.exit(1)"
    )
    add_check("tests", code)
    tracemalloc.start()
    ended = run_once()
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 30_000_000
    text = ended.read_artifact("check-tests.log").decode()
    assert len(text) < 140_000
    assert text.startswith("the beginning\n")
    assert text.endswith("the end\n")
    assert "bytes and two lines left out]" in text
    ((_, message),) = find_messages(ended)
    assert len(message) < 2_000
    assert message.endswith("the end\n(all of it: artifact check-tests.log)")


def test_colours_and_controls_are_taken_out_and_secrets_masked(
    add_check: AddCheck, monkeypatch: Any
) -> None:
    monkeypatch.setenv("LONGWATCH_SECRET_API", "hunter2-0123")
    code = (
        "import os, sys\ntext = '\\x1b[31mh\\x1b[1mun\\x1b[0mter2-0123 é 漢 \\x1b]0;t\\x07\\x07'\n"
        "assert os.environ['API'] == 'hunter2-0123'\n"
        "sys.stdout.buffer.write((text + '\\r\\n').encode() + b'\\xff\\xfe\\n' + b'pad\\n' * 900)\n"
        "print('fill', os.environ['API'] * 20); sys.exit(1)"
    )
    add_check("tests", code, secrets=["API"])
    ended = run_once()
    text = ended.read_artifact("check-tests.log").decode()
    assert text.startswith(f"{secrets.MASK} é 漢 \n\\xff\\xfe\npad\n")
    assert "hunter2" not in text + str(ended.outputs) + str(ended.events)
    assert "\x1b" not in text


def test_no_secret_is_cut_in_two_where_an_output_is_cut() -> None:
    """The middle goes; no half of a secret may stand where it went."""
    secrets.hide_value("hunter2-0123")
    mask = secrets.mask_text
    for head, tail in (
        ("a\nkey hunter2-", "2-0123 is it\nz"),
        ("x" * 9_000 + "hunter2", "0123" * 9),
    ):
        end = End(1, False, tail + "y" * 5_000, [], frozenset(), 1.0, head, 99)
        text = commands.read_output(end, mask)
        assert "hunter2" not in text
        assert "0123" not in text


def test_it_has_an_environment_of_its_own_and_no_input(
    add_check: AddCheck, monkeypatch: Any
) -> None:
    monkeypatch.setenv("LONGWATCH_SECRET_API", "hunter2-0123")
    monkeypatch.setenv("PASSED", "on")
    code = (
        "import os, sys\n"
        "print(sorted(os.environ.keys() - {'LC_CTYPE'}), os.environ['PASSED'], os.environ['SET'])\n"
        "print(repr(sys.stdin.read()), os.getpgrp() != PARENT); sys.exit(1)"
    )
    add_check("tests", code.replace("PARENT", str(os.getpgrp())), env=["PASSED", "SET=a=b", "NOT"])
    ((_, message),) = find_messages(run_once())
    names = "HOME LANG PASSED PATH PYTHONDONTWRITEBYTECODE SET TMPDIR".split()
    assert message.splitlines()[1:] == [f"{names} on a=b", "'' True"]


def test_an_isolated_step_may_evaluate_by_a_command() -> None:
    ended = run(alone)
    assert ended.status == "completed", ended.task["error"]
    assert ended.result["evaluation"][0]["findings"][0]["message"].startswith("exit code 1")


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"tests": {"argv": []}}, "LONGWATCH_CHECKS.tests.argv"),
        ({"tests": {"argv": "make test"}}, "LONGWATCH_CHECKS.tests.argv"),
        ({"tests": {"argv": ["make"], "timout": 3}}, "LONGWATCH_CHECKS.tests.timout"),
        ({"tests": {"argv": ["make"], "timeout": 0}}, "LONGWATCH_CHECKS.tests.timeout"),
        ({"tests": {"argv": ["make"], "memory": "much"}}, "LONGWATCH_CHECKS.tests.memory"),
        ({"tests": ["make"]}, "LONGWATCH_CHECKS.tests"),
        ({"rm -rf": {"argv": ["make"]}}, "can't name a command"),
        (["make"], "takes commands by name"),
    ],
)
def test_settings_that_can_not_be_are_refused_by_name(given: Any, told: str, settings: Any) -> None:
    settings.LONGWATCH_CHECKS = given
    with pytest.raises(ImproperlyConfigured, match=told):
        commands.read_checks()
    (message,) = check_commands()
    assert message.id == "longwatch.E005"
    assert told in message.msg


def test_a_check_of_the_site_names_commands_that_are_lacking(settings: Any) -> None:
    flow = make_flow([Command("tests"), Command("nowhere")], [{}])
    settings.LONGWATCH_CHECKS = {"tests": {"argv": ["no-such-program"]}}
    with registered(flow):
        found = {one.id: one.msg for one in check_commands()}
    assert found.keys() == {"longwatch.W005", "longwatch.W006"}
    assert "'nowhere'" in found["longwatch.W005"]
    assert "no-such-program" in found["longwatch.W006"]
    settings.LONGWATCH_CHECKS = {"tests": {"argv": ["true"]}}
    assert check_commands() == []


def test_the_site_reads_them_from_a_file_of_toml_or_json(tmp_path: Path, monkeypatch: Any) -> None:
    toml, other = tmp_path / "checks.toml", tmp_path / "checks.json"
    toml.write_text('[tests]\nargv = ["make", "test"]\ntimeout = 60\n')
    other.write_text('{"tests": {"argv": ["make", "test"], "timeout": 60}}')
    for file in (toml, other):
        monkeypatch.setenv("LONGWATCH_CHECKS", str(file))
        assert env.read_table("LONGWATCH_CHECKS") == {
            "tests": {"argv": ["make", "test"], "timeout": 60}
        }
    other.write_text("[1")
    for path in (str(other), str(tmp_path / "gone.toml")):
        monkeypatch.setenv("LONGWATCH_CHECKS", path)
        with pytest.raises(ImproperlyConfigured, match=f"LONGWATCH_CHECKS.*{path}"):
            env.read_table("LONGWATCH_CHECKS")
    monkeypatch.delenv("LONGWATCH_CHECKS")
    assert env.read_table("LONGWATCH_CHECKS") == {}
