"""Finding the model that a request means."""

from __future__ import annotations

import tracemalloc
from types import SimpleNamespace
from typing import Any, cast

import pytest

from stubserve.errors import ServeError
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


def test_an_unknown_model_may_be_a_known_one_misspelt() -> None:
    for names_others, told in ((True, ". Did you mean 'resnet'?"), (False, "")):
        registry = Registry(names_others=names_others)
        registry.set_version("resnet", 1, VersionState.READY, model=cast(Any, SimpleNamespace(version=1)))
        registry.set_version("resnets", 1, VersionState.UNAVAILABLE, "broken")
        for name, more in (("resnett", told), ("other", ""), ("resnet" * 20, "")):
            with pytest.raises(ServeError) as raised:
                registry.find(name, "")
            assert raised.value.message == f"Request for unknown model: '{name}' is not found{more}"
