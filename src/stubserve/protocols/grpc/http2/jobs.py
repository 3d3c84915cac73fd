"""Work that is too long for the event loop, done in threads, its results in the order in which it was asked for.

Decompressing, compressing and writing a large message take from milliseconds to seconds. What is small is done at once;
a job goes to a thread (zlib and numpy let others run meanwhile, and Python switches between threads every 5 ms), and
what was to follow it waits for its turn. Everything but the jobs themselves happens on the event loop.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Any

# Work on more bytes than this is a job.
LARGE_BYTES = 256 * 1024

Job = Callable[[], Any]
# Called with the job's result, or with the exception that it ended in; with None where there was no job, or nobody is
# left who wants its result. May return a job to be done before all others.
Then = Callable[[Any], "Job | None"]


class OrderedJobs:
    """One direction of one stream."""

    __slots__ = ("_dropped", "_running", "_waiting")

    def __init__(self) -> None:
        self._waiting: deque[tuple[Job | None, Then]] = deque()
        self._running = False
        self._dropped = False

    @property
    def busy(self) -> bool:
        return self._running or bool(self._waiting)

    def add(self, job: Job | None, then: Then) -> None:
        """Has `then` called once the job and everything before it is done; without a job with None."""
        self._waiting.append((job, then))
        if not self._running:
            self._go_on()

    def drop(self) -> None:
        """Nobody wants the results any more. Each `then` is called nevertheless: it may hold memory."""
        self._dropped = True
        if not self._running:
            self._go_on()

    def _go_on(self) -> None:
        while self._waiting and not self._running:
            self._begin(*self._waiting.popleft())

    def _begin(self, job: Job | None, then: Then) -> None:
        if job is None or self._dropped:
            job = then(None)
        if job is not None:
            self._running = True
            future = asyncio.get_running_loop().run_in_executor(None, job)
            future.add_done_callback(lambda done: self._done(done, then))

    def _done(self, future: asyncio.Future[Any], then: Then) -> None:
        self._running = False
        error = asyncio.CancelledError() if future.cancelled() else future.exception()
        made = future.result() if error is None else error
        job = then(None if self._dropped else made)
        if job is not None:
            self._begin(job, then)
        self._go_on()
