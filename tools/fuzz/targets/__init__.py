"""The targets: a module each, with `fuzz_one(data)`, the inputs to begin with (SEEDS) and words to put in (WORDS)."""

from __future__ import annotations

from importlib import import_module
from types import ModuleType

NAMES = ["http_head", "json_infer", "json_generate", "http2_connection", "hpack", "protobuf", "config"]


def load(name: str) -> ModuleType:
    return import_module(f"{__name__}.{name}")
