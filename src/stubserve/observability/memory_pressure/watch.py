"""Shortage of memory, reported in time by the kernel's pressure stall information.

The kernel sends an event when processes have waited for memory for STALL_US within WINDOW_US: pages are read again that
were thrown away, or written out. That is before the OOM killer comes, and costs nothing until it happens. The file of
the process's own group is watched if there is one (cgroup v2), else the machine's file.

For PRESSED_S after an event memory counts as short. The log says so once a minute; others decide the rest.
"""

from __future__ import annotations

import asyncio
import logging
import os
import select
from pathlib import Path
from time import monotonic

log = logging.getLogger("stubserve.server")

# A tenth of the time. A user that is not root may only ask for windows of a multiple of two seconds.
STALL_US, WINDOW_US = 200_000, 2_000_000
PRESSED_S = 5.0
_LOG_PAUSE_S = 60.0
_MACHINE = Path("/proc/pressure/memory")


def pressure_file() -> Path:
    """The kernel's file for this process's group, or for the machine."""
    try:
        for line in Path("/proc/self/cgroup").read_text().splitlines():
            if line.startswith("0::"):
                own = Path("/sys/fs/cgroup", line[3:].lstrip("/"), "memory.pressure")
                if own.exists():
                    return own
    except OSError:
        pass
    return _MACHINE


class MemoryPressure:
    """Watches on the running loop. `sheds` is the log's text about what happens to requests meanwhile."""

    def __init__(self, sheds: bool) -> None:
        self._sheds = sheds
        self._until = 0.0
        self._last_log = float("-inf")
        self._events: select.epoll | None = None
        self._descriptor = -1

    @property
    def is_high(self) -> bool:
        """Whether memory is short just now."""
        return self._until > 0.0 and monotonic() < self._until

    def start(self, path: Path | None = None) -> None:
        """Begins to watch. If the kernel gives no such information and a feature relies on it, the log says so."""
        path = pressure_file() if path is None else path
        try:
            descriptor = os.open(path, os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)
        except OSError as error:
            self._cannot(path, error)
            return
        try:
            os.write(descriptor, b"some %d %d\0" % (STALL_US, WINDOW_US))
        except OSError as error:
            os.close(descriptor)
            self._cannot(path, error)
            return
        self.watch(descriptor)

    def watch(self, descriptor: int) -> None:
        """Handles the events of an open descriptor, which this object then owns."""
        self._descriptor = descriptor
        # The event loop does not look for this kind of event; epoll turns it into a usual one.
        self._events = select.epoll()
        self._events.register(descriptor, select.EPOLLPRI | select.EPOLLET)
        asyncio.get_running_loop().add_reader(self._events.fileno(), self._happened)

    def close(self) -> None:
        if self._events is not None:
            asyncio.get_running_loop().remove_reader(self._events.fileno())
            self._events.close()
            self._events = None
            os.close(self._descriptor)

    def _cannot(self, path: Path, error: OSError) -> None:
        if self._sheds:
            log.warning("--shed-on-memory-pressure has no effect: %s: %s", path, error.strerror)

    def _happened(self) -> None:
        assert self._events is not None
        self._events.poll(0)
        now = monotonic()
        self._until = now + PRESSED_S
        if now - self._last_log >= _LOG_PAUSE_S:
            self._last_log = now
            log.warning(
                "memory is short: processes have waited for it for at least %d ms of %d; %s",
                STALL_US // 1000,
                WINDOW_US // 1000,
                "new requests to models are refused for a while"
                if self._sheds
                else "give them more, or --shm-limit less; --shed-on-memory-pressure refuses requests then",
            )
