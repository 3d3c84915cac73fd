"""Files that may be exchanged while the server runs: tokens, certificates.

They are looked at when they are needed, at most once in LOOK_S: a look is a system call per file (2 µs), and an idle
server does not wake up for it. A look compares the file's identity (device and inode), size and time of change, through
links. So an exchanged link is seen as well; Kubernetes changes mounted secrets in that way.
"""

# Compiled by mypyc.
from __future__ import annotations

import os
from collections.abc import Sequence
from time import monotonic

LOOK_S = 1.0

_Look = tuple[int, ...] | None


class ChangingFiles:
    """Some files that belong together. A missing file counts as a state of its own: it may come."""

    def __init__(self, paths: Sequence[str]) -> None:
        self._paths = paths
        self._seen = self._look()
        self._next_look = monotonic() + LOOK_S

    def changed(self) -> bool:
        """Whether a file has changed since the last look; False without a look if the last was just now."""
        now = monotonic()
        if now < self._next_look:
            return False
        self._next_look = now + LOOK_S
        seen = self._look()
        if seen == self._seen:
            return False
        self._seen = seen
        return True

    def _look(self) -> list[_Look]:
        return list(map(_look, self._paths))


def _look(path: str) -> _Look:
    try:
        found = os.stat(path)
    except OSError:
        return None
    return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns
