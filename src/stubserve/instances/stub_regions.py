"""Clients' regions on their way to a stub: descriptors, over a socket of their own.

A stub gets the descriptor of a region before the first batch that refers to it. So it needs no right to open files, and
may run as any user. It is also told when the region is gone; until it closes the descriptor the memory stays. Without
--allow-client-shm there is no such socket.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
import weakref
from collections.abc import Callable

from stubserve_stub.wire.messages import pack

from stubserve.inference.request import Request
from stubserve.memory.regions import Region, RegionSpan

log = logging.getLogger("stubserve.instances")


class StubRegions:
    """The regions that one stub has. `theirs` is the stub's end of the socket. Raises OSError."""

    def __init__(self) -> None:
        self._socket, self.theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._socket.setblocking(False)
        self._loop = asyncio.get_running_loop()
        self._known: dict[int, weakref.ref[Region]] = {}
        # Tells the stub that a region is gone
        self.on_gone: Callable[[int], object] = lambda number: None

    def send_regions_of(self, request: Request) -> None:
        for tensor in request.inputs:
            if isinstance(tensor.span, RegionSpan):
                self._send(tensor.span.place.region)
        for place in (request.regions or {}).values():
            if not place.region.on_device:
                self._send(place.region)

    def close(self) -> None:
        self._known.clear()
        self._socket.close()
        self.theirs.close()

    def _send(self, region: Region) -> None:
        number = region.number
        if number in self._known:
            return
        try:
            socket.send_fds(self._socket, [pack((number, region.start, region.nbytes))], [region.descriptor])
        except OSError as error:
            # The stub does not know the region, and will answer the request with an error.
            log.error("shared memory region '%s' could not be passed on to a stub: %s", region.name, error)
        else:
            self._known[number] = weakref.ref(region, lambda _: self._tell_gone(number))

    def _tell_gone(self, number: int) -> None:
        # The last reference may be in a thread, or at the end of the server.
        with contextlib.suppress(RuntimeError):
            self._loop.call_soon_threadsafe(self._gone, number)

    def _gone(self, number: int) -> None:
        if self._known.pop(number, None) is not None:
            self.on_gone(number)
