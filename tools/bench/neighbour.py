"""A neighbour of the servers: a process that walks through memory, so that their code and data leave the caches.

`python -m tools.bench.neighbour` is that process. It reads 64 MiB in random order for a millisecond, and rests as long.
So it takes half of a core, and nearly all of the machine's last cache. A machine of others' is about like that.
"""

from __future__ import annotations

import subprocess
import sys
import time
from types import TracebackType

import numpy as np

_BYTES = 64 << 20
_LINE = 64
_WALK_S = 0.001


class Neighbour:
    """The process, as a context manager; without `wanted` there is none."""

    def __init__(self, wanted: bool) -> None:
        self._wanted = wanted
        self._process: subprocess.Popen[str] | None = None

    def __enter__(self) -> Neighbour:
        if self._wanted:
            command = [sys.executable, "-m", __name__]
            self._process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
            assert self._process.stdout is not None
            self._process.stdout.readline()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.communicate()


def walk() -> None:
    """Walks for ever; says so when it begins."""
    lines = _BYTES // _LINE
    memory = np.zeros(_BYTES, np.uint8)
    order = np.random.default_rng(1).permutation(lines) * _LINE
    steps = 4096
    print("walking", flush=True)
    at = 0
    while True:
        until = time.perf_counter() + _WALK_S
        while time.perf_counter() < until:
            memory[order[at : at + steps]] += 1
            at = (at + steps) % lines
        time.sleep(_WALK_S)


if __name__ == "__main__":
    walk()
