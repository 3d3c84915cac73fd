"""Metrics of the response cache as a whole, where it is this server's own (upstream's local cache has the same)."""

from __future__ import annotations

from stubserve.observability.custom_metrics import GAUGE
from stubserve.observability.exposition import Exposition
from stubserve.response_cache.local import LocalStore

_UTILIZATION = ("nv_cache_util", "Cache utilization [0.0 - 1.0]")
_ENTRIES = ("nv_cache_num_entries", "Number of responses stored in response cache")
_HITS = ("nv_cache_num_hits", "Number of cache hits in response cache")
_MISSES = ("nv_cache_num_misses", "Number of cache misses in response cache")
_LOOKUPS = ("nv_cache_num_lookups", "Number of cache lookups in response cache")
_EVICTIONS = ("nv_cache_num_evictions", "Number of cache evictions in response cache")

# Names that models cannot take for metrics of another kind
FAMILIES = tuple(name for name, _ in (_UTILIZATION, _ENTRIES, _HITS, _MISSES, _LOOKUPS, _EVICTIONS))


def expose(store: LocalStore, exposition: Exposition) -> None:
    """Adds the metrics of a store."""
    for (name, text), value in (
        (_UTILIZATION, store.used / store.limit),
        (_ENTRIES, len(store)),
        (_HITS, store.hits),
        (_MISSES, store.misses),
        (_LOOKUPS, store.hits + store.misses),
        (_EVICTIONS, store.evictions),
    ):
        exposition.family(name, GAUGE, text).sample((), value)
