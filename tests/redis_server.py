"""A Redis server for tests: the real one, as a process of its own."""

from __future__ import annotations

import contextlib
import shutil
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tools.ports import free_ports


class RedisServer:
    """On a free port of this machine. What it keeps is gone when it stops."""

    def __init__(self, folder: Path, *options: str, tls: bool = False) -> None:
        (self.port,) = free_ports(1)
        ports = ("--port", "0", "--tls-port", str(self.port)) if tls else ("--port", str(self.port))
        program = shutil.which("redis-server")
        if program is None:
            pytest.skip("there is no redis-server")
        self._command = [program, "--bind", "127.0.0.1", *ports, "--save", "", "--dir", str(folder), *options]
        self.start()

    def start(self) -> None:
        self.process = subprocess.Popen(self._command, stdout=subprocess.PIPE, text=True)
        assert self.process.stdout is not None
        for line in self.process.stdout:
            if "Ready to accept connections" in line:
                break
        else:
            raise AssertionError("redis-server did not start")
        self._reader = threading.Thread(target=self.process.stdout.read, daemon=True)
        self._reader.start()

    def stop(self) -> None:
        self.process.terminate()
        self.process.wait()
        self._reader.join(10)
        assert self.process.stdout is not None
        self.process.stdout.close()

    @property
    def hits(self) -> int:
        """How many answers were found, since it was last started."""
        with self.client() as client:
            return int(client.info("stats")["keyspace_hits"])

    def client(self, **options: Any) -> Any:
        redis = pytest.importorskip("redis")
        return contextlib.closing(redis.Redis("127.0.0.1", self.port, **options))


@contextlib.contextmanager
def redis_server(folder: Path, *options: str, tls: bool = False) -> Iterator[RedisServer]:
    server = RedisServer(folder, *options, tls=tls)
    try:
        yield server
    finally:
        server.stop()
