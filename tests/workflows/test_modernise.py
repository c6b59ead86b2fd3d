"""`modernise` end to end: on real packages, and on what submitters send."""

from __future__ import annotations

import io
import stat
import tarfile
from pathlib import Path
from typing import Any

import pytest

from harness_site.workflows import modernise
from harness_site.workflows.modernise.source import copy_distribution
from harness_site.workflows.shared.tree import list_files
from ledger import artifacts
from ledger.errors import InvalidInput
from ledger.events import Actor
from ledger.models import Approval, Artifact
from ledger.testing import LOST, Ended, run
from ledger.tokens import make_token
from tests.workflows.test_archive import add, unpack
from tests.workflows.test_tree import read_all, run_git

pytestmark = pytest.mark.django_db(transaction=True)

SUITE = """import unittest

from pkg.shared import *


class Suite(unittest.TestCase):
    def test_shared(self): self.assertTrue(callable(getcwd))
    def test_other(self): pass
"""
FAILING = SUITE + "    def test_never(self): self.fail('by design')\n"
# Whatever is imported here only to be handed on is what ruff takes away.
SHARED = "from os import getcwd\n"
CLEAN = "VALUE = 1\n"
OLD = "class Old(object):\n    pass\n"


def upload(files: dict[str, str | bytes], *, mode: int = 0o644) -> str:
    """An uploaded archive of these files; returns its id."""
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w:gz") as tar:
        for name, content in files.items():
            data = content.encode() if isinstance(content, str) else content
            add(tar, name, data, mode=mode)
    packed.seek(0)
    return str(artifacts.store_upload(packed, "My Package.tar.gz").pk)


def make_package(**modules: str) -> dict[str, str | bytes]:
    """A package whose tests need `shared` to hand on `getcwd`."""
    base = {"__init__": "", "shared": SHARED, "test_it": SUITE}
    return {f"pkg/{name}.py": text for name, text in (base | modules).items()}


def list_names(ended: Ended) -> list[str]:
    return sorted(Artifact.objects.filter(task=ended.id).values_list("name", flat=True))


def list_repairs(ended: Ended) -> list[Any]:
    return [event["data"]["feedback"] for event in ended.events if event["kind"] == "repaired"]


def check_published(ended: Ended, name: str, original: Path, folder: Path) -> dict[str, Any]:
    """Apply the patch with real git to the original: it must give the published archive."""
    published, repository = folder / "published", folder / "repository"
    for file, kept in ((f"{name}.patch", "x.patch"), (f"{name}.tar.gz", "x.tar.gz")):
        (folder / kept).write_bytes(ended.read_artifact(file))
    unpack(folder / "x.tar.gz", published)
    original.rename(repository)
    run_git(repository, "init", "-q")
    run_git(repository, "apply", "-p1", str(folder / "x.patch"))
    assert read_all(repository) == read_all(published)
    patches = [name for name in list_names(ended) if name.endswith((".patch", ".diff"))]
    assert patches == [f"{name}.patch"]
    assert [n for n in list_names(ended) if n.endswith(".tar.gz")] == [f"{name}.tar.gz"]
    return read_all(published)


@pytest.mark.timeout(400)
def test_simplejson_is_repaired_once_with_the_guilty_file_named(tmp_path: Path) -> None:
    given = {"distribution": "simplejson"}
    ended = run(modernise, given, answers={"review": "approve"})
    assert (ended.status, ended.task["error"]) == ("completed", None)
    assert ended.progress["tests_before"]["ran"] == ended.progress["tests_after"]["ran"] == 283
    assert ended.progress["files"] == 35
    (repair,) = list_repairs(ended)
    assert repair["files"] == ["simplejson/compat.py"]
    assert "cannot import name" in repair["output"]
    steps = [name for name, _ in ended.units]
    assert steps[:8] == ["import", "plan", *["edit"] * 6]
    assert 4 <= steps.count("verify") <= 16
    assert ended.result["changed"] == 34
    assert (ended.result["added"], ended.result["removed"]) == (288, 273)

    question = Approval.objects.get(task=ended.id)
    (left,) = question.payload["left_alone"]
    assert left["path"] == "simplejson/compat.py"
    assert "2 of 254 tests failed" in left["why"]
    assert len(question.payload["files"]) == 34
    assert question.risk == "medium"

    copy_distribution("simplejson", tmp_path / "original")
    published = check_published(ended, "simplejson", tmp_path / "original", tmp_path)
    assert any(path.endswith(".so") for path in published)
    assert b"simplejson/compat.py" in ended.read_artifact("report.md")


def test_pyflakes_needs_no_repair(tmp_path: Path) -> None:
    ended = run(modernise, {"distribution": "pyflakes"}, answers={"review": "approve"})
    assert ended.status == "completed"
    assert list_repairs(ended) == []
    assert [name for name, _ in ended.units].count("verify") == 1
    assert ended.progress["tests_before"]["ran"] == ended.progress["tests_after"]["ran"] == 796
    copy_distribution("pyflakes", tmp_path / "original")
    check_published(ended, "pyflakes", tmp_path / "original", tmp_path)


ODD = {
    "pkg/crlf.py": OLD.replace("\n", "\r\n"),
    "pkg/bom.py": "\ufeff" + OLD,
    "pkg/end.py": OLD + "x = Old()",
    "pkg/latin.py": b"# coding: latin-1\nclass Old(object):\n    name = '\xe9'\n",
    "pkg/a b.py": OLD,
    "pkg/caf\u00e9 \u65e5\u672c.py": OLD,
    "bin/tool.py": "#!/usr/bin/env python\n" + OLD,
    "data/raw.bin": bytes(range(256)) * 10,
    "data/no end": b"a\r\nb",
}


def test_odd_files_come_through_byte_for_byte(tmp_path: Path) -> None:
    files = make_package(shared=CLEAN + SHARED + "__all__ = ['getcwd']\n") | ODD
    ended = run(modernise, {"archive": upload(files, mode=0o755)}, answers={"review": "approve"})
    assert ended.status == "completed"
    for name, content in files.items():
        file = tmp_path / "original" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(content.encode() if isinstance(content, str) else content)
        file.chmod(0o755)
    published = check_published(ended, "My-Package", tmp_path / "original", tmp_path)
    assert published["pkg/crlf.py"][0] == b"class Old:\r\n    pass\r\n"
    assert published["pkg/bom.py"][0].startswith(b"\xef\xbb\xbfclass Old:\n")
    assert published["pkg/end.py"][0].endswith(b"x = Old()")
    assert published["pkg/a b.py"][0] == b"class Old:\n    pass\n"
    assert published["pkg/latin.py"][0] == ODD["pkg/latin.py"]
    assert published["data/raw.bin"][0] == ODD["data/raw.bin"]
    assert {mode for _, mode in published.values()} == {0o111}


def test_two_guilty_files_cost_one_repair() -> None:
    more = {f"old{n}": OLD for n in range(6)} | {"zshared": "from os import getpid\n"}
    test = SUITE.replace("import *", "import *\nfrom pkg.zshared import getpid").replace(
        "pass", "self.assertTrue(getpid())"
    )
    ended = run(
        modernise, {"archive": upload(make_package(**more, test_it=test))},
        answers={"review": "approve"},
    )  # fmt: skip
    assert ended.status == "completed"
    assert [repair["files"] for repair in list_repairs(ended)] == [
        ["pkg/shared.py", "pkg/zshared.py"]
    ]


def test_when_every_fix_breaks_something_nobody_is_asked() -> None:
    ended = run(modernise, {"archive": upload(make_package())})
    assert ended.status == "completed"
    assert ended.result["changed"] == 0
    assert list(ended.result["left_alone"]) == ["pkg/shared.py"]


def test_nothing_to_fix_is_said() -> None:
    ended = run(modernise, {"archive": upload({"a.py": CLEAN}), "tests": "compile"})
    assert (ended.status, ended.result["changed"]) == ("completed", 0)


def test_tests_that_fail_before_any_change_end_it() -> None:
    ended = run(modernise, {"archive": upload(make_package(test_it=FAILING))})
    assert (ended.status, ended.reason) == ("failed", "workflow_failed")
    message = ended.task["error"]["message"]
    assert "before any change: 1 of 3 tests failed" in message
    assert "by design" in message


@pytest.mark.parametrize("scopes", [["submit"], ["submit", "operate"]])
def test_an_upload_by_a_token_without_operate_is_only_compiled(scopes: list[str]) -> None:
    token, _ = make_token("robot", scopes, created_by="cli:test")
    archive = upload(make_package(test_it=FAILING, old=OLD))
    ended = run(
        modernise, {"archive": archive, "tests": "unittest"}, actor=Actor("token", str(token.pk))
    )
    if "operate" in scopes:
        assert ended.status == "failed"  # its tests ran, and fail by design
        return
    assert ended.status == "waiting"
    question = Approval.objects.get(task=ended.id)
    assert question.risk == "medium"
    assert question.payload["tests"]["kind"] == "compile"
    assert "**Only compiled:** its code is not run, because the token" in question.body


def test_tests_find_no_secret_of_ours(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LONGWATCH_SECRET_KEY", "hunter2")
    test = """
import os, pathlib, unittest
class Suite(unittest.TestCase):
    def test_environment(self):
        seen = pathlib.Path("/proc/self/environ").read_text() + repr(os.environ)
        self.assertNotIn("hunter2", seen)
        self.assertNotIn("LONGWATCH", seen)
        self.assertNotIn("DJANGO", seen)
"""
    ended = run(modernise, {"archive": upload(make_package(test_it=test, old=OLD))})
    assert ended.status == "waiting", ended.task["error"]


@pytest.mark.parametrize(
    ("files", "why"),
    [
        ({"../evil.py": "x"}, "../evil.py would leave the folder"),
        ({"/evil.py": "x"}, "/evil.py is an absolute path"),
        ({"a.py": "x", "a.py/b.py": "x"}, "both a file and a folder"),
        ({}, "it holds no files"),
        ({"big": bytes(30_000_000)}, "200 times its size"),
    ],
)
def test_a_hostile_archive_is_refused_by_name(files: dict[str, str | bytes], why: str) -> None:
    ended = run(modernise, {"archive": upload(files)})
    assert (ended.status, ended.reason) == ("failed", "workflow_failed")
    assert ended.task["error"]["message"].startswith("archive_refused: input.archive: ")
    assert why in ended.task["error"]["message"]
    assert list_names(ended) == []


def test_an_archive_of_another_task_can_not_be_read() -> None:
    other = run(modernise, {"archive": upload(make_package())})
    theirs = Artifact.objects.get(task=other.id, name="original.tgz")
    for archive in (str(theirs.pk), "01890000-0000-7000-8000-000000000000"):
        ended = run(modernise, {"archive": archive})
        assert ended.status == "failed"
        assert f"there is no upload {archive}" in ended.task["error"]["message"]


def test_what_is_sent_back_leaves_the_named_files_as_they_were() -> None:
    files = make_package(one=OLD, two=OLD)
    ended = run(
        modernise,
        {"archive": upload(files)},
        answers={
            "review": [
                {"decision": "send_back", "comment": "please not pkg/two.py."},
                {"decision": "approve", "comment": "better"},
            ]
        },
    )
    assert ended.status == "completed"
    assert ended.progress["left_alone"].keys() == {"pkg/shared.py", "pkg/two.py"}
    assert ended.progress["left_alone"]["pkg/two.py"] == "named by user:testing"
    assert ended.result["changed"] == 1
    assert b"> better" in ended.read_artifact("report.md")
    with tarfile.open(fileobj=io.BytesIO(ended.read_artifact("My-Package.tar.gz"))) as tar:
        kept = {member.name: tar.extractfile(member).read() for member in tar}  # type: ignore[union-attr]
    assert kept["pkg/two.py"] == OLD.encode()
    assert kept["pkg/one.py"] == b"class Old:\n    pass\n"


def test_a_rejected_change_publishes_nothing() -> None:
    ended = run(modernise, {"archive": upload(make_package(old=OLD))}, answers={"review": "reject"})
    assert (ended.status, ended.reason) == ("failed", "approval_rejected")
    assert not any(name.endswith((".patch", ".tar.gz", ".md")) for name in list_names(ended))


@pytest.mark.both_databases
def test_lost_workers_change_nothing() -> None:
    given = {"archive": upload(make_package(one=OLD, two=OLD, three=OLD)), "batch_size": 2}
    plain = run(modernise, given, answers={"review": "approve"})
    faults = {step.name: [None, LOST] for step in modernise.steps}
    faults |= {"import": [LOST], "plan": [LOST], "review": [LOST], "publish": [LOST]}
    lost = run(modernise, given, answers={"review": "approve"}, faults=faults)
    assert lost.kinds.count("reclaimed") == 6
    assert lost.units == plain.units
    for name in ("My-Package.patch", "My-Package.tar.gz"):
        assert lost.read_artifact(name) == plain.read_artifact(name)
        assert list_names(lost).count(name) == 1


def test_a_pause_stands_between_units() -> None:
    given = {"archive": upload(make_package(old=OLD)), "pause": 1.5, "batch_size": 1}
    ended = run(modernise, given, answers={"review": "approve"})
    assert ended.status == "completed"
    # After every unit but those that end in a repair, a question or the end of the task.
    pairs = list(zip(ended.kinds, ended.kinds[1:], strict=False))
    assert pairs.count(("checkpoint", "scheduled")) == len(ended.units) - 3


@pytest.mark.parametrize(
    ("given", "field"),
    [
        ({}, "input"),
        (
            {"distribution": "simplejson", "archive": "01890000-0000-7000-8000-000000000000"},
            "input",
        ),
        ({"distribution": "no-such-thing"}, "input.distribution"),
        ({"distribution": 7}, "input.distribution"),
        ({"archive": "../../etc/passwd"}, "input.archive"),
        ({"distribution": "simplejson", "tests": "rm -rf /"}, "input.tests"),
        ({"distribution": "simplejson", "rules": []}, "input.rules"),
        ({"distribution": "simplejson", "rules": ["--fix"]}, "input.rules.0"),
        ({"distribution": "simplejson", "rules": ["QQQ"]}, "input.rules"),
        ({"distribution": "simplejson", "target": "py2"}, "input.target"),
        ({"distribution": "simplejson", "batch_size": 0}, "input.batch_size"),
        ({"distribution": "simplejson", "pause": 3}, "input.pause"),
        ({"distribution": "simplejson", "command": "make"}, "input.command"),
    ],
)
def test_bad_input_is_refused_by_name(given: dict[str, Any], field: str) -> None:
    with pytest.raises(InvalidInput) as refused:
        run(modernise, given)
    assert refused.value.field == field


def test_the_site_chooses_which_tests_there_are(settings: Any) -> None:
    settings.LONGWATCH_TESTS = ["compile", "make test"]
    for tests in ("unittest", "make test"):
        with pytest.raises(InvalidInput, match="takes one of compile"):
            run(modernise, {"distribution": "simplejson", "tests": tests})


def test_nothing_is_left_in_the_temporary_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    ended = run(
        modernise, {"archive": upload(make_package(old=OLD))}, answers={"review": "approve"}
    )
    assert ended.status == "completed"
    assert list_files(tmp_path) == []
    assert [path for path in tmp_path.iterdir() if stat.S_ISDIR(path.stat().st_mode)] == []
