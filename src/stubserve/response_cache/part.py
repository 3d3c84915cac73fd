"""The response cache as a part of the server: opened where `--cache-config` asks for it, with its metrics."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from stubserve.memory.server_memory import Memory
from stubserve.parts import Part, Sample

if TYPE_CHECKING:
    from stubserve.response_cache.store import ResponseCache


class CachePart(Part):
    _cache: ResponseCache | None = None

    def open(self, memory: Memory) -> ResponseCache:
        """The cache that the operator asks for. Raises ServeError UNSUPPORTED if a package is missing."""
        from stubserve.response_cache.store import create_cache

        self._cache = create_cache(self.settings.cache, memory.spare, memory.store)
        return self._cache

    async def close(self) -> None:
        if self._cache is not None:
            await self._cache.close()

    def samples(self) -> Iterable[Sample]:
        """Those of a cache in memory, the same as upstream's local cache has."""
        store = None if self._cache is None else self._cache.local
        if store is None or not self.settings.metrics.latencies.counter_latencies:
            return
        yield "nv_cache_util", (), store.used / store.limit
        yield "nv_cache_num_entries", (), len(store)
        yield "nv_cache_num_hits", (), store.hits
        yield "nv_cache_num_misses", (), store.misses
        yield "nv_cache_num_lookups", (), store.hits + store.misses
        yield "nv_cache_num_evictions", (), store.evictions


PART = CachePart
