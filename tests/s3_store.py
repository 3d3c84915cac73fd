"""An S3 store for tests: moto's server as a process of its own, and what puts models into it."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from types import TracebackType
from typing import Any

import pytest

from tools.ports import free_ports

KEYS = {"AWS_ACCESS_KEY_ID": "tester", "AWS_SECRET_ACCESS_KEY": "secret", "AWS_DEFAULT_REGION": "us-east-1"}


class S3Store:
    """moto's server, as a context manager; it counts what is asked of it by reading its log.

    With `open_for` it wants credentials after so many requests, and knows of none.
    """

    def __init__(self, open_for: int | None = None) -> None:
        self._variables = {} if open_for is None else {"INITIAL_NO_AUTH_ACTION_COUNT": str(open_for)}

    def __enter__(self) -> S3Store:
        pytest.importorskip("moto.server", exc_type=ImportError)
        (self.port,) = free_ports(1)
        self._log = tempfile.TemporaryFile()
        self._start()
        return self

    def restart(self) -> None:
        """Ends it and starts it again, without anything in it."""
        self.process.kill()
        self.process.wait()
        self._start()

    def _start(self) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-W", "ignore", "-m", "moto.server", "-H", "127.0.0.1", "-p", str(self.port)],
            stdout=self._log,
            stderr=subprocess.STDOUT,
            env={**os.environ, **KEYS, **self._variables},
        )
        deadline = time.monotonic() + 60
        while True:
            try:
                socket.create_connection(("127.0.0.1", self.port), 1).close()
                return
            except OSError:
                assert time.monotonic() < deadline, self.log()
                assert self.process.poll() is None, self.log()
                time.sleep(0.05)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.process.kill()
        self.process.wait()
        self._log.close()

    def address(self, path: str) -> str:
        return f"s3://http://127.0.0.1:{self.port}/{path}"

    def log(self) -> str:
        self._log.seek(0)
        return self._log.read().decode(errors="replace")

    def gets(self, name: str) -> int:
        """How often an object was fetched."""
        return sum('"GET /' in line and name in line and "list-type" not in line for line in self.log().splitlines())

    def client(self) -> Any:
        import botocore.session

        session = botocore.session.get_session()
        return session.create_client(
            "s3",
            endpoint_url=f"http://127.0.0.1:{self.port}",
            region_name="us-east-1",
            aws_access_key_id=KEYS["AWS_ACCESS_KEY_ID"],
            aws_secret_access_key=KEYS["AWS_SECRET_ACCESS_KEY"],
        )

    def make_bucket(self, name: str) -> None:
        self.client().create_bucket(Bucket=name)

    def put(self, bucket: str, key: str, content: bytes) -> None:
        self.client().put_object(Bucket=bucket, Key=key, Body=content)

    def put_folder(self, bucket: str, key: str, folder: Path) -> None:
        for path in sorted(folder.rglob("*")):
            if path.is_file() and "__pycache__" not in path.parts:
                self.put(bucket, f"{key}/{path.relative_to(folder)}", path.read_bytes())

    def delete(self, bucket: str, prefix: str) -> None:
        client = self.client()
        for entry in client.list_objects_v2(Bucket=bucket, Prefix=prefix).get("Contents", ()):
            client.delete_object(Bucket=bucket, Key=entry["Key"])
