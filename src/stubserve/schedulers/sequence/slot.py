"""A place where sequences run, one after the other."""

from __future__ import annotations

from collections import deque

from stubserve.inference.request import Request
from stubserve.schedulers.base import Instance

# A sequence's id as clients give it; a number and a text are never equal.
SequenceId = int | str


class Slot:
    """One slot of an instance.

    `queue` are the requests of the sequence that has it, in order; None in their place says that the sequence is over
    without an END, and is always the last. `running` is the request that keeps the next one from running, where
    the strategy knows such a thing. `gone` says that its instance is. `number` is that of the sequence, which no other
    sequence has ever had: clients use their ids again.
    """

    __slots__ = ("gone", "index", "instance", "number", "queue", "running", "sequence")

    def __init__(self, instance: Instance, index: int) -> None:
        self.instance = instance
        self.index = index
        # The last that was given it; over or not
        self.sequence: SequenceId = 0
        self.number = 0
        self.queue: deque[Request | None] = deque()
        self.running: Request | None = None
        self.gone = False

    def __repr__(self) -> str:
        return f"<Slot {self.index} of {self.instance}: {self.sequence!r}, {len(self.queue)} queued>"
