"""A file in /dev/shm that servers of one setup can be told of."""

from __future__ import annotations

import contextlib
import struct
from collections.abc import Iterator
from pathlib import Path

SHARED_KEY = "/stubserve_conformance"
_PATH = Path("/dev/shm" + SHARED_KEY)


@contextlib.contextmanager
def shared_file() -> Iterator[None]:
    """While it is open there is one: a page that begins with 1, 2, 3 and 4 as FP32."""
    _PATH.write_bytes(struct.pack("<4f", 1, 2, 3, 4).ljust(4096, b"\0"))
    try:
        yield
    finally:
        _PATH.unlink(missing_ok=True)
