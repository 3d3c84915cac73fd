"""The body of `generate`. The first byte says which model is asked."""

from __future__ import annotations

import json
from typing import Any

from stubserve.api.placement import BodyPlacer
from stubserve.http.generate_decode import decode_generate
from stubserve.inference.admission import admit
from stubserve.inference.tensor import drop_blocks

from ..finding import Finding
from ..server import CONFIGS, Memory, described, outcome, signature

MODELS = sorted(CONFIGS)


def fuzz_one(data: bytes) -> None:
    if not data:
        return
    known = signature(MODELS[data[0] % len(MODELS)])
    memory = Memory()

    def read() -> Any:
        request = decode_generate(data[1:], known, BodyPlacer(b"", None, 0, memory.store))
        try:
            admit(request, known)
            return described(request)
        finally:
            drop_blocks(request.inputs)

    found = outcome(read)
    if memory.held:
        raise Finding("blocks are held afterwards", f"{memory.held} after {found!r}")


def seed(model: str, document: object) -> bytes:
    return bytes([MODELS.index(model)]) + json.dumps(document).encode()


SEEDS = [
    seed("floats", {"IN": [1, 2.5], "id": "a", "temperature": 0.5, "stop": True, "n": 3}),
    seed("floats", {"IN": 1, "parameters": {"IN2": "x", "k": -1}}),
    seed("mixed", {"A": [1, 2, 3, 4], "S": "one", "B": [True, False], "U": [0]}),
    seed("strings", {"IN": "text"}),
    seed("strings", {"parameters": {"IN": ["a", "b"]}}),
]
WORDS = [
    b'"IN":',
    b'"A":',
    b'"S":',
    b'"U":',
    b'"parameters":',
    b'"id":',
    b"[[1]]",
    b"null",
    b"1e400",
    b"18446744073709551616",
]
