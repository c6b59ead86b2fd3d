"""Uploads in pieces: torn, repeated, raced, left and checked, they end as one artifact or none."""

from __future__ import annotations

import base64
import hashlib
import io
import threading
from collections.abc import Callable
from typing import Any

import pytest
from django.db import connection

from ledger import artifacts, blobs, clock, collecting, uploads
from ledger.models import Artifact, AuditEntry, Blob, Upload, UploadPart
from tests.api.conftest import BASE, Answer, Api

pytestmark = pytest.mark.both_databases

DATA = bytes(range(256)) * 40
DIGEST = hashlib.sha256(DATA).hexdigest()


def begin(api: Api, size: int = len(DATA), **more: Any) -> str:
    made = api.post("/uploads", {"name": "large.bin", "size": size, **more})
    body = made.expect(201)
    assert made.headers["Location"] == f"{BASE}/uploads/{body['id']}"
    assert (body["offset"], body["artifact"]) == (0, None)
    return str(body["id"])


def send(api: Api, upload: str, offset: Any, data: bytes, **more: Any) -> Answer:
    headers = api.headers | {"Upload-Offset": str(offset)} | more.pop("headers", {})
    path = f"{BASE}/uploads/{upload}"
    response = api.client.generic(
        "PATCH", path, data, "application/octet-stream", headers=headers, **more
    )
    return Answer(response)


def read(artifact: dict[str, Any]) -> bytes:
    row = Artifact.objects.select_related("blob").get(pk=artifact["id"])
    with artifacts.open_content(row) as file:
        return file.read()


def hash_header(data: bytes) -> str:
    return f"sha-256=:{base64.b64encode(hashlib.sha256(data).digest()).decode()}:"


def test_pieces_become_one_artifact_and_asking_again_gives_the_same(api: Api) -> None:
    upload = begin(api, sha256=DIGEST, media_type="application/zip")
    first = send(api, upload, 0, DATA[:4000])
    assert first.expect(200)["offset"] == 4000
    assert (first.headers["Upload-Offset"], first.headers["Upload-Length"]) == ("4000", "10240")
    seen = api.client.head(f"{BASE}/uploads/{upload}", headers=api.headers)
    assert seen.headers["Upload-Offset"] == "4000"
    made = send(api, upload, 4000, DATA[4000:]).expect(200)["artifact"]
    assert (made["name"], made["sha256"], made["media_type"]) == (
        "large.bin", DIGEST, "application/zip"
    )  # fmt: skip
    assert read(made) == DATA
    late = send(api, upload, 4000, DATA[4000:])  # the answer was lost, so it is sent again
    assert late.expect_problem(409, "wrong_offset")["offset"] == len(DATA)
    assert send(api, upload, len(DATA), b"").expect(200)["artifact"] == made
    assert api.get(f"/uploads/{upload}").expect(200)["artifact"] == made
    assert AuditEntry.objects.filter(action="upload").count() == Artifact.objects.count() == 1
    assert not UploadPart.objects.exists()


def test_a_torn_piece_counts_as_far_as_it_came(api: Api) -> None:
    upload = begin(api)
    torn = send(
        api, upload, 0, b"", CONTENT_LENGTH="9000", **{"wsgi.input": io.BytesIO(DATA[:5000])}
    )
    torn.expect_problem(400, "unparsable_input", "content")
    assert api.get(f"/uploads/{upload}").expect(200)["offset"] == 5000
    assert read(send(api, upload, 5000, DATA[5000:]).expect(200)["artifact"]) == DATA


def test_a_piece_that_does_not_fit_changes_nothing(api: Api) -> None:
    upload = begin(api, 100)
    send(api, upload, 0, DATA[:60]).expect(200)
    for offset in (0, 59, 61, 100):
        assert send(api, upload, offset, b"x").headers["Upload-Offset"] == "60"
    send(api, upload, 60, b"x" * 41).expect_problem(413, "payload_too_large", "content")
    for offset in ("-1", "", "x", "9" * 30):
        send(api, upload, offset, b"x").expect_problem(400, "unparsable_input", "Upload-Offset")
    told = {"Content-Digest": hash_header(b"another")}
    send(api, upload, 60, b"x", headers=told).expect_problem(422, "content_mismatch", "content")
    assert api.get(f"/uploads/{upload}").expect(200)["offset"] == 60
    told = {"Content-Digest": f"md5=:AAAA:, {hash_header(DATA[60:100])}"}
    made = send(api, upload, 60, DATA[60:100], headers=told).expect(200)["artifact"]
    assert read(made) == DATA[:100]


def test_a_whole_that_hashes_to_something_else_is_no_artifact(api: Api) -> None:
    upload = begin(api, sha256="0" * 64)
    send(api, upload, 0, DATA).expect_problem(422, "content_mismatch", "content")
    api.get(f"/uploads/{upload}").expect_problem(404, "not_found")
    for header in ("Repr-Digest", "Content-Digest"):
        named = header.replace("-", "_")
        api.post("/artifacts?name=x", DATA, **{named: hash_header(b"x")}).expect_problem(
            422, "content_mismatch", "content"
        )
        api.post("/artifacts?name=x", DATA, **{named: "sha-256=:AAAA:"}).expect_problem(
            400, "unparsable_input", header
        )
    assert not Artifact.objects.exists()
    api.post("/artifacts?name=x", DATA, Repr_Digest=hash_header(DATA)).expect(201)


def test_what_is_announced_has_bounds(api: Api, settings: Any) -> None:
    settings.LONGWATCH_UPLOAD_BYTES = 1000
    for field, body in (
        ("size", {"size": -1}), ("size", {"size": 1001}), ("name", {"name": ""}),
        ("name", {"name": "x" * 256}), ("sha256", {"sha256": "F" * 64}),
    ):  # fmt: skip
        answer = api.post("/uploads", {"name": "x", "size": 5} | body)
        assert (answer.status in {413, 422}, answer.json["field"]) == (True, field)
    for _ in range(uploads.SLOTS):
        last = begin(api, 0)
    api.post("/uploads", {"name": "x", "size": 1}).expect_problem(429, "too_many_uploads")
    assert len(api.get("/uploads").expect(200)["items"]) == uploads.SLOTS
    assert send(api, last, 0, b"").expect(200)["artifact"]["size"] == 0  # frees its slot
    other = begin(api, 1)
    path = f"{BASE}/uploads/{other}"
    assert api.client.delete(path, headers=api.headers).status_code == 204
    begin(api, 1)


def test_an_upload_is_its_senders_alone(api: Api, login: Callable[..., Api]) -> None:
    upload = begin(api, 5)
    other = login()
    other.get(f"/uploads/{upload}").expect_problem(404, "not_found")
    send(other, upload, 0, b"12345").expect_problem(404, "not_found")
    assert other.get("/uploads").expect(200)["items"] == []
    login("read").post("/uploads", {"name": "x", "size": 1}).expect_problem(403, "not_allowed")


def test_an_upload_that_is_left_goes_and_so_do_its_pieces(api: Api, settings: Any) -> None:
    upload = begin(api)
    send(api, upload, 0, b"a piece").expect(200)
    collecting.collect_files(0)
    with blobs.open_blob(hashlib.sha256(b"a piece").hexdigest()) as file:
        assert file.read() == b"a piece", "the pieces of an open upload are kept"
    clock.offset += 25 * 3600
    try:
        api.get(f"/uploads/{upload}").expect_problem(404, "not_found")
        assert uploads.drop_expired() == 1
    finally:
        clock.offset = 0.0
    assert not Upload.objects.exists()
    collecting.collect_files(0)
    assert not Blob.objects.filter(digest=hashlib.sha256(b"a piece").hexdigest()).exists()


@pytest.mark.django_db(transaction=True)
def test_of_two_pieces_for_one_place_one_wins(transactional_db: None) -> None:
    made = uploads.begin_upload("x", 10, "token:1")
    told: list[Any] = []
    both = threading.Barrier(2)

    def send_piece(data: bytes) -> None:
        def wait() -> Any:
            both.wait(20)
            yield data

        try:
            row = uploads.find_upload(made.pk, "token:1")
            told.append(uploads.append_part(row, 0, wait()).offset)
        except uploads.WrongOffset as error:
            told.append(error)
        finally:
            connection.close()

    threads = [threading.Thread(target=send_piece, args=(data,)) for data in (b"aaaa", b"bbbbbb")]
    for one in threads:
        one.start()
    for one in threads:
        one.join(30)
    won = [one for one in told if isinstance(one, int)]
    assert len(told) == 2
    assert len(won) == 1
    assert uploads.find_upload(made.pk, "token:1").offset == won[0]
    assert UploadPart.objects.get().blob.size == won[0]
