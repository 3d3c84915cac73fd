"""The writing end of a ring whose reader may take its time.

A writer on an event loop can neither wait for room nor throw messages away. What the ring has no room for is kept, in
order, and tried again.
"""

from __future__ import annotations

import asyncio
import collections
from collections.abc import Callable

from stubserve_stub.wire.ring import RingBroken, RingWriter

_RETRY_S = 0.001


class PatientRing:
    """`on_broken` is called when the reader has written over its side: nothing can be sent to it any more.

    `on_announced` hears how many records the reader has just been told of.
    """

    def __init__(
        self, ring: RingWriter, on_broken: Callable[[], object], on_announced: Callable[[int], object] | None = None
    ) -> None:
        self._ring = ring
        self._on_broken = on_broken
        self._on_announced = on_announced
        # What the ring had no room for
        self._overflow: collections.deque[tuple[bytes, int]] = collections.deque()
        self._retry: asyncio.TimerHandle | None = None
        self._closed = False

    def put(self, data: bytes, flags: int) -> None:
        """Writes a record, now or later; it is still to be announced."""
        if self._overflow or not self._put(data, flags):
            self._overflow.append((data, flags))
            if self._retry is None:
                self._try_again_later()

    def announce(self) -> None:
        """Tells the reader of what has been written."""
        if not self._closed:
            count = self._ring.announce()
            if count and self._on_announced is not None:
                self._on_announced(count)

    def close(self) -> None:
        """The reader is gone."""
        self._closed = True
        if self._retry is not None:
            self._retry.cancel()
        self._overflow.clear()

    def _put(self, data: bytes, flags: int) -> bool:
        try:
            return self._ring.put(data, flags)
        except RingBroken:
            self._on_broken()
            return False

    def _try_again_later(self) -> None:
        self._retry = asyncio.get_running_loop().call_later(_RETRY_S, self._try_again)

    def _try_again(self) -> None:
        self._retry = None
        while self._overflow and self._put(*self._overflow[0]):
            self._overflow.popleft()
        self.announce()
        if self._overflow and not self._closed:
            self._try_again_later()
