"""The server's response cache: where entries are, in this process or elsewhere, and its limits."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import TYPE_CHECKING

from stubserve.errors import ServeError
from stubserve.inference.tensor import Tensor, drop_blocks
from stubserve.memory.blocks import Block
from stubserve.parts import require
from stubserve.response_cache.entry import CacheEntry, Spare, fill, with_room
from stubserve.response_cache.local import LocalStore
from stubserve.response_cache.serialized import BadEntry, from_bytes, to_bytes
from stubserve.settings.cache import LOCAL, CacheSettings

if TYPE_CHECKING:
    from stubserve.redis_store.store import RedisStore

log = logging.getLogger("stubserve.cache")

# The largest entry to or from another store, and the most bytes on their way there; more is not kept.
MOST_ENTRY_BYTES = 64 << 20
_MOST_SENDING_BYTES = 64 << 20
_MOST_SENDING = 64
# Larger outputs of an entry from elsewhere lie in the arena, so that other models can be given them.
_IN_HEAP_BYTES = 1024
# Larger entries are serialized, and read, in a thread.
_QUICK_BYTES = 64 * 1024
# Larger answers are copied in a thread.
_QUICK_COPY_BYTES = 256 * 1024


class ResponseCache:
    """A cache with one of `local` and `remote`. `spare` gives memory for entries that nobody else needs.

    `coalesces` says whether equal requests that run at the same time are computed once.
    """

    def __init__(
        self,
        local: LocalStore | None,
        remote: RedisStore | None,
        spare: Spare,
        store: Callable[[bytes | memoryview], Block],
        coalesces: bool,
    ) -> None:
        self.local = local
        self.spare = spare
        self.coalesces = coalesces
        self._remote = remote
        self._store = store
        self._sending: set[asyncio.Task[None]] = set()
        self._sending_bytes = 0
        self._copying: set[asyncio.Task[None]] = set()

    @property
    def is_shared(self) -> bool:
        """Whether other servers, and this one after a restart, find the same entries."""
        return self._remote is not None

    def give_way(self) -> bool:
        """Frees some memory of the arena, for others; False if the cache has none."""
        return self.local is not None and self.local.give_way()

    async def fetch(self, key: bytes) -> CacheEntry | None:
        """The entry of a key from elsewhere; None if there is none, or none that can be used."""
        assert self._remote is not None
        data = await self._remote.get(key)
        if not data:
            return None
        try:
            if len(data) > MOST_ENTRY_BYTES:
                raise BadEntry(f"it has more than {MOST_ENTRY_BYTES} bytes")
            entry = (
                from_bytes(key, data) if len(data) < _QUICK_BYTES else await asyncio.to_thread(from_bytes, key, data)
            )
        except BadEntry as bad:
            self._remote.distrust(key, str(bad))
            return None
        return self._placed(entry)

    def keep(self, key: bytes, given: CacheEntry) -> bool:
        """Keeps an answer. Its memory is lent, and let go of here; False if it is larger than the cache.

        The answer goes to its reader at the same moment, and others may then write to its memory. So a copy is kept: a
        small answer is copied at once, a large one in a thread, from memory that is shared until then.
        """
        local = self.local
        if local is None:
            self._send(key, given)
        elif not local.takes(given.size):
            given.drop()
            return False
        elif not given.in_arena:
            local.put(key, given)
        else:
            self._keep_copy(local, key, given)
        return True

    def _keep_copy(self, local: LocalStore, key: bytes, given: CacheEntry) -> None:
        kept = with_room(given, self.spare)
        if kept is None:
            given.drop()
        elif given.nbytes <= _QUICK_COPY_BYTES:
            fill(kept, given)
            given.drop()
            local.put(key, kept)
        else:
            task = asyncio.get_running_loop().create_task(self._keep_large(local, key, kept, given))
            self._copying.add(task)
            task.add_done_callback(self._copying.discard)

    @staticmethod
    async def _keep_large(local: LocalStore, key: bytes, kept: CacheEntry, given: CacheEntry) -> None:
        copied = False
        try:
            await asyncio.to_thread(fill, kept, given)
            copied = True
        finally:
            given.drop()
            if copied:
                local.put(key, kept)
            else:
                kept.drop()

    def _send(self, key: bytes, entry: CacheEntry) -> None:
        """Sends an entry to the other store, then lets go of it. Drops a large entry, and any that is too much."""
        if (
            len(self._sending) >= _MOST_SENDING
            or entry.size > MOST_ENTRY_BYTES
            or self._sending_bytes + entry.size > _MOST_SENDING_BYTES
        ):
            entry.drop()
            return
        self._sending_bytes += entry.size
        task = asyncio.get_running_loop().create_task(self._send_now(key, entry))
        self._sending.add(task)
        task.add_done_callback(self._sending.discard)

    async def close(self) -> None:
        """Lets go of all entries, and of those on their way."""
        for task in self._sending:
            task.cancel()
        await asyncio.gather(*self._sending, return_exceptions=True)
        if self._remote is not None:
            await self._remote.close()
        if self.local is not None:
            self.local.clear()

    async def _send_now(self, key: bytes, entry: CacheEntry) -> None:
        assert self._remote is not None
        try:
            try:
                if entry.nbytes < _QUICK_BYTES:
                    data = to_bytes(key, entry)
                else:
                    data = await asyncio.to_thread(to_bytes, key, entry)
            except ValueError as wrong:
                log.warning("an answer cannot be put into the response cache: %s", wrong)
                return
            finally:
                entry.drop()
            await self._remote.put(key, data)
        finally:
            self._sending_bytes -= entry.size

    def _placed(self, entry: CacheEntry) -> CacheEntry | None:
        """An entry in the heap, with its large outputs moved to the arena; None if memory is short."""
        if all(one.nbytes <= _IN_HEAP_BYTES for one in entry.outputs):
            return entry
        outputs: list[Tensor] = []
        for one in entry.outputs:
            if one.nbytes > _IN_HEAP_BYTES:
                assert one.data is not None
                try:
                    span = self._store(one.data).whole()
                except ServeError:
                    drop_blocks(outputs)
                    return None
                one = one.renamed(one.name, one.shape, span)
            outputs.append(one)
        return CacheEntry(outputs, entry.parameters)


def create_cache(settings: CacheSettings, spare: Spare, store: Callable[[bytes | memoryview], Block]) -> ResponseCache:
    """The cache that the operator asks for. Raises ServeError UNSUPPORTED if a package is missing."""
    if settings.name == LOCAL:
        return ResponseCache(LocalStore(settings.local_bytes), None, spare, store, settings.coalesces)
    require("redis_store")
    from stubserve.redis_store.store import RedisStore

    return ResponseCache(None, RedisStore(settings.redis, MOST_ENTRY_BYTES), spare, store, settings.coalesces)
