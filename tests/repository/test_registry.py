"""Finding the model that a request means."""

from __future__ import annotations

import tracemalloc
from types import SimpleNamespace
from typing import Any, cast

from stubserve.repository.registry import Registry, VersionState


def test_ways_to_write_a_version_are_not_remembered() -> None:
    model: Any = SimpleNamespace(version=1)
    registry = Registry()
    registry.set_version("m", 1, VersionState.READY, model=cast(Any, model))
    tracemalloc.start()
    for zeros in range(2000):
        assert registry.find("m", "0" * zeros + "1") is model
    kept, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert kept < 1 << 18
    assert registry.find("m", "") is model
