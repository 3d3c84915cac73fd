"""Backends load models in the process of the tests here, which has others to load afterwards."""

from __future__ import annotations

import sys
from collections.abc import Iterator

import pytest


@pytest.fixture(autouse=True)
def imports_as_before() -> Iterator[None]:
    """A model's folders stay on the path of its stub for good, and every model's file is called `model.py`."""
    path = sys.path.copy()
    yield
    sys.path[:] = path
    for name in ("m", "1", "1.model"):
        sys.modules.pop(name, None)
