"""Entries in this server's own memory, up to a number of bytes; the longest unused goes first."""

# Compiled by mypyc.
from __future__ import annotations

from collections import OrderedDict

from stubserve.response_cache.entry import CacheEntry


class LocalStore:
    """A store of entries of `limit` bytes in all (see `CacheEntry.size`). Lives on the event loop.

    Its counts may be read directly. A lookup costs one dictionary access and a step to the end of the order.
    """

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.used = 0
        self.hits = 0
        self.misses = 0
        self.evictions = 0
        # The longest unused first
        self._entries: OrderedDict[bytes, CacheEntry] = OrderedDict()

    def get(self, key: bytes) -> CacheEntry | None:
        entry = self._entries.get(key)
        if entry is None:
            self.misses += 1
            return None
        self.hits += 1
        self._entries.move_to_end(key)
        return entry

    def takes(self, size: int) -> bool:
        """Whether an entry of this size could be kept at all."""
        return size <= self.limit

    def put(self, key: bytes, entry: CacheEntry) -> None:
        """Keeps an entry, and owns its memory from now on. An existing entry stays, and the new one goes."""
        if key in self._entries or not self.takes(entry.size):
            entry.drop()
            return
        while self.used + entry.size > self.limit:
            self._evict(next(iter(self._entries)))
        self._entries[key] = entry
        self.used += entry.size

    def give_way(self) -> bool:
        """Drops the entry in the arena that was unused for longest; False if there is none."""
        for key, entry in self._entries.items():
            if entry.in_arena:
                self._evict(key)
                return True
        return False

    def clear(self) -> None:
        while self._entries:
            self._entries.popitem()[1].drop()
        self.used = 0

    def _evict(self, key: bytes) -> None:
        entry = self._entries.pop(key)
        self.used -= entry.size
        self.evictions += 1
        entry.drop()

    def __len__(self) -> int:
        return len(self._entries)
