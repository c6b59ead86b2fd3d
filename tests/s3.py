"""An S3 service of the test's own, as a process on loopback, that can be stopped and killed."""

from __future__ import annotations

import contextlib
import os
import select
import socket
import subprocess
import sys
import threading
import time
import urllib.request
from pathlib import Path
from typing import Any

import boto3
from botocore.config import Config

BUCKET = "blobs"
KEYS = {"AWS_ACCESS_KEY_ID": "test-key", "AWS_SECRET_ACCESS_KEY": "test-secret",
        "AWS_DEFAULT_REGION": "us-east-1", "AWS_EC2_METADATA_DISABLED": "true"}  # fmt: skip


class Service:
    """moto's server. What it holds is lost when it is stopped; `pause` keeps it."""

    def __init__(self, folder: Path) -> None:
        self.log = folder / "s3.log"
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port = probe.getsockname()[1]
        self.url = f"http://127.0.0.1:{self.port}"
        self.process: subprocess.Popen[bytes] | None = None

    def start(self, **environment: str) -> Service:
        """Listening when this returns, with an empty bucket."""
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(self.port)],
                stdout=log, stderr=log, env=os.environ | KEYS | environment,
            )  # fmt: skip
        until = time.monotonic() + 60
        while True:
            try:
                urllib.request.urlopen(f"{self.url}/moto-api/", timeout=5).close()
                break
            except OSError:
                assert self.process.poll() is None, self.log.read_text()
                assert time.monotonic() < until, "the S3 service does not come up"
                time.sleep(0.05)
        if not environment:
            self.client().create_bucket(Bucket=BUCKET)
        return self

    def stop(self) -> None:
        """Gone at once."""
        if self.process is not None:
            self.process.kill()
            self.process.wait()
            self.process = None

    def client(self, **keys: str) -> Any:
        """A client of the test's own."""
        keys = keys or {"aws_access_key_id": "test-key", "aws_secret_access_key": "test-secret"}
        return boto3.client(
            "s3", endpoint_url=self.url, region_name="us-east-1", **keys,
            config=Config(s3={"addressing_style": "path"}, retries={"total_max_attempts": 1}),
        )  # fmt: skip

    def locate(self, prefix: str = "") -> str:
        """For LONGWATCH_ARTIFACTS."""
        return f"s3://{BUCKET}/{prefix}?endpoint_url={self.url}&region=us-east-1"

    def list_names(self, prefix: str = "") -> list[str]:
        """The keys in the bucket."""
        found = self.client().list_objects_v2(Bucket=BUCKET, Prefix=prefix)
        return [one["Key"] for one in found.get("Contents", ())]


class Cutter:
    """A line to the service that breaks off each answer after so many bytes."""

    def __init__(self, port: int, after: int) -> None:
        self.there, self.after, self.cuts = port, after, 0
        self.socket = socket.create_server(("127.0.0.1", 0))
        self.port = self.socket.getsockname()[1]
        self.thread = threading.Thread(target=self._serve, daemon=True)

    def __enter__(self) -> Cutter:
        self.thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.socket.shutdown(socket.SHUT_RDWR)
        self.socket.close()
        self.thread.join(10)

    def _serve(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                here, _ = self.socket.accept()
                with here, socket.create_connection(("127.0.0.1", self.there)) as there:
                    self._carry(here, there)

    def _carry(self, here: socket.socket, there: socket.socket) -> None:
        passed = 0
        while True:
            for one in select.select([here, there], [], [])[0]:
                data = one.recv(1 << 16)
                if not data:
                    return
                (there if one is here else here).sendall(data)
                passed += len(data) if one is there else 0
                if passed > self.after:
                    self.cuts += 1
                    return
