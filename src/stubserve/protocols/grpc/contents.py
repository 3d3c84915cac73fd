"""The `contents` of an input: numbers and strings as protobuf has them, made into a tensor's bytes.

No Python object is built per number: a message's own serializer gives the elements as one run of bytes, which is the
tensor for floats and booleans, and is decoded by numpy for integers (about 10 ns per element).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from stubserve_stub.wire.datatypes import BY_NAME, BY_NUMBER, BYTES

from stubserve.errors import ServeError, invalid
from stubserve.protocols.grpc.wire import read_varint

# Member -> the data types that it serves, the first being the one that errors name. In the order of upstream's checks.
_MEMBERS = {
    "bool_contents": ("BOOL",),
    "int_contents": ("INT32", "INT16", "INT8"),
    "int64_contents": ("INT64",),
    "uint_contents": ("UINT32", "UINT16", "UINT8"),
    "uint64_contents": ("UINT64",),
    "fp32_contents": ("FP32",),
    "fp64_contents": ("FP64",),
    "bytes_contents": ("BYTES",),
}
_SERVES = {member: [BY_NAME[name].number for name in names] for member, names in _MEMBERS.items()}
# Protobuf writes these as the tensor has them.
_VERBATIM = frozenset(("bool_contents", "fp32_contents", "fp64_contents"))
_PIECE_BYTES = 1 << 20


def read(contents: Any, name: str, datatype: int, model: str) -> bytes:
    """The bytes of input `name` from its InferTensorContents. Raises ServeError (INVALID_ARG) in upstream's words."""
    found = b""
    for member, served in _SERVES.items():
        elements = getattr(contents, member)
        if not elements:
            continue
        if found:
            raise _unexpected(name, model, ", binary data was already supplied.")
        if datatype not in served:
            raise _unexpected(
                name, model, f" of type '{BY_NUMBER[served[0]].name}', expected datatype '{_name(datatype)}'"
            )
        found = _strings(elements) if datatype == BYTES else _numbers(contents, member, datatype)
    return found


def _numbers(contents: Any, member: str, datatype: int) -> bytes:
    only = type(contents)()
    getattr(only, member).MergeFrom(getattr(contents, member))
    # One packed field: its tag (one byte, the numbers are small), its length, its elements.
    wire = only.SerializeToString()
    _, start = read_varint(wire, 1)
    if member in _VERBATIM:
        return bytes(wire[start:])
    kind = BY_NUMBER[datatype].numpy
    return b"".join([_varints(piece).astype(kind).tobytes() for piece in _pieces(wire, start)])


def _pieces(wire: bytes, start: int) -> Iterator[np.ndarray]:
    """Packed varints in runs of about _PIECE_BYTES: decoding takes fifty times the memory of what is decoded."""
    data = np.frombuffer(wire, np.uint8)
    while start < len(wire):
        end = min(start + _PIECE_BYTES, len(wire))
        while wire[end - 1] >= 0x80:
            end += 1
        yield data[start:end]
        start = end


def _varints(data: np.ndarray) -> np.ndarray:
    """Packed varints as uint64; each at most ten bytes, the last of which is below 0x80."""
    ends = np.flatnonzero(data < 0x80)
    starts = np.empty_like(ends)
    starts[0] = 0
    starts[1:] = ends[:-1] + 1
    lengths = ends - starts + 1
    shifts = (np.arange(len(data)) - np.repeat(starts, lengths)).astype(np.uint64) * np.uint64(7)
    return np.bitwise_or.reduceat((data & 0x7F).astype(np.uint64) << shifts, starts)


def _strings(elements: Any) -> bytes:
    parts: list[bytes] = []
    for element in elements:
        parts.append(len(element).to_bytes(4, "little"))
        parts.append(element)
    return b"".join(parts)


def _unexpected(name: str, model: str, why: str) -> ServeError:
    return invalid(f"unexpected explicit tensor data for input tensor '{name}' for model '{model}'{why}")


def _name(datatype: int) -> str:
    return BY_NUMBER[datatype].name if datatype in BY_NUMBER else "<invalid>"
