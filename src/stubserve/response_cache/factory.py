"""Makes the response cache that the operator asks for."""

from __future__ import annotations

from collections.abc import Callable

from stubserve.memory.blocks import Block
from stubserve.response_cache.entry import Spare
from stubserve.response_cache.local import LocalStore
from stubserve.response_cache.store import MOST_ENTRY_BYTES, ResponseCache
from stubserve.settings.cache import LOCAL, CacheSettings


def create_cache(
    settings: CacheSettings, spare: Spare, store: Callable[[bytes | memoryview], Block]
) -> ResponseCache | None:
    """The cache, None where there is to be none. Raises ServeError UNSUPPORTED where a package is missing."""
    if not settings.name:
        return None
    if settings.name == LOCAL:
        return ResponseCache(LocalStore(settings.local_bytes), None, spare, store, settings.coalesces)
    from stubserve.response_cache.redis_store import RedisStore

    return ResponseCache(None, RedisStore(settings.redis, MOST_ENTRY_BYTES), spare, store, settings.coalesces)
