"""Checks now and then what a stub executes: whether one batch takes long, or too long, or whether there is none.

A batch that takes long is mentioned in the log. A batch that takes longer than the operator allows
(EXECUTE_TIMEOUT_SECS) ends the stub: its requests are answered with the reason, and it is started again. A stub without
a batch between two checks is idle. A stub with clients' shared memory is also ended if one of its threads stays in the
handler of a bus error.

When a client shrinks a region of its shared memory while a stub reads it, the kernel sends SIGBUS to the reading
thread, and the stub's handler repairs that (`stubserve_stub.runtime.region_window`). The handler needs the
interpreter's lock. Native code may hold the lock and wait for threads of its own, one of which reads the region: then
neither goes on, and no code within the process can notice. From outside it can be seen: while a handler runs, the
kernel blocks its signal for that thread, as /proc shows. No other thread blocks SIGBUS and not SIGSEGV; a thread that
wants no signals blocks both.

A handler takes microseconds, and the interpreter's lock changes hands every few milliseconds while Python runs. So a
thread that is in the handler at two checks, a second or so apart, hangs.

A batch costs nothing: a check compares the number of the running batch with that of the last check. So a batch may take
an eighth more than its limit before the stub is ended, and an idle stub is not checked.
"""

from __future__ import annotations

import asyncio
import logging
import math
import os
import signal
from collections.abc import Callable
from typing import Any

from stubserve.errors import invalid
from stubserve.instances.stub_process import SeatLine
from stubserve.instances.work import StubWork

log = logging.getLogger("stubserve.instances")

_MENTION_S = 30.0
_LOOK_S = 5.0
# The interval of the checks if a batch may hang in a bus error
_REGIONS_LOOK_S = 1.0

# The operator's limit for one `execute` of a model
PARAMETER = "EXECUTE_TIMEOUT_SECS"

_HANGS = (
    "the shared memory of a request has become smaller while it was executed, and native code of the model waits, with "
    "the interpreter's lock, for the thread that reads it"
)

_BUS_ERROR = 1 << (signal.SIGBUS - 1)
_SEGMENTATION_FAULT = 1 << (signal.SIGSEGV - 1)


class ExecutionWatch:
    """The watch over one seat of a stub. `on_idle` is called when the stub has been idle for a while.

    With `regions` the stub may get shared memory of clients.
    """

    def __init__(self, process: SeatLine, work: StubWork, regions: bool, on_idle: Callable[[], None]) -> None:
        self._on_idle = on_idle
        self._process = process
        self._work = work
        self._loop = asyncio.get_running_loop()
        self._limit_s = 0.0
        self._longest_pause_s = _REGIONS_LOOK_S if regions else _LOOK_S
        self._has_regions = regions
        # The threads that were in the handler of a bus error at the last check
        self._in_handler: frozenset[int] = frozenset()
        self._timer: asyncio.TimerHandle | None = None
        self._closed = False
        self._batches = 0
        # The running batch, since when it has been seen, and when it was mentioned
        self._number = 0
        self._since = self._mentioned = 0.0
        # The watch sleeps until there is a batch.
        work.on_batch = self._look

    def limit(self, seconds: float) -> None:
        """Sets the longest time of a batch; 0 for no limit."""
        self._limit_s = seconds

    def close(self) -> None:
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
        """Ends the stub if a thread was in the handler of a bus error at the last check, and still is."""
        before, self._in_handler = self._in_handler, threads_in_handler(self._process.pid)
        if before & self._in_handler:
            self._process.condemn(_HANGS)
            return True
        return False


def execute_timeout(config: Any, default_s: float) -> float:
    """Seconds, 0 for no limit: the model's parameter, else `default_s`. Raises ServeError INVALID_ARG."""
    if PARAMETER not in config.parameters:
        return default_s
    text = config.parameters[PARAMETER].string_value
    try:
        seconds = float(text)
    except ValueError:
        seconds = -1.0
    if not (math.isfinite(seconds) and seconds >= 0):
        raise invalid(
            f"parameter '{PARAMETER}' of model '{config.name}' must be a number of seconds, or 0 for no limit. "
            f"Got '{text}'"
        ).at("parameters", PARAMETER)
    return seconds


def threads_in_handler(pid: int) -> frozenset[int]:
    """The threads of a process that are in their SIGBUS handler; none for a process that is gone."""
    found = set()
    try:
        for thread in os.listdir(f"/proc/{pid}/task"):
            held_back = _held_back(f"/proc/{pid}/task/{thread}/status")
            if held_back & _BUS_ERROR and not held_back & _SEGMENTATION_FAULT:
                found.add(int(thread))
    except OSError:  # the process is just ending
        return frozenset()
    return frozenset(found)


def _held_back(path: str) -> int:
    """The signals that a thread blocks, as a set of bits; none for a thread that is gone."""
    try:
        with open(path, "rb", buffering=0) as status:
            _, _, rest = status.read().partition(b"\nSigBlk:\t")
    except OSError:
        return 0
    return int(rest.partition(b"\n")[0] or b"0", 16)
