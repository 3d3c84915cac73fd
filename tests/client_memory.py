"""Shared memory of a client, for tests."""

from __future__ import annotations

import mmap
import os
import uuid
from types import TracebackType
from typing import Any

import numpy as np


class SharedFile:
    """A file in /dev/shm with a name of its own, as a context manager; `key` is what it is registered under."""

    def __init__(self, content: np.ndarray | bytes | int) -> None:
        data = bytes(content) if isinstance(content, int) else memoryview(content).cast("B")
        self.name = f"region-of-a-test-{uuid.uuid4().hex}"
        self.key = "/" + self.name
        self.path = "/dev/shm/" + self.name
        self.nbytes = len(data)
        self.descriptor = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
        os.pwrite(self.descriptor, data, 0)

    def __enter__(self) -> SharedFile:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        os.close(self.descriptor)
        if os.path.lexists(self.path):
            os.unlink(self.path)

    def array(self, dtype: Any = np.float32) -> np.ndarray:
        """What is in it, as a copy."""
        return np.frombuffer(os.pread(self.descriptor, self.nbytes, 0), dtype)

    def put(self, content: np.ndarray) -> None:
        os.pwrite(self.descriptor, content.tobytes(), 0)

    def shrink(self, nbytes: int) -> None:
        os.ftruncate(self.descriptor, nbytes)


PAGE = mmap.PAGESIZE
