"""An alarm with microseconds, for queue delays.

The event loop's own timers count milliseconds; a batcher that waits at most 100 µs needs better. The loop watches a
timerfd. Python has its own calls for that from 3.13 on; before, the C library is called directly.
"""

# Compiled by mypyc.
from __future__ import annotations

import asyncio
import ctypes
import os
import struct
import time
from collections.abc import Callable

_ABSOLUTE = 1  # TFD_TIMER_ABSTIME
_NONBLOCK_CLOEXEC = os.O_NONBLOCK | os.O_CLOEXEC
_SPEC = struct.Struct("@qqqq")

_libc = ctypes.CDLL(None, use_errno=True)


class Alarm:
    """Calls `callback` on the event loop at the time it is set to (CLOCK_MONOTONIC, ns); setting it again moves it."""

    def __init__(self, callback: Callable[[], None]) -> None:
        self._callback = callback
        self._loop = asyncio.get_running_loop()
        self._at_ns: int | None = None
        self._fd: int = _libc.timerfd_create(time.CLOCK_MONOTONIC, _NONBLOCK_CLOEXEC)
        if self._fd < 0:
            raise OSError(ctypes.get_errno(), "timerfd_create failed")
        self._loop.add_reader(self._fd, self._ring)

    def set(self, at_ns: int | None) -> None:
        """Rings at `at_ns` (at once if that is past), or not at all for None."""
        if at_ns == self._at_ns:
            return
        self._at_ns = at_ns
        seconds, nanoseconds = divmod(at_ns, 1_000_000_000) if at_ns is not None else (0, 0)
        _libc.timerfd_settime(self._fd, _ABSOLUTE, _SPEC.pack(0, 0, seconds, nanoseconds), None)

    def close(self) -> None:
        self._loop.remove_reader(self._fd)
        os.close(self._fd)

    def _ring(self) -> None:
        try:
            os.read(self._fd, 8)
        except BlockingIOError:
            return
        self._at_ns = None
        self._callback()
