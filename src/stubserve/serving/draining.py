"""Knowing when nothing is under way any more, so that what served can be taken down."""

from __future__ import annotations

import asyncio


class Draining:
    """Counts what is under way: requests until their final response, and questions whether the model is ready.

    The count costs an addition on either side; only while somebody waits is anybody told.
    """

    __slots__ = ("_drained", "under_way")

    def __init__(self) -> None:
        self.under_way = 0
        # While somebody waits: set when the count falls to zero
        self._drained: asyncio.Event | None = None

    def begin(self) -> None:
        self.under_way += 1

    def end(self) -> None:
        self.under_way -= 1
        if self._drained is not None and not self.under_way:
            self._drained.set()

    async def drained(self) -> None:
        """Waits until nothing is under way."""
        while self.under_way:
            # One for all who wait: whoever comes later finds it there.
            if self._drained is None or self._drained.is_set():
                self._drained = asyncio.Event()
            await self._drained.wait()
