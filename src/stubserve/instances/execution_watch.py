"""Looks now and then at what a stub executes: whether one batch takes long, too long, or whether there is none at all.

A batch that takes long is mentioned in the log. One that takes longer than the operator allows (EXECUTE_TIMEOUT_SECS)
ends the stub: its requests are answered with the reason, and it is started anew. A stub that has got no batch between
two looks is idle. One that has clients' shared memory, and a thread that stays in the handler of a bus error, hangs,
and is ended, too.

When a client makes a region of its shared memory smaller while a stub reads it, the kernel sends SIGBUS to the thread
that reads, and the stub's handler mends that (`stubserve_stub.runtime.region_window`). The handler needs the
interpreter's lock. Native code that has the lock and waits for threads of its own, one of which reads the region, keeps
it for ever: neither goes on, and nothing within the process can tell. From outside it can be told: for as long as a
handler runs, the kernel holds back its signal for that thread, which /proc shows. No thread holds back SIGBUS and lets
SIGSEGV through otherwise; those that want no signals at all hold back both.

A handler takes microseconds, and the interpreter's lock changes hands every few milliseconds where Python runs. So a
thread that is in it at two looks, a second or so apart, hangs.

Nothing is done for each batch: a look compares the number of the batch that runs with what it was at the last look. So
a batch may take an eighth more than its limit before it is ended, and a stub sleeps unwatched while it is idle.
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
from stubserve.instances.stub_process import StubProcess
from stubserve.instances.work import StubWork

log = logging.getLogger("stubserve.instances")

_MENTION_S = 30.0
_LOOK_S = 5.0
# Where a batch may hang in a bus error
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
    """The threads of a process that are in their handler of SIGBUS; none for one that is gone."""
    found = set()
    try:
        for thread in os.listdir(f"/proc/{pid}/task"):
            held_back = _held_back(f"/proc/{pid}/task/{thread}/status")
            if held_back & _BUS_ERROR and not held_back & _SEGMENTATION_FAULT:
                found.add(int(thread))
    except OSError:  # it ends just now
        return frozenset()
    return frozenset(found)


def _held_back(path: str) -> int:
    """The signals that a thread holds back, as a set of bits; none for one that is gone."""
    try:
        with open(path, "rb", buffering=0) as status:
            _, _, rest = status.read().partition(b"\nSigBlk:\t")
    except OSError:
        return 0
    return int(rest.partition(b"\n")[0] or b"0", 16)
