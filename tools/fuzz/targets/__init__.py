"""The targets: a module each, with `fuzz_one(data)`, the inputs to begin with (SEEDS) and words to put in (WORDS).

A target that needs other processes or threads has them while it is `running`.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from importlib import import_module
from types import ModuleType

NAMES = [
    "http_head",
    "json_infer",
    "json_generate",
    "openai",
    "http2_connection",
    "hpack",
    "protobuf",
    "config",
    "foreign_answers",
    "front",
]


def load(name: str) -> ModuleType:
    return import_module(f"{__name__}.{name}")


def running(target: ModuleType) -> AbstractContextManager[None]:
    context: AbstractContextManager[None] = getattr(target, "running", nullcontext)()
    return context
