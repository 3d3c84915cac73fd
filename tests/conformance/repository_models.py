"""Models of two repositories, one of which has its name in both."""

from __future__ import annotations

from .repository import Model, io

_CONFIG = io("input", "IN", "FP32", "1") + io("output", "OUT", "FP32", "1")

FIRST = (
    Model("both", _CONFIG, source="identity"),
    Model("single", _CONFIG, source="identity"),
)
SECOND = (Model("both", _CONFIG, source="identity"),)
