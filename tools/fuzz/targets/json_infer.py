"""The body of an inference request over HTTP.

The first byte says which model is asked, the second how much of the rest is JSON. What is remembered of a body must
read it, and a body that differs in its tensors, as if nothing were remembered.
"""

from __future__ import annotations

import json
from typing import Any
from unittest import mock

import msgspec

from stubserve.api.placement import BodyPlacer
from stubserve.http import infer_structs
from stubserve.http.infer import decode
from stubserve.inference.admission import admit
from stubserve.inference.signature import Signature
from stubserve.inference.tensor import drop_blocks

from ..finding import Finding, same
from ..server import CONFIGS, Memory, described, outcome, signature

MODELS = sorted(CONFIGS)
ALL_JSON, RAW = 0xFF, 0xFE
MAX_INPUT_SIZE = 1 << 16


def fuzz_one(data: bytes) -> None:
    if len(data) < 2:
        return
    model = MODELS[data[0] % len(MODELS)]
    body = data[2:]
    split = data[1]
    json_length = None if split == ALL_JSON else 0 if split == RAW else _json_length(body, split)
    fresh = _read(body, json_length, signature(model))
    learned = signature(model)
    with mock.patch.object(infer_structs, "decode", side_effect=msgspec.DecodeError):
        same(fresh, _read(body, json_length, learned), "not read as a typed document it means something else")
    same(fresh, _read(body, json_length, learned), "a signature changed how a body is read")
    same(fresh, _read(body, json_length, learned), "a remembered body is read differently from a new one")
    for changed in _changed(body):
        alone = _read(changed, json_length, signature(model))
        same(alone, _read(changed, json_length, learned), "what is remembered of a body spoils another", repr(changed))


def _read(body: bytes, json_length: int | None, known: Signature) -> Any:
    memory = Memory()

    def read() -> Any:
        placer = BodyPlacer(body, None, 0, memory.store)
        request, reply_format = decode(body, json_length, known, placer, MAX_INPUT_SIZE)
        try:
            admit(request, known)
            return described(request), reply_format
        finally:
            drop_blocks(request.inputs)

    found = outcome(read)
    if memory.held:
        raise Finding("blocks are held afterwards", f"{memory.held} after {found!r}")
    return found


def _json_length(body: bytes, split: int) -> int:
    """Up to the last bracket, for most; otherwise anywhere."""
    return body.rfind(b"}") + 1 if split < 0x80 else len(body) * (split - 0x80) // 0x80


def _changed(body: bytes) -> list[bytes]:
    """The same with other tensors behind the JSON, with another id in front, and with another number."""
    found = [body[:-1] + bytes([body[-1] ^ 1])] if body else []
    if body.startswith(b'{"'):
        found.append(b'{"id":"x",' + body[1:])
    for at in range(len(body) - 1, -1, -1):
        if 0x30 <= body[at] <= 0x38:
            found.append(body[:at] + bytes([body[at] + 1]) + body[at + 1 :])
            break
    return found


def seed(model: str, document: object, tail: bytes | None = None) -> bytes:
    split = ALL_JSON if tail is None else 0
    return bytes([MODELS.index(model), split]) + json.dumps(document).encode() + (tail or b"")


def tensor(name: str, datatype: str, shape: list[int], data: Any = None, size: int = -1, **more: Any) -> dict[str, Any]:
    fields: dict[str, Any] = {"name": name, "datatype": datatype, "shape": shape}
    if data is not None:
        fields["data"] = data
    if size >= 0:
        fields["parameters"] = {"binary_data_size": size, **more}
    return fields


FLOATS = tensor("IN", "FP32", [1, 2], [0.5, -1e10])
MIXED = [tensor("A", "INT8", [2, 2], [[1, -2], [3, 127]]), tensor("S", "BYTES", [2], ["a", "\u00e9"])]
SEEDS = [
    seed("floats", {"inputs": [FLOATS]}),
    seed("floats", {"id": "a", "inputs": [FLOATS], "outputs": [{"name": "OUT", "parameters": {"binary_data": True}}]}),
    seed("floats", {"inputs": [tensor("IN", "FP32", [2, 1], size=8)]}, bytes(8)),
    seed("floats", {"id": "b", "inputs": [tensor("IN", "FP32", [1, 1], size=4)]}, b"abcd"),
    seed("floats", {"inputs": [tensor("IN", "FP32", [1, 400], size=1600)]}, bytes(1600)),
    seed(
        "floats",
        {
            "parameters": {
                "sequence_id": 3,
                "sequence_start": True,
                "priority": 1,
                "timeout": 9,
                "p": 0.5,
                "binary_data_output": True,
            },
            "inputs": [FLOATS],
        },
    ),
    seed("floats", {"inputs": [FLOATS], "outputs": [{"name": "OUT", "parameters": {"classification": 2}}]}),
    seed("mixed", {"inputs": MIXED}),
    seed("mixed", {"inputs": [*MIXED, tensor("B", "BOOL", [2], [True, 0]), tensor("U", "UINT64", [1], [1 << 63])]}),
    seed(
        "mixed", {"inputs": [tensor("A", "INT8", [2, 1], size=2), tensor("S", "BYTES", [1], size=5)]}, b"\1\2\1\0\0\0a"
    ),
    seed("strings", {"inputs": [tensor("IN", "BYTES", [3, 1], ["a", "b\\n", ""])]}),
    seed("strings", {"inputs": [tensor("IN", "BYTES", [2, 1], size=10)]}, b"\1\0\0\0a\1\0\0\0b"),
    bytes([MODELS.index("strings"), RAW]) + b"raw text",
    bytes([MODELS.index("floats"), RAW]) + bytes(16),
]
WORDS = [
    *(b'"%s":' % name for name in (b"inputs", b"outputs", b"parameters", b"data", b"shape", b"name", b"id")),
    *(b'"%s"' % word for word in (b"FP32", b"INT8", b"BYTES", b"BOOL", b"UINT64", b"IN", b"OUT", b"A", b"S")),
    b'"binary_data_size":',
    b'"binary_data":true',
    b'"classification":',
    b'"sequence_id":',
    b'"shared_memory_region":"r"',
    b"NaN",
    b"Infinity",
    b"-0",
    b"1e400",
    b"null",
    b"true",
    b"[]",
    b"{}",
    b"\\u0000",
    b"\\ud800",
    b"9223372036854775808",
]
