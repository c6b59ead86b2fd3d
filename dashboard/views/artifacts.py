"""Artifacts: a download, a page that shows what is text or a picture, and what is new in a version.

Nothing of an artifact is ever a page of ours: text is escaped, a picture is one by its first bytes.
"""

from __future__ import annotations

import codecs
import csv
import dataclasses
import io
import itertools
import json
import re
from typing import Any
from uuid import UUID

from django.http import HttpResponseBase
from django.urls import reverse
from django.views.decorators.http import require_safe

from dashboard.access import PageRequest, allow
from dashboard.changes import read_comparison
from dashboard.diffs import mark_diff
from dashboard.htmx import make_redirect, render_page
from dashboard.rich_text import MAX_PROSE
from ledger import artifacts, queries
from ledger.access import READ
from ledger.api.serving import name_picture, serve_artifact
from ledger.artifacts import ANY_TYPE
from ledger.blobs import CorruptArtifact
from ledger.errors import ArtifactExpired, NotFound, StoreUnavailable
from ledger.models import Artifact

TEMPLATE = "dashboard/artifact.html"

MAX_READ = 32 << 20
"""Bytes of an artifact that is looked into: all of it is verified each time."""

MAX_TEXT = 256 * 1024

MAX_ROWS, MAX_CELLS, MAX_CELL = 200, 50, 500
"""Of a CSV: rows, cells of a row, characters of a cell."""

MAX_DEPTH = 50
"""Of JSON that is indented: what goes deeper would be mostly blanks."""

TOKEN = re.compile(r'"(?:[^"\\]|\\.)*"|[^\s\[\]{},:"]+|[\[\]{},:]')


@dataclasses.dataclass(frozen=True, slots=True)
class Preview:
    """What a page shows of an artifact: a text or its `rows` (`cut` if it goes on), `prose` if it
    is Markdown, a picture, or `why` not."""

    text: str | None = None
    rows: list[list[str]] = dataclasses.field(default_factory=list)
    cut: bool = False
    prose: bool = False
    picture: bool = False
    why: str = ""


@require_safe
@allow(READ)
def download_artifact(request: PageRequest, artifact_id: UUID) -> HttpResponseBase:
    """The bytes, verified against their digest, as an attachment of an opaque type; with `?picture`
    of an image's, if it is one."""
    row = queries.find_artifact(artifact_id)
    queries.require_payload()
    return serve_artifact(request, row, ANY_TYPE, picture="picture" in request.GET)


@require_safe
@allow(READ)
def show_artifact(request: PageRequest, artifact_id: UUID) -> HttpResponseBase:
    """What it is, where it comes from, its versions, and what is in it."""
    row = queries.find_artifact(artifact_id)
    queries.require_payload()
    preview = look_into(row)  # first: it may find the bytes corrupt
    context = load_facts(artifact_id) | {"preview": preview}
    return render_page(request, TEMPLATE, context)


@require_safe
@allow(READ)
def show_changes(request: PageRequest, artifact_id: UUID) -> HttpResponseBase:
    """What is new in it since the version before, or since another one (`?since=`, its number).

    Of a first version it is all: its own page.
    """
    queries.find_artifact(artifact_id)
    queries.require_payload()
    context = load_facts(artifact_id)
    file, versions = context["file"], context["versions"]
    since = request.GET.get("since") or str(file["version"] - 1)
    if since == "0":
        return make_redirect(request, reverse("dashboard:artifact-view", args=[artifact_id]))
    old = next((one for one in versions if str(one["version"]) == since), None)
    if old is None:
        raise NotFound("version", since)
    changes = read_comparison(old, file)
    changes.lines, context["cut"], changes.cut = mark_diff(changes.diff), bool(changes.cut), ""
    return render_page(request, TEMPLATE, context | {"changes": changes, "old": old})


def load_facts(artifact_id: UUID) -> dict[str, Any]:
    """The artifact, its versions, its task, and what it was made from."""
    versions = queries.list_versions(artifact_id)
    file = next((one for one in versions if one["id"] == str(artifact_id)), None)
    if file is None:  # more versions than a page has
        file = queries.show_artifact(queries.find_artifact(artifact_id))
    return {
        "section": "tasks",
        "file": file,
        "versions": versions,
        "made_from": queries.name_artifacts(file["made_from"]),
    }


def look_into(row: Artifact) -> Preview:
    """What can be shown of it."""
    try:
        if artifacts.require_blob(row).size > MAX_READ:
            return Preview(why="It is too large to be shown here.")
        with artifacts.open_content(row) as file:
            content = file.read(MAX_TEXT + 1)
    except CorruptArtifact:
        return Preview(why="Its stored bytes are not those that were saved, or are gone.")
    except ArtifactExpired as error:
        return Preview(why=str(error))
    except StoreUnavailable as error:
        return Preview(why=f"Not now: the artifact store {error.what}.")
    if name_picture(content[:16]):
        return Preview(picture=True)
    try:
        # Not final: a character that the cut divides is left out.
        text = codecs.getincrementaldecoder("utf-8")().decode(content[:MAX_TEXT])
    except UnicodeDecodeError:
        text = "\0"
    if "\0" in text:
        return Preview(why="It is neither text nor a picture.")
    cut = len(content) > MAX_TEXT
    if row.media_type == "text/csv" and (rows := read_rows(text)):
        return Preview(rows=rows[:MAX_ROWS], cut=cut or len(rows) > MAX_ROWS)
    if row.media_type == "application/json" and not cut:
        text = indent_json(text)
    prose = row.media_type == "text/markdown" and len(text) <= MAX_PROSE
    return Preview(text=text, cut=cut, prose=prose)


def read_rows(text: str) -> list[list[str]]:
    """The first rows of a CSV, one more than are shown; empty where it is none."""
    try:
        head = text.partition("\n")[0]
        mark = max(",;\t", key=head.count)  # of as many the first: the comma
        found = csv.reader(io.StringIO(text, newline=""), delimiter=mark, strict=True)
        rows = [row for row in itertools.islice(found, MAX_ROWS + 1) if row]
    except csv.Error:
        return []
    return [[cell[:MAX_CELL] for cell in row[:MAX_CELLS]] for row in rows]


def indent_json(text: str) -> str:
    """JSON that is written on one line, over as many as it needs; every number as it stands."""
    try:
        json.loads(text)
    except (ValueError, RecursionError):
        return text
    if "\n" in text.strip():
        return text
    shown: list[str] = []
    depth = 0
    for found in TOKEN.finditer(text):
        one = found[0]
        if one in "]}":
            depth -= 1
            shown.append(one if shown[-1] in ("[", "{") else "\n" + "  " * depth + one)
            continue
        if shown and shown[-1] in ("[", "{", ","):
            shown.append("\n" + "  " * depth)
        shown.append(": " if one == ":" else one)
        depth += one in "[{"
        if depth > MAX_DEPTH:
            return text
    whole = "".join(shown)
    return whole if len(whole) <= 4 * MAX_TEXT else text  # numbers at a depth are mostly blanks
