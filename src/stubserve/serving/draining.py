"""Knowing when nothing is under way any more, so that what served can be taken down."""

from __future__ import annotations

import asyncio


class Draining:
    """Counts what is under way: requests until their final response, and questions whether the model is ready.

    Whoever is in a hurry counts `under_way` by himself, and calls `tell` after counting down while `awaited` is true.
    """

    __slots__ = ("_drained", "awaited", "under_way")

    def __init__(self) -> None:
        self.under_way = 0
        # Whether somebody waits for zero, and what is set then
        self.awaited = False
        self._drained = asyncio.Event()

    def begin(self) -> None:
        self.under_way += 1

    def end(self) -> None:
        self.under_way -= 1
        if self.awaited:
            self.tell()

    def tell(self) -> None:
        """Tells who waits, if nothing is under way any more."""
        if not self.under_way:
            self.awaited = False
            self._drained.set()

    async def drained(self) -> None:
        """Waits until nothing is under way."""
        while self.under_way:
            self.awaited = True
            self._drained.clear()
            await self._drained.wait()
