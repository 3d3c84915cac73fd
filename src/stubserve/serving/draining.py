"""Knows when nothing is under way any more, so that a model can be taken down."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping

log = logging.getLogger("stubserve.model")


class Draining:
    """Counts the requests without a final response, and the pending questions whether the model is ready.

    Hot code changes `under_way` itself, and calls `tell` after counting down while `awaited` is true.
    """

    def __init__(self) -> None:
        self.under_way = 0
        # Whether `drained` waits for zero, and the event for that
        self.awaited = False
        self._drained = asyncio.Event()

    def begin(self) -> None:
        self.under_way += 1

    def end(self) -> None:
        self.under_way -= 1
        if self.awaited:
            self.tell()

    def tell(self) -> None:
        if not self.under_way:
            self.awaited = False
            self._drained.set()

    async def drained(self) -> None:
        """Waits until nothing is under way."""
        while self.under_way:
            self.awaited = True
            self._drained.clear()
            await self._drained.wait()

    async def drained_unless_hung(self, running: Callable[[], Mapping[str, int]], patience_s: float) -> bool:
        """As `drained`. With a patience, returns False once a batch has been executing for all of that time.

        `running` returns the numbers of the batches that are being executed, by the names of their instances.
        """
        if not patience_s:
            await self.drained()
            return True
        while True:
            before = running()
            try:
                await asyncio.wait_for(self.drained(), patience_s)
            except asyncio.TimeoutError:
                hung = [name for name, batch in running().items() if before.get(name) == batch]
                if hung:
                    log.error("instance '%s' has not finished a batch for %.1f s and is ended", hung[0], patience_s)
                    return False
            else:
                # A request may have come while the wait was ending.
                if not self.under_way:
                    return True
