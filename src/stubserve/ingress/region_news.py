"""What a worker is told of clients' shared memory: which regions there are, each with its descriptor.

Regions are registered with the owner, over whichever way in, and the next request that names one may go through any
worker. So each change is counted in a word of the worker's segment once it is on its way, and before whoever asked for
it is answered; a worker that has heard of fewer waits for the rest of them before it looks a region up (`regions`).
What the socket does not take, because the worker is busy, waits here in its order.

Messages, over a socket of their own that keeps them apart::

    (name, key, number, start, nbytes)   with a descriptor: a region has been registered
    (name,)                              it has been unregistered
"""

from __future__ import annotations

import asyncio
import collections
import errno
import socket
from typing import Any

from stubserve_stub.wire.messages import pack

from stubserve.ingress.words import REGIONS
from stubserve.protocols.client_regions import MAX_NAME, ClientRegion, ClientRegions

_RETRY_S = 0.01


class RegionNews:
    """One worker's, over `connection`; `words` are the owner's in its segment."""

    def __init__(self, connection: socket.socket, words: Any, regions: ClientRegions) -> None:
        self._socket = connection
        self._words = words
        self._regions = regions
        self._loop = asyncio.get_running_loop()
        self._unsent: collections.deque[tuple[bytes, ClientRegion | None]] = collections.deque()
        self._retry: asyncio.TimerHandle | None = None
        connection.setblocking(False)
        words[REGIONS] = 0
        regions.watchers.add(self)
        for region in regions.all():
            self.registered(region)

    def registered(self, region: ClientRegion) -> None:
        """There is a further region."""
        # Of a key, which may begin with any number of slashes, the end has the name of the file.
        told = (region.name, region.key[-MAX_NAME:], region.number, region.start, region.nbytes)
        self._tell(pack(told), region)

    def unregistered(self, name: str) -> None:
        """A region has been taken from the list."""
        self._tell(pack((name,)), None)

    def close(self) -> None:
        """The worker is gone."""
        self._regions.watchers.discard(self)
        self._unsent.clear()
        if self._retry is not None:
            self._retry.cancel()
        self._socket.close()

    def _tell(self, message: bytes, region: ClientRegion | None) -> None:
        self._unsent.append((message, region))
        self._words[REGIONS] += 1
        if self._retry is None:
            self._send()

    def _send(self) -> None:
        self._retry = None
        while self._unsent:
            message, region = self._unsent[0]
            try:
                socket.send_fds(self._socket, [message], [] if region is None else [region.descriptor])
            except OSError as error:
                if error.errno in (errno.EAGAIN, errno.ETOOMANYREFS):
                    self._retry = self._loop.call_later(_RETRY_S, self._send)
                # Otherwise the worker is gone, which is noticed elsewhere.
                return
            self._unsent.popleft()
