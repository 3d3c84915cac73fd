"""The records of the rate limiter: resources, the instances that ask for them, and their lines (see `rate_limiter`)."""

from __future__ import annotations

from collections.abc import Callable, Hashable

# Name, whether all devices share it, how much
Demand = tuple[str, bool, int]

IDLE, WAITING, HOLDING = range(3)


class Pool:
    """One resource: on one device, or shared. `free` is below zero if more is given out than there is now."""

    def __init__(self, key: tuple[str, int | None]) -> None:
        self.key = key
        self.total = 0
        self.free = 0
        # The instances that ask for it, each with its amount
        self.askers: dict[Limited, int] = {}
        # The lines that wait for the resource, and how many instances are in them
        self.lines: list[Line] = []
        self.waiting = 0
        # The tag of the instance that was let in last
        self.tag = 0


class Line:
    """Instances that wait for the same, the lowest tag first: (tag, number, instance). Some may have left meanwhile."""

    def __init__(self, needs: tuple[tuple[Pool, int], ...]) -> None:
        self.needs = needs
        self.heap: list[tuple[int, int, Limited]] = []


class Limited:
    """An instance that asks for resources. `let_in` is called when it gets resources that it had to wait for."""

    def __init__(self, instance: Hashable, let_in: Callable[[Limited], None], priority: int) -> None:
        self.instance = instance
        self.let_in = let_in
        self.priority = priority or 1
        self.needs: tuple[tuple[Pool, int], ...] = ()
        self.line: Line | None = None
        self.state = IDLE
        # What it has had, and the tag at which its present run began
        self.tag = 0
        self.since = 0
        # Whether it has begun to execute since it got its resources
        self.ran = False
        # Its own place in its line
        self.number = 0

    @property
    def holds(self) -> bool:
        return self.state == HOLDING
