"""Uploads and downloads: streamed, whole or in part, never run in our name."""

from __future__ import annotations

import base64
import email
import hashlib
import io
import json
from email.message import Message
from typing import Any, NamedTuple

import pytest
from django.core.files.uploadedfile import SimpleUploadedFile
from django.test import Client, override_settings

from ledger.models import Artifact
from tests.api.conftest import BASE, Api

pytestmark = pytest.mark.both_databases

DATA = bytes(range(256)) * 5_000


def upload(api: Api, data: bytes = DATA, name: str = "data.bin", **headers: str) -> dict[str, Any]:
    return dict(api.post(f"/artifacts?name={name}", data, **headers).expect(201))


class Content(NamedTuple):
    """An answer read to its end."""

    status: int
    headers: Any
    body: bytes


def fetch(api: Api, artifact: dict[str, Any], **headers: str) -> Content:
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    path = f"{BASE}/artifacts/{artifact['id']}/content"
    response = api.client.get(path, headers=api.headers | named)
    return Content(response.status_code, response.headers, b"".join(response))


def upload_unsaid(api: Api, data: bytes) -> Any:
    """An upload in chunks: the request has no Content-Length, the server knows the end."""
    return api.client.generic(
        "POST",
        f"{BASE}/artifacts?name=x",
        headers=api.headers,
        CONTENT_LENGTH="",
        **{"wsgi.input_terminated": True, "wsgi.input": io.BytesIO(data)},
    )


def test_an_upload_comes_back_byte_for_byte(api: Api) -> None:
    made = upload(api, Content_Type="application/octet-stream")
    digest = hashlib.sha256(DATA)
    assert made == {
        "id": made["id"], "task": None, "name": "data.bin", "version": 1, "latest": True,
        "step": "", "turn": 0, "round": 0, "fence": 0, "size": len(DATA), "state": "ok",
        "state_why": "", "media_type": "application/octet-stream", "sha256": digest.hexdigest(),
        "supersedes": None, "copied_from": None, "made_from": [],
        "created_at": made["created_at"], "expired_at": None,
    }  # fmt: skip
    assert api.get(f"/artifacts/{made['id']}").expect(200) == made
    response = fetch(api, made)
    assert response.status == 200
    assert response.body == DATA
    headers = response.headers
    assert headers["ETag"] == f'"{made["sha256"]}"'
    assert headers["Repr-Digest"] == f"sha-256=:{base64.b64encode(digest.digest()).decode()}:"
    assert headers["Content-Length"] == str(len(DATA))
    assert headers["Content-Disposition"] == 'attachment; filename="data.bin"'
    assert headers["Content-Security-Policy"] == "default-src 'none'; sandbox"
    assert headers["X-Content-Type-Options"] == "nosniff"
    assert headers["Accept-Ranges"] == "bytes"


@pytest.mark.parametrize(
    ("asked", "first", "end"),
    [("bytes=0-0", 0, 1), ("bytes=10-19", 10, 20), ("bytes=1279990-", 1279990, 1280000),
     ("bytes=-7", 1279993, 1280000), ("bytes=5-99999999999", 5, 1280000),
     ("bytes=-9999999999", 0, 1280000)],
)  # fmt: skip
def test_a_range_is_a_part(api: Api, asked: str, first: int, end: int) -> None:
    response = fetch(api, upload(api), Range=asked)
    body = response.body
    assert body == DATA[first:end]
    assert response.headers["Content-Length"] == str(len(body))
    if len(body) < len(DATA):
        assert response.status == 206
        assert response.headers["Content-Range"] == f"bytes {first}-{end - 1}/{len(DATA)}"


def test_other_ranges_are_the_whole_or_refused(api: Api) -> None:
    made = upload(api)
    many = "bytes=" + ",".join(f"{n}-{n}" for n in range(0, 63, 3))
    for asked in ("bytes=0-1,x", "bytes=0-,0-,0-", many, "bytes=-", "bytes=x-y", "items=0-1",
                  "bytes=" + "9" * 30 + "-"):  # fmt: skip
        assert len(fetch(api, made, Range=asked).body) == len(DATA)
    for asked in ("bytes=1280000-", "bytes=7-3", "bytes=-0"):
        response = fetch(api, made, Range=asked)
        assert response.status == 416
        assert response.headers["Content-Range"] == "bytes */1280000"
        assert json.loads(response.body)["code"] == "range_not_satisfiable"
    old = fetch(api, made, Range="bytes=0-0", If_Range='"another"')
    assert len(old.body) == len(DATA)
    assert fetch(api, made, If_None_Match=f'"{made["sha256"]}"').status == 304
    empty = upload(api, b"")
    assert fetch(api, empty).body == b""
    assert fetch(api, empty, Range="bytes=0-").status == 416


def test_several_ranges_come_as_parts_of_their_own(api: Api) -> None:
    response = fetch(api, upload(api), Range="bytes=0-1, 5-6,-3,9999999-")
    assert response.status == 206
    message = email.message_from_bytes(
        f"Content-Type: {response.headers['Content-Type']}\r\n".encode() + response.body
    )
    parts = message.get_payload()
    assert isinstance(parts, list)
    size = len(DATA)
    assert [part["Content-Range"] for part in parts if isinstance(part, Message)] == [
        f"bytes 0-1/{size}", f"bytes 5-6/{size}", f"bytes {size - 3}-{size - 1}/{size}"
    ]  # fmt: skip
    for content in (DATA[:2], DATA[5:7], DATA[-3:]):
        assert b"\r\n\r\n" + content + b"\r\n--" in response.body
    assert response.headers["Content-Length"] == str(len(response.body))


def test_a_head_is_answered_without_the_bytes(api: Api) -> None:
    made = upload(api)
    path = f"{BASE}/artifacts/{made['id']}/content"
    response = api.client.head(path, headers=api.headers | {"Range": "bytes=0-1"})
    assert (response.status_code, response.getvalue()) == (200, b"")
    assert response.headers["Content-Length"] == str(len(DATA))
    assert response.headers["ETag"] == f'"{made["sha256"]}"'


def test_a_form_is_an_upload_too(api: Api) -> None:
    file = SimpleUploadedFile("page.html", b"<script>", "text/html")
    path = f"{BASE}/artifacts"
    response = api.client.post(path, {"file": file}, headers=api.headers)
    assert response.status_code == 201, response.content
    made = response.json()
    assert (made["name"], made["media_type"]) == ("page.html", "text/html")
    assert fetch(api, made).headers["Content-Disposition"].startswith("attachment")
    for form in ({}, {"other": SimpleUploadedFile("x", b"x")}):
        refused = api.client.post(path, form, headers=api.headers)
        assert (refused.status_code, refused.json()["field"]) == (422, "file")
    broken = api.post("/artifacts", b"nonsense", Content_Type="multipart/form-data; boundary=")
    broken.expect_problem(400, "bad_request")


@pytest.mark.parametrize(
    ("name", "status"),
    [("", 422), ("x" * 256, 422), ("a%00b", 400), ("..%2F..%2Fetc%2Fpasswd", 201),
     ("%E6%97%A5%E6%9C%AC.txt", 201), ("a%0Ab%22c", 201)],
)  # fmt: skip
def test_a_name_is_a_label(api: Api, name: str, status: int) -> None:
    body = api.post(f"/artifacts?name={name}", b"x").expect(status)
    if status == 201:
        response = fetch(api, body)
        assert response.body == b"x"
        assert "\n" not in response.headers["Content-Disposition"]
    else:
        assert body["field"] == "name"
        assert not Artifact.objects.exists()


def test_bounds_are_stated(api: Api) -> None:
    with override_settings(LONGWATCH_UPLOAD_BYTES=1_000):
        api.post("/artifacts?name=x", b"x" * 1_001).expect_problem(
            413, "payload_too_large", "content"
        )
        unsaid = upload_unsaid(api, b"x" * 1_001)
        assert (unsaid.status_code, unsaid.json()["field"]) == (413, "content")
    api.post("/artifacts?name=x", b"x", Content_Encoding="gzip").expect_problem(
        415, "unsupported_media_type", "content"
    )
    assert not Artifact.objects.exists()


def test_a_body_without_a_length_is_read_to_its_end(api: Api) -> None:
    response = upload_unsaid(api, DATA)
    assert response.status_code == 201, response.content
    assert response.json()["size"] == len(DATA)


def test_a_body_that_ends_early_is_not_stored(api: Api) -> None:
    response = api.client.generic(
        "POST",
        f"{BASE}/artifacts?name=x",
        headers=api.headers,
        CONTENT_LENGTH="99",
        **{"wsgi.input": io.BytesIO(b"short")},
    )
    assert response.status_code == 400, response.content
    assert not Artifact.objects.exists()


def test_the_bytes_need_a_token(api: Api, client: Client) -> None:
    made = upload(api)
    assert client.get(f"{BASE}/artifacts/{made['id']}/content").status_code == 401
