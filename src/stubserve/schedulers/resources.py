"""The books of the rate limiter: resources, the instances that ask for them, and their lines (see `rate_limiter`)."""

from __future__ import annotations

from collections.abc import Callable, Hashable

# Name, whether all devices share it, how much
Demand = tuple[str, bool, int]

# Where an instance stands
IDLE, WAITING, HOLDING = range(3)


class Pool:
    """One resource: on one device, or shared. `free` may be below zero when less of it is there than was given out."""

    def __init__(self, key: tuple[str, int | None]) -> None:
        self.key = key
        self.total = 0
        self.free = 0
        # The instances that ask for it, and how much each asks for
        self.askers: dict[Limited, int] = {}
        # The lines that wait for it, and how many instances are in them
        self.lines: list[Line] = []
        self.waiting = 0
        # The tag of the instance that was let in last
        self.tag = 0


class Line:
    """Instances that wait for the same, the lowest tag first: (tag, number, instance). Some have gone meanwhile."""

    def __init__(self, needs: tuple[tuple[Pool, int], ...]) -> None:
        self.needs = needs
        self.heap: list[tuple[int, int, Limited]] = []


class Limited:
    """An instance that asks for resources. `let_in` is called when it holds them without having got them at once."""

    def __init__(self, instance: Hashable, let_in: Callable[[Limited], None], priority: int) -> None:
        self.instance = instance
        self.let_in = let_in
        self.priority = priority or 1
        self.needs: tuple[tuple[Pool, int], ...] = ()
        self.line: Line | None = None
        self.state = IDLE
        # What it has had, and from which tag on it runs now
        self.tag = 0
        self.since = 0
        # Whether it has executed, or begun to, since it has its resources
        self.ran = False
        # Which place in its line is its own
        self.number = 0

    @property
    def holds(self) -> bool:
        """Whether it has its resources."""
        return self.state == HOLDING
