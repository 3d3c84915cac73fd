"""What a server's processes cost: processor time and resident memory, read from /proc."""

from __future__ import annotations

import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import psutil

STUB = "triton_python_backend_stub"
MIB = 1 << 20


@dataclass(frozen=True)
class Memory:
    """Resident memory in MiB.

    RSS counts a page in every process that maps it. Its anonymous part (RssAnon) leaves out what is mapped from files
    and from shared memory. USS counts the pages that one process alone has. PSS splits a shared page among those that
    map it, so its sum over the tree counts every page once: what the machine is short of. The stub is the largest
    process but the first; a server without further ones has 0.
    """

    parent_rss: float
    parent_anon: float
    stub_rss: float
    stub_anon: float
    total_uss: float
    total_pss: float


class ProcessTree:
    """A server's process and all below it."""

    def __init__(self, pid: int) -> None:
        self._root = psutil.Process(pid)

    def _members(self) -> list[psutil.Process]:
        return [self._root, *self._root.children(recursive=True)]

    def cpu_seconds(self) -> float:
        """User and system time of the tree so far. The kernel counts in steps of 10 ms."""
        total = 0.0
        for process in self._members():
            times = process.cpu_times()
            total += times.user + times.system
        return total

    def parent_cpu_seconds(self) -> float:
        """As `cpu_seconds`, of the first process alone, and in steps of a nanosecond."""
        # The clock that clock_getcpuclockid(3) names for a process
        return time.clock_gettime(~self._root.pid << 3 | 2)

    def memory(self) -> Memory:
        """The tree's memory now."""
        infos = [(process.memory_full_info(), rss_anon(process.pid)) for process in self._members()]
        (parent, parent_anon), *children = infos
        stub_rss, stub_anon = max(((info.rss, anon) for info, anon in children), default=(0, 0))
        return Memory(
            parent_rss=parent.rss / MIB,
            parent_anon=parent_anon / MIB,
            stub_rss=stub_rss / MIB,
            stub_anon=stub_anon / MIB,
            total_uss=sum(info.uss for info, _ in infos) / MIB,
            total_pss=sum(info.pss for info, _ in infos) / MIB,
        )


def stubs(pid: int) -> dict[int, str]:
    """The stubs of a server's parent: their processes, with the names of their instances."""
    found = {}
    for child in psutil.Process(pid).children():
        with suppress(psutil.Error):
            words = child.cmdline()
            if STUB in words:
                found[child.pid] = words[words.index(STUB) + 1]
    return found


def rss_anon(pid: int) -> int:
    """Bytes of anonymous resident memory of a process. psutil has no name for it."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("RssAnon:"):
            return int(line.split()[1]) * 1024
    return 0
