"""`code-task` end to end in one process, with recorded models: what is taken, what is refused, and
where each answer leads. tests/agents/test_code_task.py kills its workers."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from harness_site.workflows import code_task
from harness_site.workflows.code_task.recorded import Recording, RecordingError, read_recording
from harness_site.workflows.code_task.source import read_example
from ledger import artifacts, bubblewrap, commands
from ledger.errors import InvalidInput
from ledger.events import Actor
from ledger.models import Approval, Artifact
from ledger.testing import run
from ledger.tokens import make_token
from tests.conftest import ROOT
from tests.workflows.test_bundles import run_git
from tests.workflows.test_modernise import check_published, upload

pytestmark = pytest.mark.django_db(transaction=True)

FILES = read_example().files
RIGHT = next(
    call.args for one in read_example().sessions[2].turns for call in one.calls
    if call.tool == "edit_file"
)  # fmt: skip
PLAN = {"calls": [{"tool": "final_result", "args": {"items": ["Mend it", "Say so"]}}]}


def call(tool: str, **args: Any) -> dict[str, Any]:
    return {"tool": tool, "args": args}


def write_file(name: str, text: str) -> dict[str, Any]:
    return {"calls": [call("write_file", path=name, text=text)]}


@pytest.fixture(autouse=True)
def own_places(settings: Any, tmp_path: Path) -> None:
    settings.LONGWATCH_VAR = str(tmp_path / "var")
    settings.LONGWATCH_ARTIFACTS = str(tmp_path / "artifacts")


@pytest.fixture
def record(settings: Any, tmp_path: Path) -> Any:
    """Set a model that plans, and then says these turns in a session of work with the text."""

    def write(sessions: dict[str, list[dict[str, Any]]]) -> None:
        told = [{"when": ["Plan this work."], "turns": [PLAN]}]
        told += [{"when": ["Do this work.", text], "turns": turns}
                 for text, turns in sessions.items()]  # fmt: skip
        (tmp_path / "recording.json").write_text(json.dumps({"sessions": told}))
        settings.LONGWATCH_CODE_MODEL = f"recorded:{tmp_path / 'recording.json'}"

    return write


def fix_tally() -> list[dict[str, Any]]:
    right = FILES["tally.py"].replace(read_old(), RIGHT["new"])
    return [write_file("tally.py", right), {"say": "Mended."}]


def read_old() -> str:
    return "    middle = len(ordered) // 2\n    return ordered[middle]\n"


def test_the_example_plays_without_a_model_and_its_patch_gives_the_archive(tmp_path: Path) -> None:
    ended = run(code_task, {"example": True}, answers={"review": "approve"})
    assert (ended.status, ended.task["error"]) == ("completed", None)
    steps = [name for name, _ in ended.units]
    assert steps == ["unpack", *["plan"] * 3, *["work"] * 3, "verify", *["work"] * 3, "verify",
                     "review", "publish"]  # fmt: skip
    (repair,) = [event["data"] for event in ended.events if event["kind"] == "repaired"]
    assert "IndexError" in repair["feedback"]["findings"][0]["message"]
    for name, text in FILES.items():
        (tmp_path / "original").mkdir(exist_ok=True)
        (tmp_path / "original" / name).write_text(text)
    published = check_published(ended, "example", tmp_path / "original", tmp_path)
    assert sorted(published) == sorted(FILES), "what the check left behind is no part of the work"
    report = ended.read_artifact("report.md").decode()
    assert "2 of 2 items done" in report
    assert "9 requests to `recorded`: 16,700 tokens in, 710 out, 0.00 of money" in report
    question = Approval.objects.get(task=ended.id)
    assert question.payload["files"][0]["path"] == "tally.py"
    assert question.payload["tests"]["before"] == {"result": "exit code 1"}
    assert [one["name"] for one in question.payload["evaluation"]] == ["change", "ruff", "unittest"]
    assert "cut off from the network" in question.body
    assert ended.task["used"]["tokens_in"] == 16_700


def test_sending_back_gives_another_round_with_the_comment(record: Any, tmp_path: Path) -> None:
    record({
        "": fix_tally(),
        "say it in the README": [write_file("README.md", "# tally\n\nNew.\n"), {"say": "Said."}],
    })  # fmt: skip
    said = {"decision": "send_back", "comment": "Please say it in the README."}
    given = {"goal": "Mend tally.", "archive": upload(FILES)}
    ended = run(code_task, given, answers={"review": [said, "approve"]})
    assert (ended.status, ended.result["changed"]) == ("completed", 2)
    first, second = Approval.objects.filter(task=ended.id).order_by("requested_at")
    assert len(first.payload["files"]) == 1
    assert len(second.payload["files"]) == 2
    assert "Said." in ended.read_artifact("report.md").decode()


def test_an_agent_that_never_passes_the_check_gives_up_after_its_repairs(record: Any) -> None:
    record({"": [write_file("tally.py", "import os\n"), {"say": "Done."}]})
    given = {"goal": "Mend tally.", "archive": upload(FILES)}
    ended = run(code_task, given, max_repairs=2)
    assert (ended.status, ended.reason) == ("dead", "repairs_exhausted")
    found = [event["data"]["feedback"]["findings"] for event in ended.events
             if event["kind"] == "repaired"]  # fmt: skip
    assert len(found) == 2
    assert found[0][0]["where"] == "tally.py:1"
    assert "F401" in found[0][0]["message"], "lint is cheaper than the check and ends it"


def test_doing_nothing_is_not_done_though_the_check_passes(record: Any) -> None:
    record({"": [{"say": "All is well."}], "nothing was done": fix_tally()})
    fine = FILES | {"test_tally.py": "import unittest\n\n\nclass A(unittest.TestCase):\n"
                    "    def test_a(self):\n        pass\n"}  # fmt: skip
    ended = run(
        code_task, {"goal": "Mend.", "archive": upload(fine)}, answers={"review": "approve"}
    )
    assert ended.status == "completed"
    assert [name for name, _ in ended.units].count("verify") == 2
    assert "passed before and passes now" in ended.read_artifact("report.md").decode()


def test_a_changed_test_and_an_open_item_are_pointed_out(record: Any) -> None:
    turns = [write_file("test_tally.py", FILES["test_tally.py"] + "\n\nX = 1\n"), *fix_tally()]
    record({"": turns})
    ended = run(code_task, {"goal": "Mend.", "archive": upload(FILES)})
    question = Approval.objects.get(task=ended.id)
    assert "Tests were changed too" in question.body
    assert "(left open) Say so" in question.body
    assert question.risk == "medium"


def test_the_review_says_whether_bubblewrap_held_the_check(record: Any) -> None:
    """Both ways are judged: which one says whether this machine has it."""
    outside = Path.home() / f"made-by-a-check-{os.getpid()}"
    spy = (
        "import contextlib\nimport unittest\n\n\nclass A(unittest.TestCase):\n"
        "    def test_a(self):\n        with contextlib.suppress(OSError):\n"
        f"            open({str(outside)!r}, 'w').close()\n"
    )
    record({"": fix_tally()})
    try:
        given = {"goal": "Mend.", "archive": upload(FILES | {"test_spy.py": spy})}
        body = Approval.objects.get(task=run(code_task, given).id).body
        fault = bubblewrap.find_fault(commands.find_path())
        assert outside.exists() == bool(fault)
    finally:
        outside.unlink(missing_ok=True)
    assert ("bubblewrap held them" in body) == (not fault)
    assert fault.partition(":")[0][1:] in body


def test_a_git_bundle_is_taken_and_a_single_folder_is_the_root(record: Any, tmp_path: Path) -> None:
    root = tmp_path / "repository"
    for name, text in FILES.items():
        (root / "tally-1.0" / "tally-1.0").mkdir(parents=True, exist_ok=True)
        (root / "tally-1.0" / name).write_text(text)
    (root / "tally-1.0" / "tally-1.0" / "notes").write_text("A folder of the same name.")
    run_git(root, "init", "-q", "-b", "main")
    run_git(root, "add", "-A")
    run_git(root, "commit", "-q", "-m", "one")
    run_git(root, "bundle", "create", "../tally.bundle", "main")
    record({"": fix_tally()})
    made = artifacts.store_upload(io.BytesIO((tmp_path / "tally.bundle").read_bytes()), "t.bundle")
    ended = run(
        code_task, {"goal": "Mend.", "archive": str(made.pk)}, answers={"review": "approve"}
    )
    assert ended.task["error"] is None
    assert ended.result["published"] == ["t.patch", "report.md", "t.tar.gz"]
    assert ended.read_artifact("t.patch").startswith(b"diff --git a/tally.py b/tally.py\n")


def test_nobody_is_asked_where_the_operator_allows_it_and_the_submitter_says_so(
    settings: Any, record: Any
) -> None:
    given = {"goal": "Mend.", "archive": upload(FILES), "review": False}
    record({"": fix_tally()})
    with pytest.raises(InvalidInput, match="LONGWATCH_CODE_UNATTENDED=1"):
        run(code_task, given)
    settings.LONGWATCH_CODE_UNATTENDED = True
    ended = run(code_task, given)
    assert ended.status == "completed"
    assert not Approval.objects.exists()
    assert "Nobody was asked" in ended.read_artifact("report.md").decode()


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"goal": " "}, "takes a goal"),
        ({"archive": None}, "either an archive or the example"),
        ({"example": True}, "either an archive or the example"),
        ({"check": "ghost"}, "LONGWATCH_CHECKS has no command 'ghost', but pyflakes, unittest"),
    ],
)
def test_a_misfit_is_refused_at_the_submission(
    settings: Any, change: dict[str, Any], said: str
) -> None:
    settings.LONGWATCH_CODE_MODEL = "openai-chat:gpt-4o-mini"
    settings.LONGWATCH_CHECKS = {"pyflakes": {"argv": ["python", "-m", "pyflakes", "."]}}
    given = {"goal": "Mend.", "archive": upload(FILES)}
    with pytest.raises(InvalidInput, match=said):
        run(code_task, given | change)


def test_without_a_model_or_its_key_it_says_what_to_set(
    settings: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    given = {"goal": "Mend.", "archive": upload(FILES)}
    settings.LONGWATCH_CODE_MODEL = ""
    with pytest.raises(InvalidInput, match="LONGWATCH_CODE_MODEL, such as openai-chat:gpt-4o-mini"):
        run(code_task, given)
    monkeypatch.delenv("LONGWATCH_SECRET_OPENAI_API_KEY", raising=False)
    for name, reason, cure in [
        ("openai-chat:gpt-4o-mini", "no_key", "set LONGWATCH_SECRET_OPENAI_API_KEY"),
        ("ghost:one", "no_model", "LONGWATCH_CODE_MODEL=ghost:one"),
        (f"recorded:{tmp_path / 'none'}", "no_model", "can't be read"),
    ]:
        settings.LONGWATCH_CODE_MODEL = name
        ended = run(code_task, given)
        assert ended.status == "failed"
        assert ended.units == []
        assert reason in str(ended.task["error"])
        assert cure in ended.task["error"]["message"]


def test_a_token_without_the_scope_operate_has_nothing_run(record: Any) -> None:
    record({"": fix_tally()})
    weak, _ = make_token("weak", ["submit"], created_by="cli:test")
    given = {"goal": "Mend.", "archive": upload(FILES)}
    ended = run(code_task, given, actor=Actor("token", str(weak.pk)))
    assert ended.status == "failed"
    assert "lacks the scope operate" in ended.task["error"]["message"]
    assert not Artifact.objects.filter(task=ended.id, name="original.tgz").exists()


BLOCK = """
import importlib.abc, sys

class Lacking(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in {"pydantic_ai", "genai_prices"}:
            raise ModuleNotFoundError(name)

sys.meta_path.insert(0, Lacking())
import importlib.util
found = importlib.util.find_spec
importlib.util.find_spec = lambda name, package=None: (
    None if name == "pydantic_ai" else found(name, package))
import django
django.setup()
from ledger.workflows import load_all, load_errors
load_all()
assert not load_errors, load_errors
from harness_site.workflows import code_task
try:
    code_task.clean_input({"example": True})
except Exception as error:
    print(error)
"""


def test_a_site_without_the_extra_starts_and_says_which_one_is_lacking(
    site_env: dict[str, str],
) -> None:
    done = subprocess.run(
        [sys.executable, "-c", BLOCK], cwd=ROOT, capture_output=True, text=True, check=False,
        env={**os.environ, **site_env, "DJANGO_SETTINGS_MODULE": "harness_site.settings"},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "pip install longwatch[agents]" in done.stdout


def test_a_site_loads_no_agents_before_one_works(site_env: dict[str, str]) -> None:
    code = (
        "import django, sys; django.setup(); from ledger.workflows import get, load_all; "
        "load_all(); get('code-task'); sys.exit('pydantic_ai' in sys.modules)"
    )
    environment = {**os.environ, **site_env, "DJANGO_SETTINGS_MODULE": "harness_site.settings"}
    assert subprocess.run([sys.executable, "-c", code], cwd=ROOT, env=environment).returncode == 0


def test_a_recording_that_does_not_fit_says_where() -> None:
    recording = Recording.model_validate(
        {"sessions": [{"when": ["Go"], "turns": [{"say": "a"}, {"after": "found", "say": "b"}]}]}
    )
    assert recording.choose_turn("Go on", 0, "Go on").say == "a"
    assert recording.choose_turn("Go on", 1, "it was found").say == "b"
    for opening, answered, last, said in [
        ("Stop", 0, "", "knows no session"),
        ("Go", 2, "", "has 2 answers, not 3"),
        ("Go", 1, "lost", "is to a message with 'found'"),
    ]:
        with pytest.raises(RecordingError, match=said):
            recording.choose_turn(opening, answered, last)
    with pytest.raises(RecordingError, match="can't be read"):
        read_recording(Path("/nowhere"))
