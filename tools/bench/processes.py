"""What a server's processes cost: processor time and resident memory, read from /proc."""

from __future__ import annotations

from dataclasses import dataclass

import psutil

MIB = 1 << 20


@dataclass(frozen=True)
class Memory:
    """Resident memory in MiB.

    RSS counts a page in every process that maps it. USS counts the pages that one process alone has. PSS splits a
    shared page among those that map it, so its sum over the tree counts every page once: what the machine is short of.
    """

    parent_rss: float
    stub_rss: float
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

    def memory(self) -> Memory:
        """The tree's memory now; `stub_rss` is the largest child's, 0 without children."""
        parent, *children = (process.memory_full_info() for process in self._members())
        return Memory(
            parent_rss=parent.rss / MIB,
            stub_rss=max((child.rss for child in children), default=0) / MIB,
            total_uss=sum(info.uss for info in (parent, *children)) / MIB,
            total_pss=sum(info.pss for info in (parent, *children)) / MIB,
        )
