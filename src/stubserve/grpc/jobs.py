"""Work that is too long for the event loop to do at once, its results in the order in which it was asked for.

Decompressing, compressing, reading and writing a large message take from milliseconds to seconds. What is small is done
at once; what is large comes in steps, which `protocols.offload` does beside everything else, and what was to follow it
waits for its turn.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Any

from stubserve.connections.offload import Offload
from stubserve.inference.long_work import LongWork

# Called once with the work's result, or with the exception that it ended in; with None where there was no work, or
# nobody is left who wants its result.
Then = Callable[[Any], None]


class OrderedJobs:
    """One direction of one stream."""

    __slots__ = ("_dropped", "_offload", "_task", "_waiting")

    def __init__(self, offload: Offload) -> None:
        self._offload = offload
        self._waiting: deque[tuple[LongWork[Any] | None, Then]] = deque()
        self._task: asyncio.Task[Any] | None = None
        self._dropped = False

    @property
    def busy(self) -> bool:
        return self._task is not None or bool(self._waiting)

    def add(self, steps: LongWork[Any] | None, then: Then) -> None:
        """Has `then` called once the work and everything before it is done."""
        self._waiting.append((steps, then))
        self._go_on()

    def drop(self) -> None:
        """Nobody wants the results any more. Each `then` is called nevertheless: it may hold memory."""
        self._dropped = True
        if self._task is not None:
            self._task.cancel()
        self._go_on()

    def _go_on(self) -> None:
        while self._waiting and self._task is None:
            steps, then = self._waiting.popleft()
            if steps is None or self._dropped:
                then(None)
                continue
            self._task = asyncio.get_running_loop().create_task(self._offload.run(steps))
            self._task.add_done_callback(lambda task, then=then: self._done(task, then))  # type: ignore[misc]

    def _done(self, task: asyncio.Task[Any], then: Then) -> None:
        self._task = None
        if task.cancelled():
            then(None)
        else:
            error = task.exception()
            made = task.result() if error is None else error
            then(None if self._dropped else made)
        self._go_on()
