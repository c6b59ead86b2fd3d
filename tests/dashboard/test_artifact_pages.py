"""An artifact's pages: what is in it, its versions and what changed, and what can't be shown."""

from __future__ import annotations

import html
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from django.test import Client

from dashboard.views.artifacts import indent_json
from ledger import artifacts, blobs
from ledger.models import Artifact, Reach
from ledger.workflows import Workflow
from tests.factories import claim, submit

PNG = b"\x89PNG\r\n\x1a\n" + b"rest"


@pytest.fixture(autouse=True)
def store(settings: Any, tmp_path: Path) -> Path:
    settings.LONGWATCH_ARTIFACTS = str(tmp_path / "artifacts")
    return tmp_path / "artifacts"


@pytest.fixture
def save(three: Workflow, db: None) -> Callable[..., Artifact]:
    """Saves an artifact of one task, each time by its next turn."""
    submit(three)
    held = claim(three)

    def save_next(content: bytes, name: str = "report.md") -> Artifact:
        saved = artifacts.save_artifact(held, name, content)
        held.turn += 1
        return saved

    return save_next


def read(client: Client, artifact: Artifact, page: str = "view/") -> str:
    response = client.get(f"/artifacts/{artifact.id}/{page}")
    assert response.status_code == 200, response.content
    return response.content.decode()


def test_versions_stand_together_with_what_changed(
    operator: Client, save: Callable[..., Artifact]
) -> None:
    first, second, third = save(b"# One\nsame\n"), save(b"# Two\nsame\n"), save(b"# Two\nsame\n")
    other = save(b"# Two\nsame\n", "other.md")
    text = operator.get(f"/tasks/{first.task_id}/").content.decode()
    panel = text[text.index('id="artifacts-h"') :]
    assert panel.index(str(other.id)) < panel.index(str(third.id)) < panel.index(str(second.id))
    assert "2 earlier versions" in panel
    assert "22\xa0B in the store" in panel or "22 B in the store" in panel
    changes = read(operator, second, "changes/")
    assert re.search(r'<tr class="del">.*<del>One</del>.*<tr class="add">', changes, re.DOTALL)
    assert "their bytes are the same" in read(operator, third, "changes/")
    assert "<ins>" in read(operator, third, "changes/?since=1")
    page = read(operator, third)
    assert "# Two\nsame" in page
    assert all(f"/artifacts/{one.id}/view/" in page for one in (first, second))
    for since in ("?since=9", "?since=x"):
        assert operator.get(f"/artifacts/{second.id}/changes/{since}").status_code == 404
    assert operator.get(f"/artifacts/{first.id}/changes/")["Location"].endswith("/view/")


@pytest.mark.parametrize(
    ("content", "shown"),
    [
        (b"<script>alert(1)</script>", "&lt;script&gt;alert(1)&lt;/script&gt;"),
        (b'<svg onload="x()"/>', "&lt;svg onload=&quot;x()&quot;/&gt;"),
        ("a\u202eb".encode(), "a[U+202E]b"),
        (PNG, '?picture" alt='),
        (b"", "It is empty."),
        (b"a\0b", "neither text nor a picture"),
        (b"\xff\xfe\xff", "neither text nor a picture"),
        ("é".encode() * 200_000, "Cut here."),
    ],
)
def test_what_is_text_or_a_picture_is_shown_and_nothing_runs(
    operator: Client, save: Callable[..., Artifact], content: bytes, shown: str
) -> None:
    page = read(operator, save(content, "it.html"))
    assert shown in page
    assert "<script>alert" not in page
    assert "<svg onload" not in page


def test_what_went_bad_is_marked_wherever_it_stands(
    operator: Client, save: Callable[..., Artifact], store: Path
) -> None:
    saved = save(b"true bytes")
    save(b"newer")
    (store / blobs.name_blob(str(saved.blob_id))).write_bytes(b"lies, lies")
    page = read(operator, saved)
    assert "lies" not in page
    assert "Corrupt: its stored bytes have changed." in page
    task = operator.get(f"/tasks/{saved.task_id}/").content.decode()
    assert '<span class="tag is-fail">corrupt</span>' in task
    assert "its bytes can&#x27;t be read" in read(operator, saved, "changes/?since=2")


def test_an_upload_and_what_was_made_of_it_lead_to_each_other(
    operator: Client, three: Workflow
) -> None:
    upload = artifacts.store_upload(b"in", "rows.csv", actor="user:1")
    submit(three)
    held = claim(three)
    stored = artifacts.store_bytes("out", b"out")
    made = artifacts.record_artifact(held, "out", stored, None, [str(upload.pk)])
    page = read(operator, made)
    assert f'href="/artifacts/{upload.pk}/view/"' in page
    assert "Uploaded" in read(operator, upload)


def test_contents_are_for_who_may_see_them(
    sign_in: Callable[..., Client], save: Callable[..., Artifact]
) -> None:
    saved = save(b"secret")
    blind = sign_in("operator", "blind")
    user = blind.get("/tasks/").context["request"].user
    Reach.objects.create(user=user, payload=False)
    for page in ("", "view/", "changes/", "?picture"):
        assert blind.get(f"/artifacts/{saved.id}/{page}").status_code == 403


def test_a_table_is_shown_as_one_and_json_keeps_its_numbers(
    operator: Client, save: Callable[..., Artifact]
) -> None:
    lines = 'name,sum\r\n"<b>, Ltd",1\r\n' + "x,2\r\n" * 300
    text = read(operator, save(lines.encode(), "sums.csv"))
    assert '<th scope="col">name</th><th scope="col">sum</th>' in text
    assert "<td>&lt;b&gt;, Ltd</td><td>1</td>" in text
    assert "Cut here, after 200 rows" in text
    spaced = read(operator, save(b"page;words\n1,5;2\n", "german.csv"))
    assert "1,5</" in spaced
    assert "page;" not in spaced
    assert "<pre" in read(operator, save(b'a,"b\n', "torn.csv")), "what is no CSV is text"
    given = '{"a": [1, {"b": 1.50}], "c,": [], "d": 12345678901234567890123e2}'
    text = read(operator, save(given.encode(), "x.json"))
    shown = html.unescape(text[text.index("<pre") : text.index("</pre>")])
    assert '\n  "c,": [],\n  "d": 12345678901234567890123e2\n}' in shown
    assert '[\n    1,\n    {\n      "b": 1.50\n    }\n  ]' in shown
    for odd in ('{"a": }', "[" * 200 + "]" * 200):
        assert odd in html.unescape(read(operator, save(odd.encode(), "x.json")))


def test_markdown_is_set_without_what_it_could_do(
    operator: Client, save: Callable[..., Artifact]
) -> None:
    given = b"# Said\n\n<script>alert(1)</script> [go](javascript:alert(1)) ![p](http://x/p.png)\n"
    text = read(operator, save(given))
    prose = text[text.index('<div class="prose"') : text.index("<details>")]
    assert "<h2>Said</h2>" in prose
    assert "<script>" not in prose
    assert 'href="javascript' not in prose
    assert "<img" not in prose
    assert "# Said" in text[text.index("<details>") :], "as it is written"


def test_numbers_deep_in_json_make_no_page_of_blanks() -> None:
    """256 KB of them were 13 MB."""
    text = "[" * 48 + "1," * 100_000 + "1" + "]" * 48
    assert indent_json(text) == text
    assert indent_json("[1]") == "[\n  1\n]"
