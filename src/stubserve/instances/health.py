"""A living stub process as it is seen from outside: its health word, and what the kernel counts for it."""

from __future__ import annotations

import resource
import time

from stubserve_stub.wire import layout

_PAGE_BYTES = resource.getpagesize()
_NAMES = {0: "booting", 1: "loading", 2: "idle", 3: "executing", 4: "finalizing"}


class Health:
    """The health of one stub. `words` is the header page of its segment."""

    def __init__(self, pid: int, words: memoryview) -> None:
        self._pid = pid
        self._words = words
        self._started = time.monotonic()

    def state(self) -> tuple[str, float]:
        """What the stub says it is doing, and for how many seconds."""
        since = self._words[layout.HEALTH_SINCE_NS]
        seconds = (time.monotonic_ns() - since) / 1e9 if since else time.monotonic() - self._started
        return _NAMES.get(self._words[layout.HEALTH_STATE], "unknown"), seconds

    def memory(self) -> int:
        """The bytes of memory that are the process's own, 0 when it is gone."""
        try:
            with open(f"/proc/{self._pid}/statm", "rb", buffering=0) as statm:
                _, resident, shared, *_ = map(int, statm.read().split())
        except (OSError, ValueError):
            return 0
        # `shared` is what is backed by a file: libraries, and the arena.
        return (resident - shared) * _PAGE_BYTES
