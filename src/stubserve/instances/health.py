"""What a living stub process is seen to do, without asking it: its health word, and what the kernel counts for it."""

from __future__ import annotations

import time

import psutil
from stubserve_stub.wire import layout

_NAMES = {0: "booting", 1: "loading", 2: "idle", 3: "executing", 4: "finalizing"}


class Health:
    """One stub's. `words` is the header page of its segment."""

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
            memory = psutil.Process(self._pid).memory_info()
        except psutil.Error:
            return 0
        # `shared` is what is backed by a file: libraries, and the arena.
        return int(memory.rss - memory.shared)
