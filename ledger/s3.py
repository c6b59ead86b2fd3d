"""Blobs in a bucket, through django-storages: `LONGWATCH_ARTIFACTS=s3://bucket/prefix`.

A key is written once and never again: `d[:2]/d.ID` for the digest `d`, so bytes that are stored
anew lie under a name that no collector has seen. (S3 deletes by name, and has no rename: a delete
that is under way would take bytes with it that came after the look.) What is read is the newest
key of a digest, found by listing. No thread of ours or of boto's: a worker forks.
"""

from __future__ import annotations

import datetime as dt
import functools
import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager
from email.utils import parsedate_to_datetime
from typing import Any, NamedTuple
from urllib.parse import parse_qsl, urlsplit

from django.core.exceptions import ImproperlyConfigured
from django.core.files import File
from django.core.files.base import ContentFile

from ledger.errors import StoreUnavailable
from ledger.ids import make_id
from ledger.stores import PROBE, Stored, explain_spool_error, name_blob, spool_unnamed

try:
    from boto3.exceptions import Boto3Error
    from boto3.s3.transfer import TransferConfig
    from botocore.config import Config
    from botocore.exceptions import BotoCoreError, ClientError, ConnectionError, HTTPClientError
    from storages.backends.s3 import S3Storage
    from urllib3.exceptions import HTTPError
except ImportError as error:
    raise ImproperlyConfigured(
        "LONGWATCH_ARTIFACTS is an S3 address, and the packages for it are missing: "
        "`pip install longwatch[s3]`."
    ) from error

PART = 8 << 20
"""Bytes of one part of a large upload; what an upload holds in memory."""
CONNECT_SECONDS = 5
READ_SECONDS = 60
"""A service is silent for a while when it puts the parts of a large upload together."""
TRIES = 3
"""Of one request; and of a download that breaks off, each going on where the last one ended."""

log = logging.getLogger(__name__)

_OPTIONS = {"endpoint_url": "endpoint_url", "region": "region_name"}

REFUSED = (
    "refuses our credentials",
    "Give web and workers some that may use it (AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, a "
    "profile or a role); docs/operating.md has the policy.",
)
SILENT = ("does not answer", "See to the network, the endpoint_url and that service.")
_TROUBLES = {
    "NoSuchBucket": ("does not exist", "Make the bucket, or mend LONGWATCH_ARTIFACTS."),
    "PermanentRedirect": ("is elsewhere", "Give its region: LONGWATCH_ARTIFACTS=s3://…?region=…"),
    "AuthorizationHeaderMalformed": (
        "is elsewhere", "Give its region: LONGWATCH_ARTIFACTS=s3://…?region=…"),
    "QuotaExceeded": ("is full", "Raise its quota."),
    "XMinioStorageFull": ("is full", "Give that service more disk."),
    "507": ("is full", "Give that service more disk."),
    "403": REFUSED, "401": REFUSED, "AccessDenied": REFUSED, "ExpiredToken": REFUSED,
}  # fmt: skip


class Key(NamedTuple):
    """One object of ours in the bucket."""

    name: str
    digest: str
    size: int
    modified: dt.datetime


class Download:
    """The bytes of an object, read on where they break off."""

    def __init__(self, store: DurableObjects, key: Key) -> None:
        self.store, self.key, self.here, self.left = store, key, 0, TRIES
        self.body = self._open()

    def _open(self) -> Any:
        span = {"Range": f"bytes={self.here}-"} if self.here else {}
        return self.store.client.get_object(
            Bucket=self.store.bucket_name, Key=self.key.name, **span
        )["Body"]

    def read(self, size: int) -> bytes:
        """The next bytes, at most `size`; none at the end."""
        while self.here < self.key.size:
            try:
                if chunk := self.body.read(size):
                    self.here += len(chunk)
                    return bytes(chunk)
            except (BotoCoreError, HTTPError) as error:
                log.warning("%s broke off at %s: %s", self.key.name, self.here, error)
            self.left -= 1
            if not self.left:
                raise StoreUnavailable(self.store.place, *SILENT)
            self.body.close()
            self.body = self._open()
        return b""

    def close(self) -> None:
        """Let the connection go."""
        self.body.close()


class DurableObjects(S3Storage):  # type: ignore[misc]  # django-storages has no types
    """The objects below one prefix of a bucket, private and named by their digests."""

    def __init__(self, bucket: str, prefix: str, **options: Any) -> None:
        self.place = f"s3://{bucket}/{prefix}".rstrip("/")
        super().__init__(
            # All that a project may have set for its own buckets is said anew here.
            bucket_name=bucket, location=prefix, default_acl=None, object_parameters={},
            gzip=False, custom_domain=None, cloudfront_signer=None, file_overwrite=True,
            endpoint_url=None, region_name=None, access_key=None, secret_key=None,
            security_token=None, session_profile=None,
            client_config=Config(
                connect_timeout=CONNECT_SECONDS, read_timeout=READ_SECONDS, tcp_keepalive=True,
                retries={"mode": "standard", "total_max_attempts": TRIES},
                s3={"addressing_style": "path" if options.get("endpoint_url") else "auto"},
            ),
            transfer_config=TransferConfig(
                multipart_threshold=PART, multipart_chunksize=PART, use_threads=False
            ),
        )  # fmt: skip
        self.endpoint_url = options.get("endpoint_url")
        self.region_name = options.get("region_name")

    @property
    def client(self) -> Any:
        """One for all threads of the process: boto's clients may be shared."""
        return self.bucket.meta.client

    @contextmanager
    def naming_trouble(self) -> Iterator[None]:
        """Errors of S3 and of the way there become StoreUnavailable."""
        try:
            yield
        except (ClientError, BotoCoreError, Boto3Error) as error:
            raise self._explain(error) from error
        except FileNotFoundError:
            raise
        except OSError as error:
            raise explain_spool_error(error) from error

    def _explain(self, error: Exception) -> StoreUnavailable:
        # An upload's error holds the one that it was made of.
        while not isinstance(error, ClientError) and isinstance(error.__context__, ClientError):
            error = error.__context__
        if isinstance(error, ClientError):
            answer = error.response
            code = str(answer.get("Error", {}).get("Code", ""))
            status = str(answer.get("ResponseMetadata", {}).get("HTTPStatusCode", ""))
            found = _TROUBLES.get(code) or _TROUBLES.get(status)
            return StoreUnavailable(
                self.place, *(found or (f"answers {code or status}", SILENT[1]))
            )
        if "Credentials" in type(error).__name__:
            return StoreUnavailable(self.place, *REFUSED)
        if isinstance(error, (ConnectionError, HTTPClientError, Boto3Error)):
            return StoreUnavailable(self.place, *SILENT)
        return StoreUnavailable(self.place, f"fails: {type(error).__name__}", SILENT[1])

    def spool(self) -> Any:
        """On disk, until the bucket has it."""
        return spool_unnamed()

    def keep_spooled(self, spooled: Any, stored: Stored, *, anew: bool = False) -> None:
        """Upload, in parts when large: the object appears with the last word, or not at all. S3
        checks each part by a checksum that boto sends; the size of the whole is looked at here."""
        name = f"{name_blob(stored.digest)}.{make_id().hex}"
        with self.naming_trouble():
            self.save(name, File(spooled, name))
            if stored.size >= PART and (found := self.size(name)) != stored.size:
                self.delete(name)
                what = f"kept {found} of {stored.size} bytes"
                raise StoreUnavailable(self.place, what, "See to that service.")

    def settle_kept(self) -> None:
        """S3 answers when it is."""

    def fetch(self, digest: str) -> Download:
        """The newest object of the digest that is there."""
        with self.naming_trouble():
            return self._fetch(digest)

    def _fetch(self, digest: str) -> Download:
        for _ in range(TRIES):
            found = list(self.list_keys(digest))
            for key in sorted(found, key=lambda key: (key.modified, key.name), reverse=True):
                try:
                    return Download(self, key)
                except ClientError as error:  # removed since: there is a newer one, listed or not
                    if error.response.get("Error", {}).get("Code") not in {"NoSuchKey", "404"}:
                        raise
            if not found:
                break
        raise FileNotFoundError(digest)

    def probe(self) -> None:
        """An object of another name than any blob's."""
        with self.naming_trouble():
            name = self.save(f"probe.{make_id().hex}", ContentFile(PROBE))
            try:
                self.client.get_object(Bucket=self.bucket_name, Key=self._normalize_name(name))[
                    "Body"
                ].read()
                next(self.list_keys(), None)
            finally:
                self.delete(name)

    # --- For the collector ------------------------------------------------------------------------

    def list_keys(self, digest: str = "") -> Iterator[Key]:
        """Our objects, or those of one digest, as the bucket lists them."""
        below = f"{self.location}/" if self.location else ""
        prefix = below + (f"{name_blob(digest)}." if digest else "")
        pages = self.client.get_paginator("list_objects_v2")
        for page in pages.paginate(Bucket=self.bucket_name, Prefix=prefix):
            for one in page.get("Contents", ()):
                found, dot, _ = one["Key"].removeprefix(below)[3:].partition(".")
                if dot and len(found) == 64:  # what else lies there is not ours
                    yield Key(one["Key"], found, one["Size"], one["LastModified"])

    def remove_key(self, name: str) -> None:
        """Delete an object, by its whole name."""
        self.client.delete_object(Bucket=self.bucket_name, Key=name)

    def abort_uploads(self, oldest: dt.datetime) -> int:
        """End uploads in parts that were begun before `oldest`; returns how many."""
        below = f"{self.location}/" if self.location else ""
        pages = self.client.get_paginator("list_multipart_uploads")
        count = 0
        for page in pages.paginate(Bucket=self.bucket_name, Prefix=below):
            for one in page.get("Uploads", ()):
                if one["Initiated"] < oldest:
                    self.client.abort_multipart_upload(
                        Bucket=self.bucket_name, Key=one["Key"], UploadId=one["UploadId"]
                    )
                    count += 1
        return count

    def read_time(self) -> dt.datetime:
        """The time of the service, by which it dates its objects."""
        with self.naming_trouble():
            answer = self.client.list_objects_v2(Bucket=self.bucket_name, MaxKeys=1)
        return parsedate_to_datetime(answer["ResponseMetadata"]["HTTPHeaders"]["date"])


def open_bucket(location: str) -> DurableObjects:
    """The bucket that an address names, in this process. Raises ImproperlyConfigured."""
    return _open(os.getpid(), location)


@functools.lru_cache(maxsize=4)
def _open(pid: int, location: str) -> DurableObjects:
    return DurableObjects(**parse_location(location))


def parse_location(location: str) -> dict[str, Any]:
    """`s3://bucket/prefix?endpoint_url=…&region=…` in parts. Raises ImproperlyConfigured, which
    never repeats the address: somebody may have put a key into it."""
    form = "LONGWATCH_ARTIFACTS takes a folder or s3://BUCKET/PREFIX?endpoint_url=…&region=…"
    parts = urlsplit(location)
    if parts.scheme != "s3" or not parts.netloc:
        raise ImproperlyConfigured(f"{form}; {parts.scheme}:// is no store that it knows.")
    if "@" in parts.netloc or ":" in parts.netloc:
        raise ImproperlyConfigured(
            f"{form}, without credentials: those belong into AWS_ACCESS_KEY_ID and "
            "AWS_SECRET_ACCESS_KEY, a profile or a role."
        )
    given = dict(parse_qsl(parts.query, keep_blank_values=True))
    if unknown := given.keys() - _OPTIONS.keys():
        raise ImproperlyConfigured(f"{form}; it knows no {', '.join(sorted(unknown))}.")
    options = {_OPTIONS[name]: value for name, value in given.items() if value}
    return {"bucket": parts.netloc, "prefix": parts.path.strip("/"), **options}
