"""Clients' shared memory in a worker: the owner's regions, as it tells of them (`region_news`)."""

from __future__ import annotations

import asyncio
import logging
import select
import socket
from typing import Any

from stubserve_stub.wire.messages import unpack

from stubserve.inference.regions import RegionPlace
from stubserve.ingress.control import end_now
from stubserve.ingress.descriptors import receive
from stubserve.ingress.words import REGIONS
from stubserve.protocols.client_regions import MAX_NAME, ClientRegion, RegionTable

log = logging.getLogger("stubserve.regions")

# Name and key may have four bytes for each character.
_MOST_BYTES = 8 * MAX_NAME + 256


class RemoteRegions(RegionTable):
    """A worker's. `connection` brings the news; `words` are the owner's, with how much there has been."""

    def __init__(self, connection: socket.socket, words: Any) -> None:
        super().__init__()
        self._socket = connection
        connection.setblocking(False)
        self._words = words
        self._heard = 0
        self._poll = select.poll()
        self._poll.register(connection, select.POLLIN)
        asyncio.get_running_loop().add_reader(connection, self._read)

    def find(self, name: str, offset: int, nbytes: int) -> RegionPlace:
        while self._heard != self._words[REGIONS]:
            self._poll.poll()
            self._read()
        return super().find(name, offset, nbytes)

    def _read(self) -> None:
        while True:
            try:
                data, descriptors = receive(self._socket, _MOST_BYTES)
            except BlockingIOError:
                return
            except OSError:
                data = b""
            if not data:
                end_now()
            as_of, *news = unpack(data)
            if news:
                self._hear(*news, descriptors=descriptors)
            self._heard = as_of or self._heard

    def _hear(
        self, name: str, key: str = "", number: int = 0, start: int = 0, nbytes: int = 0, *, descriptors: list[int]
    ) -> None:
        if not number:
            self._remove(name)
        elif descriptors:
            self._add(ClientRegion(name, key, number, descriptors[0], start, nbytes))
        else:
            log.error("this HTTP worker has no descriptor left for shared memory region '%s' (ulimit -n)", name)
