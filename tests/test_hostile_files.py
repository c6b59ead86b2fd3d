"""What producers make up: types that lie, names that would lead somewhere, sources that are none.

Tried through the API and the pages alike: written, listed, looked at, downloaded, deleted.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote, unquote

import pytest
from django.contrib.auth.models import Group, User
from django.test import Client

from ledger import artifacts, blobs, registry
from ledger.access import SCOPES
from ledger.collecting import collect_files
from ledger.errors import InvalidInput
from ledger.models import Artifact, Reach
from ledger.sql import Claimed
from ledger.tokens import make_token
from ledger.workflows import Workflow
from tests.factories import claim, make_workflow, submit

pytestmark = [pytest.mark.both_databases, pytest.mark.django_db]

SCRIPT = b"<script>alert(1)</script>"
ACTIVE = {
    "page.html": ("text/html", SCRIPT),
    "page.xhtml": ("application/xhtml+xml", SCRIPT),
    "logo.svg": ("image/svg+xml", b'<svg xmlns="http://www.w3.org/2000/svg" onload="x()"/>'),
    "feed.xml": ("text/xml", b'<?xml-stylesheet href="x.xsl"?><a/>'),
    "paper.pdf": ("application/pdf", b"%PDF-1.7\n/JS (app.alert(1))"),
    "code.js": ("text/javascript", b"alert(1)"),
    "noextension": ("", SCRIPT),
    "photo.png": ("text/html", SCRIPT),  # the wrong declared type
    "notes.txt": ("image/png", SCRIPT),
    "half.gif": ("text/html", b"GIF89a/*" + SCRIPT),  # polyglots
    "half.pdf": ("image/jpeg", b"\xff\xd8\xff%PDF-1.7" + SCRIPT),
    "type\r\nX-Evil: 1.html": ("text/html\r\nX-Evil: 1", SCRIPT),
}
INERT = {
    "application/octet-stream",
    "text/plain; charset=utf-8",
    "image/png",
    "image/jpeg",
    "image/gif",
}

NAMES = [
    "../../x", "/etc/passwd", "..\\..\\x", "%2e%2e%2fx", "..%2Fx", "CON", "dot. ", "-rf", "😀",
    "\u00e9", "e\u0301", "A", "a", "line\nbreak", 'quote".txt', "a\u202etxt.exe", "é" * 150,
    "semi;colon=1", ".", "..", "~root", "$(id)", "X\r\nX-Evil: 1",
]  # fmt: skip


@pytest.fixture
def store(settings: Any, tmp_path: Path) -> Path:
    settings.LONGWATCH_VAR = str(tmp_path / "var")
    settings.LONGWATCH_ARTIFACTS = str(tmp_path / "inside" / "artifacts")
    return tmp_path / "inside" / "artifacts"


@pytest.fixture
def held(store: Path) -> Iterator[Claimed]:
    workflow: Workflow = make_workflow("three")
    with registry.registered(workflow):
        submit(workflow)
        yield claim(workflow)


@pytest.fixture
def person(db: None) -> Client:
    """An operator's browser."""
    return sign_in("olga")


def sign_in(name: str, **reach: Any) -> Client:
    user = User.objects.create_user(name)
    user.groups.add(Group.objects.get(name="operator"))
    if reach:
        Reach.objects.create(user=user, **reach)
    client = Client()
    client.force_login(user)
    return client


def call(path: str, **headers: str) -> Any:
    """The API's answer to a token of every scope."""
    _, token = make_token("test", SCOPES, created_by="cli:test")
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return Client().get(f"/api/v1{path}", headers={"Authorization": f"Bearer {token}"} | named)


def check_download(response: Any, content: bytes) -> None:
    assert response.getvalue() == content
    headers = response.headers
    assert headers["Content-Type"] in INERT
    assert headers["X-Content-Type-Options"] == "nosniff"
    assert headers["Content-Security-Policy"] == "default-src 'none'; sandbox"
    assert headers["Content-Disposition"].startswith("attachment")
    assert "X-Evil" not in headers


@pytest.mark.case(65)
@pytest.mark.parametrize("name", ACTIVE)
def test_no_browser_runs_what_a_producer_made(held: Claimed, person: Client, name: str) -> None:
    declared, content = ACTIVE[name]
    saved = artifacts.save_artifact(held, name, content, declared)
    paths = [f"/artifacts/{saved.pk}/", f"/artifacts/{saved.pk}/?picture"]
    for path in paths:
        check_download(person.get(path), content)
        check_download(person.get(path, headers={"Range": "bytes=1-5"}), content[1:6])
    check_download(call(f"/artifacts/{saved.pk}/content"), content)
    check_download(call(f"/artifacts/{saved.pk}/content", Range="bytes=-4"), content[-4:])
    parts = call(f"/artifacts/{saved.pk}/content", Range="bytes=0-1,3-4")
    assert b"text/html" not in parts.getvalue()
    for page in (f"/artifacts/{saved.pk}/view/", f"/tasks/{held.task_id}/"):
        shown = person.get(page)
        assert shown.status_code == 200
        assert b"<" not in content or content not in shown.content
        assert "script-src 'self'" in shown.headers["Content-Security-Policy"]
    assert Client().get(paths[0]).status_code == 302
    blind = sign_in("blind", payload=False)
    for path in (*paths, f"/artifacts/{saved.pk}/view/"):
        assert blind.get(path).status_code == 403


@pytest.mark.case(74)
def test_names_are_labels_and_distinct_ones_stay_distinct(
    held: Claimed, person: Client, store: Path, tmp_path: Path
) -> None:
    outside = tmp_path / "inside" / "x"
    (tmp_path / "inside").mkdir()
    outside.write_text("not yours")
    made = {}
    for number, name in enumerate(NAMES):
        first = artifacts.save_artifact(held, name, f"{number} first")
        made[name] = artifacts.save_artifact(held, name, f"{number}")  # the existing name again
        assert first.pk != made[name].pk
    listed = call(f"/tasks/{held.task_id}/artifacts").json()["items"]
    assert sorted(one["name"] for one in listed) == sorted(NAMES)
    assert person.get(f"/tasks/{held.task_id}/").status_code == 200
    for number, name in enumerate(NAMES):
        saved = made[name]
        assert artifacts.find_artifact(name, held.task_id) == saved
        for response in (
            call(f"/artifacts/{saved.pk}/content"), person.get(f"/artifacts/{saved.pk}/")
        ):  # fmt: skip
            check_download(response, str(number).encode())
            told = response.headers["Content-Disposition"]
            assert not set(told) & {"\r", "\n", "\\/"}
            assert not {"/", "\\", "\u202e", "\n"} & set(unquote(told.partition("utf-8''")[2]))
    for path in ("../x", "..%2Fx", "%2e%2e%2fx", "....//x", quote("/etc/passwd", safe="")):
        assert call(f"/artifacts/{path}/content").status_code == 404
        assert person.get(f"/artifacts/{path}/").status_code == 404
    files = [path for path in store.rglob("*") if path.is_file() and ".incoming" not in str(path)]
    assert all(len(path.name) == 64 and path.parent.name == path.name[:2] for path in files)
    Artifact.objects.all().delete()
    collect_files(0)
    assert not [path for path in files if path.exists()]
    assert outside.read_text() == "not yours"


@pytest.mark.case(74)
def test_what_is_no_regular_file_is_no_artifact(held: Claimed, tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("secret")
    (tmp_path / "link").symlink_to(tmp_path / "secret")
    (tmp_path / "dangling").symlink_to(tmp_path / "nothing")
    os.mkfifo(tmp_path / "fifo")
    (tmp_path / "folder").mkdir()
    for name in ("link", "dangling", "fifo", "folder", "missing"):
        with pytest.raises((ValueError, OSError)):
            artifacts.save_artifact(held, name, tmp_path / name)
    with pytest.raises((ValueError, OSError)):
        artifacts.save_artifact(held, "device", Path("/dev/zero"))
    for name in ("", "x" * 256, "a\0b", "\ud800"):
        with pytest.raises(InvalidInput, match="name"):
            artifacts.save_artifact(held, name, b"x")
    assert not Artifact.objects.exists()
    assert not list(Path(blobs.get_storage().location).glob("??/*"))
