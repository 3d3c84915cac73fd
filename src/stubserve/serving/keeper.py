"""Puts the answers of one model version into the response cache.

An answer is passed on to its reader at the same moment, and others may then write to its memory. So what is kept is a
copy: made at once where it is small, else in a thread, from memory that is shared until then.
"""

from __future__ import annotations

import asyncio
import logging

from stubserve.response_cache.entry import Entry, fill, with_room
from stubserve.response_cache.store import ResponseCache

log = logging.getLogger("stubserve.cache")

# Larger answers are copied in a thread.
_QUICK_COPY_BYTES = 256 * 1024


class Keeper:
    """Of the model `name`. Lives on the event loop."""

    def __init__(self, name: str, cache: ResponseCache) -> None:
        self._name = name
        self._cache = cache
        self._local = cache.local
        self._loop = asyncio.get_running_loop()
        self._copying: set[asyncio.Task[None]] = set()
        self._told_of_size = False

    def keep(self, key: bytes, given: Entry) -> None:
        """Keeps an answer, whose memory is lent: it is let go of here."""
        local = self._local
        if local is None:
            self._cache.send(key, given)
        elif not local.takes(given.size):
            self._tell_of_size(given.size, local.limit)
            given.drop()
        elif not given.in_arena:
            local.put(key, given)
        else:
            self._keep_copy(key, given)

    def _keep_copy(self, key: bytes, given: Entry) -> None:
        assert self._local is not None
        kept = with_room(given, self._cache.spare)
        if kept is None:
            given.drop()
        elif given.nbytes <= _QUICK_COPY_BYTES:
            fill(kept, given)
            given.drop()
            self._local.put(key, kept)
        else:
            task = self._loop.create_task(self._keep_large(key, kept, given))
            self._copying.add(task)
            task.add_done_callback(self._copying.discard)

    async def _keep_large(self, key: bytes, kept: Entry, given: Entry) -> None:
        copied = False
        try:
            await asyncio.to_thread(fill, kept, given)
            copied = True
        finally:
            given.drop()
            if copied and self._local is not None:
                self._local.put(key, kept)
            else:
                kept.drop()

    def _tell_of_size(self, size: int, limit: int) -> None:
        if not self._told_of_size:
            self._told_of_size = True
            log.warning(
                "an answer of model '%s' takes %d bytes in the response cache, which has %d in all: such answers are "
                "not kept. Give --cache-config=local,size= more, or take response_cache out of its config.pbtxt.",
                self._name,
                size,
                limit,
            )
