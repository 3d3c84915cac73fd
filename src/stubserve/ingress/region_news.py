"""What a worker is told of clients' shared memory: which regions there are, each with its descriptor.

Regions are registered with the owner, over whichever way in, and the next request that names one may go through any
worker. So each change is counted in a word of the worker's segment, before whoever asked for it is answered; a worker
that has heard of fewer waits for the rest before it looks a region up (`regions`). What its socket does not take,
because it is busy, is sent later as it is then: of a region that has come and gone meanwhile it never hears.

Messages, over a socket of their own; `as_of` is how many changes the worker knows of with this message, 0 where more
messages follow::

    (as_of, name, key, number, start, nbytes)   with a descriptor: the region of this name
    (as_of, name)                               there is none of this name any more
    (as_of,)
"""

from __future__ import annotations

import asyncio
import errno
import socket
from typing import Any

from stubserve_stub.wire.messages import pack

from stubserve.ingress.words import REGIONS
from stubserve.protocols.client_regions import MAX_NAME, ClientRegions

_RETRY_S = 0.01


class RegionNews:
    """One worker's, over `connection`; `words` are the owner's in its segment."""

    def __init__(self, connection: socket.socket, words: Any, regions: ClientRegions) -> None:
        self._socket = connection
        self._words = words
        self._regions = regions
        self._loop = asyncio.get_running_loop()
        # Names that the worker knows, and those of which it is to be told
        self._known: set[str] = set()
        self._due = dict.fromkeys(regions.names())
        words[REGIONS] = len(self._due)
        self._told = 0
        self._retry: asyncio.TimerHandle | None = None
        connection.setblocking(False)
        regions.watchers.add(self._on_change)
        self._send()

    def close(self) -> None:
        """The worker is gone."""
        self._regions.watchers.discard(self._on_change)
        if self._retry is not None:
            self._retry.cancel()
        self._socket.close()

    def _on_change(self, name: str) -> None:
        self._words[REGIONS] += 1
        if name in self._known or self._regions.named(name) is not None:
            self._due[name] = None
        else:
            self._due.pop(name, None)
        if self._retry is None:
            self._send()

    def _send(self) -> None:
        self._retry = None
        while self._told != self._words[REGIONS]:
            name = next(iter(self._due), None)
            as_of = self._words[REGIONS] if len(self._due) <= 1 else 0
            try:
                self._send_one(name, as_of)
            except OSError as error:
                if error.errno in (errno.EAGAIN, errno.ETOOMANYREFS):
                    self._retry = self._loop.call_later(_RETRY_S, self._send)
                # Otherwise the worker is gone, which is noticed elsewhere.
                return
            if name is not None:
                del self._due[name]
            self._told = as_of or self._told

    def _send_one(self, name: str | None, as_of: int) -> None:
        """Raises OSError."""
        if name is None:
            self._socket.send(pack((as_of,)))
            return
        region = self._regions.named(name)
        if region is None:
            self._socket.send(pack((as_of, name)))
            self._known.discard(name)
        else:
            # Of a key, which may begin with any number of slashes, the end has the name of the file.
            fields = (name, region.key[-MAX_NAME:], region.number, region.start, region.nbytes)
            socket.send_fds(self._socket, [pack((as_of, *fields))], [region.descriptor])
            self._known.add(name)
