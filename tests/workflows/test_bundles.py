"""Git bundles: what a commit holds comes out byte for byte, and git does nothing else."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from harness_site.workflows.shared.archive import Bounds, Refused
from harness_site.workflows.shared.bundles import is_bundle, unpack_bundle

FILES = {
    "pkg/a.py": b"x = 1\n",
    "pkg/crlf.txt": b"a\r\nb\r\n",
    "tests/test_a.py": b"$Id$ $Format:%H$\n",
    ".gitattributes": b"tests export-ignore\n*.py ident export-subst\n*.txt text eol=lf\n",
}


def run_git(folder: Path, *args: str) -> None:
    names = ("GIT_AUTHOR_NAME", "GIT_COMMITTER_NAME", "GIT_AUTHOR_EMAIL", "GIT_COMMITTER_EMAIL")
    own = {"PATH": os.environ["PATH"], "HOME": str(folder), **dict.fromkeys(names, "a@b")}
    subprocess.run(["git", *args], cwd=folder, env=own, check=True, capture_output=True)


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    root = tmp_path / "repository"
    root.mkdir()
    run_git(root, "init", "-q", "-b", "main")
    for name, content in FILES.items():
        (root / name).parent.mkdir(exist_ok=True)
        (root / name).write_bytes(content)
    (root / "pkg/a.py").chmod(0o755)
    run_git(root, "add", "-A")
    blob = ["-c", "core.autocrlf=false", "hash-object", "-w", "--no-filters", "pkg/crlf.txt"]
    done = subprocess.run(["git", *blob], cwd=root, check=True, capture_output=True, text=True)
    run_git(root, "update-index", "--cacheinfo", f"100644,{done.stdout.strip()},pkg/crlf.txt")
    run_git(root, "commit", "-q", "-m", "one")
    return root


def unpack(root: Path, *what: str, bounds: Bounds | None = None) -> dict[str, bytes]:
    """The files that come out of a bundle of `what`."""
    run_git(root, "bundle", "create", "../made.bundle", *what)
    target, scratch = root.parent / "target", root.parent / "scratch"
    target.mkdir()
    scratch.mkdir()
    with (root.parent / "made.bundle").open("rb") as file:
        assert is_bundle(file)
        unpack_bundle(file, target, scratch, bounds=bounds)
    return {
        str(path.relative_to(target)): path.read_bytes()
        for path in target.rglob("*") if path.is_file()
    }  # fmt: skip


def test_a_bundle_is_its_commit_byte_for_byte_whatever_attributes_say(repository: Path) -> None:
    assert unpack(repository, "HEAD", "main") == FILES
    assert os.access(repository.parent / "target/pkg/a.py", os.X_OK)


def test_no_hook_runs_and_no_configuration_of_the_user_is_read(
    repository: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hooks, touched = tmp_path / "home/template/hooks", tmp_path / "touched"
    hooks.mkdir(parents=True)
    for name in ("reference-transaction", "post-checkout", "post-merge", "post-index-change"):
        (hooks / name).write_text(f"#!/bin/sh\ntouch {touched}\n")
        (hooks / name).chmod(0o755)
    (tmp_path / "home/.gitconfig").write_text(
        f"[core]\nhooksPath={hooks}\n[init]\ntemplateDir={hooks.parent}\n"
        f'[tar "tar.gz"]\ncommand="touch {touched}; cat"\n'
    )
    run = ["git", "init", "-q", str(tmp_path / "proof")]
    (tmp_path / "proof").mkdir()
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", str(tmp_path / "home/.gitconfig"))
    subprocess.run(run, check=True)
    commit = ["-c", "user.name=a", "-c", "user.email=a@b", "commit", "-q", "--allow-empty", "-m1"]
    subprocess.run(["git", "-C", str(tmp_path / "proof"), *commit], check=True)
    assert touched.exists(), "elsewhere these hooks do run"
    touched.unlink()
    assert unpack(repository, "main") == FILES
    assert not touched.exists()


def test_what_a_bundle_must_not_hold_is_refused_as_in_an_archive(repository: Path) -> None:
    (repository / "link").symlink_to("/etc/passwd")
    run_git(repository, "add", "-A")
    run_git(repository, "commit", "-q", "-m", "two")
    with pytest.raises(Refused, match="link is a link"):
        unpack(repository, "main")


def test_a_bundle_within_no_bounds_is_refused(repository: Path) -> None:
    with pytest.raises(Refused, match="more than 2 files"):
        unpack(repository, "main", bounds=Bounds(files=2))


def test_a_bundle_that_leaves_the_branch_open_or_builds_on_others_is_refused(
    repository: Path, tmp_path: Path
) -> None:
    run_git(repository, "branch", "other")
    with pytest.raises(Refused, match="refs/heads/main, refs/heads/other"):
        unpack(repository, "main", "other")
    run_git(repository, "commit", "-q", "--allow-empty", "-m", "two")
    for name in ("target", "scratch"):
        (tmp_path / name).rename(tmp_path / f"first-{name}")
    with pytest.raises(Refused, match=r"git can't read the bundle: .*prerequisite"):
        unpack(repository, "main^..main")


def test_damage_is_refused(repository: Path, tmp_path: Path) -> None:
    run_git(repository, "bundle", "create", "../made.bundle", "main")
    whole = (tmp_path / "made.bundle").read_bytes()
    (tmp_path / "cut").write_bytes(whole[: len(whole) - 40])
    (tmp_path / "scratch").mkdir()
    with (tmp_path / "cut").open("rb") as file, pytest.raises(Refused, match="git can't read"):
        unpack_bundle(file, tmp_path / "target", tmp_path / "scratch")
