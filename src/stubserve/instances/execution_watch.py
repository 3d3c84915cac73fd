"""Looks now and then at what a stub executes: whether one batch takes long, too long, or whether there is none at all.

A batch that takes long is mentioned in the log. One that takes longer than the operator allows (EXECUTE_TIMEOUT_SECS,
see `time_limit`) ends the stub: its requests are answered with the reason, and it is started anew. A stub that has got
no batch between two looks is idle. One that has clients' shared memory, and a thread that stays in the handler of a
bus error, hangs (`bus_errors`), and is ended, too.

Nothing is done for each batch: a look compares the number of the batch that runs with what it was at the last look. So
a batch may take an eighth more than its limit before it is ended, and a stub sleeps unwatched while it is idle.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from stubserve.instances import bus_errors
from stubserve.instances.stub_process import StubProcess
from stubserve.instances.time_limit import PARAMETER
from stubserve.instances.work import StubWork

log = logging.getLogger("stubserve.instances")

_MENTION_S = 30.0
_LOOK_S = 5.0
# Where a batch may hang in a bus error
_REGIONS_LOOK_S = 1.0


class ExecutionWatch:
    """The watch over one stub. `on_idle` is called when the stub has had nothing to do for a while.

    With `regions` it may be given shared memory of clients.
    """

    def __init__(self, process: StubProcess, work: StubWork, regions: bool, on_idle: Callable[[], None]) -> None:
        self._on_idle = on_idle
        self._process = process
        self._work = work
        self._loop = asyncio.get_running_loop()
        self._limit_s = 0.0
        self._longest_pause_s = _REGIONS_LOOK_S if regions else _LOOK_S
        self._has_regions = regions
        # The threads that were in the handler of a bus error at the last look
        self._in_handler: frozenset[int] = frozenset()
        self._timer: asyncio.TimerHandle | None = None
        self._closed = False
        self._batches = 0
        # The batch that runs, since when it has been seen to, and when it was mentioned
        self._number = 0
        self._since = self._mentioned = 0.0
        # It sleeps until there is a batch.
        work.on_batch = self._look

    def limit(self, seconds: float) -> None:
        """No batch may take longer from now on; 0 for no limit."""
        self._limit_s = seconds

    def close(self) -> None:
        """The stub is gone."""
        self._closed = True
        if self._timer is not None:
            self._timer.cancel()

    def _look(self) -> None:
        self._timer = None
        work = self._work
        work.on_batch = self._look
        running, batches = work.running, work.batches
        if self._closed:
            return
        if running is None and batches == self._batches:
            self._on_idle()
            if not self._has_regions or work.is_empty or self._ends_hanging():
                return
        self._batches = batches
        if running is not None:
            self._compare(*running)
        pause = self._longest_pause_s
        if self._limit_s:
            pause = min(self._limit_s / 8, pause)
        self._timer = self._loop.call_later(pause, self._look)
        work.on_batch = None

    def _compare(self, number: int, requests: int) -> None:
        now = self._loop.time()
        if number != self._number:
            self._number, self._since, self._mentioned = number, now, now
            self._in_handler = frozenset()
            return
        if self._has_regions and self._ends_hanging():
            return
        seconds = now - self._since
        if self._limit_s and seconds >= self._limit_s:
            self._process.condemn(
                f"it has been executing a batch of {requests} requests for longer than the {self._limit_s:g} s that "
                f"{PARAMETER} allows"
            )
        elif now - self._mentioned >= _MENTION_S:
            self._mentioned = now
            log.warning(
                "stub '%s' has been executing a batch of %d requests for %.0f s; 'py-spy dump --pid %d' shows where",
                self._process.name, requests, seconds, self._process.pid,
            )  # fmt: skip

    def _ends_hanging(self) -> bool:
        """Ends the stub if a thread of it has been in the handler of a bus error at the last look, and still is."""
        before, self._in_handler = self._in_handler, bus_errors.threads_in_handler(self._process.pid)
        if before & self._in_handler:
            self._process.condemn(bus_errors.CAUSE)
            return True
        return False
