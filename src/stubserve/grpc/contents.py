"""The `contents` of an input: numbers and strings as protobuf has them, made into a tensor's bytes.

No Python object is built per number. The elements are one run of bytes: for floats the tensor itself, for integers
decoded by numpy (about 10 ns per element). The run comes from a message's own serializer (`read`), or, for large
messages, from the bytes as sent (`Elements`).
"""

# Compiled by mypyc.
from __future__ import annotations

from collections.abc import Iterator
from struct import Struct
from struct import error as StructError
from typing import Any

import numpy as np
from stubserve_stub.wire import strings
from stubserve_stub.wire.datatypes import BY_NAME, BY_NUMBER, BYTES, name_of

from stubserve.errors import ServeError, invalid
from stubserve.grpc.transport import Keep
from stubserve.grpc.wire import (
    FIXED32,
    FIXED64,
    LENGTH,
    VARINT,
    Malformed,
    TooManyParts,
    read_tag,
    read_varint,
    skip,
    varint,
)
from stubserve.inference.long_work import LongWork

# Member -> the data types that it serves; errors name the first. In the order of upstream's checks, by field number.
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
# For these protobuf's serializer writes the bytes of the tensor.
_VERBATIM = frozenset(("bool_contents", "fp32_contents", "fp64_contents"))
_PIECE_BYTES = 1 << 20
# One step of `Elements`: bytes of numbers, and a count of strings or fields. A message may have at most MAX_PARTS
# elements that are fields of their own and not strings.
_STEP_BYTES = 32 * 1024
_FIELDS = 512
MAX_PARTS = 4096
_MAX_VARINT_BYTES = 10
_LENGTH_OF = Struct("<I").pack

# Field numbers and their one-element wire types
_BOOL, _FP32, _FP64, _STRINGS = 1, 6, 7, 8
_SINGLE = dict.fromkeys(range(1, 6), VARINT) | {_FP32: FIXED32, _FP64: FIXED64}
_WIDTH = {_FP32: 4, _FP64: 8}
_STRING_TAG = _STRINGS << 3 | LENGTH


def read(contents: Any, name: str, datatype: int, model: str) -> bytes:
    """The bytes of input `name` from its InferTensorContents. Raises ServeError (INVALID_ARG) with upstream's texts."""
    found = b""
    for member, served in _SERVES.items():
        elements = getattr(contents, member)
        if not elements:
            continue
        if found:
            raise _unexpected(name, model, ", binary data was already supplied.")
        if datatype not in served:
            raise _unexpected(
                name, model, f" of type '{BY_NUMBER[served[0]].name}', expected datatype '{name_of(datatype)}'"
            )
        found = strings.join(list(elements)) if datatype == BYTES else _numbers(contents, member, datatype)
    return found


class Elements:
    """The elements of one input's contents as they were sent; calls `keep` for the bytes that it keeps."""

    def __init__(self, keep: Keep) -> None:
        self._keep = keep
        # Per member: runs of its elements, with strings in the form of a tensor
        self._runs: dict[int, list[bytes | memoryview]] = {}

    def read(self, data: bytes | memoryview) -> LongWork[int]:
        """Takes an InferTensorContents; how many parts it has beside packed numbers and strings. Raises Malformed."""
        at, end, parts = 0, len(data), 0
        while at < end:
            tag, begin = read_tag(data, at)
            if tag == _STRING_TAG:
                at = self._read_strings(data, begin)
                yield None
                continue
            parts += 1
            number, wire = tag >> 3, tag & 7
            at = begin
            at = skip(data, at, wire)
            single = _SINGLE.get(number)
            if wire == LENGTH and single is not None:
                begin = read_varint(data, begin)[1]
            elif wire != single:
                continue  # unknown, or of another type: protobuf ignores it as well
            if begin < at:
                self._runs.setdefault(number, []).append(data[begin:at])
            if not parts % _FIELDS:
                if parts > MAX_PARTS:
                    raise TooManyParts("elements that are not packed", MAX_PARTS)
                yield None
        return parts

    def sample(self) -> bytes:
        """An InferTensorContents with one element for each member that has any."""
        return b"".join(
            varint(number << 3 | _SINGLE.get(number, LENGTH)) + bytes(_WIDTH.get(number, 1)) for number in self._runs
        )

    def as_tensor(self, datatype: str, keep: Keep) -> LongWork[list[bytes | memoryview] | None]:
        """The tensor's bytes in pieces; None if the elements are not of this type. Raises Malformed."""
        if not self._runs:
            return []
        if len(self._runs) > 1:
            return None
        [(number, runs)] = self._runs.items()
        if datatype not in tuple(_MEMBERS.values())[number - 1]:
            return None
        if number == _STRINGS:
            return runs
        width = _WIDTH.get(number)
        if width is not None:
            if any(len(run) % width for run in runs):
                raise Malformed
            return runs
        kind = BY_NAME[datatype].numpy
        made: list[bytes | memoryview] = []
        for run in runs:
            for piece in _decoded(run, kind, _STEP_BYTES):
                keep(len(piece))
                made.append(piece)
                yield None
        return made

    def _read_strings(self, data: bytes | memoryview, at: int) -> int:
        """Takes some of the strings in a row, the first with its length at `at`; the position behind the last."""
        end = len(data)
        out = bytearray()
        try:
            for _ in range(_FIELDS):
                length = data[at]
                if length < 0x80:
                    at += 1
                else:
                    length, at = read_varint(data, at)
                out += _LENGTH_OF(length)
                out += data[at : at + length]
                at += length
                if at >= end or data[at] != _STRING_TAG:
                    break
                at += 1
            else:
                at -= 1
        except (IndexError, StructError):
            raise Malformed from None
        if at > end:
            raise Malformed
        self._keep(len(out))
        self._runs.setdefault(_STRINGS, []).append(bytes(out))
        return at


def _numbers(contents: Any, member: str, datatype: int) -> bytes:
    only = type(contents)()
    getattr(only, member).MergeFrom(getattr(contents, member))
    # One packed field: its tag (one byte, because the numbers are small), its length, its elements.
    wire = only.SerializeToString()
    _, start = read_varint(wire, 1)
    if member in _VERBATIM:
        return bytes(wire[start:])
    return b"".join(_decoded(wire[start:], BY_NUMBER[datatype].numpy))


def _decoded(wire: bytes | memoryview, kind: Any, step: int = 0) -> Iterator[bytes]:
    """Packed varints as numbers of `kind`, `step` bytes of them at a time. Raises Malformed."""
    return (_varints(piece).astype(kind).tobytes() for piece in _pieces(wire, step or _PIECE_BYTES))


def _pieces(wire: bytes | memoryview, size: int) -> Iterator[np.ndarray]:
    """Packed varints in runs of about `size` bytes. Decoding takes fifty times the memory of its input."""
    data = np.frombuffer(wire, np.uint8)
    start = 0
    if not len(wire) or wire[-1] >= 0x80:
        raise Malformed
    while start < len(wire):
        end = min(start + size, len(wire))
        last = wire[end - 1 : end + _MAX_VARINT_BYTES]
        # The number that is cut here goes into this piece. If it is too long, its decoder finds that.
        end += next((index for index, byte in enumerate(last) if byte < 0x80), 0)
        yield data[start:end]
        start = end


def _varints(data: np.ndarray) -> np.ndarray:
    """Packed varints as uint64; each has at most ten bytes, the last below 0x80. Raises Malformed."""
    ends = np.flatnonzero(data < 0x80)
    if not len(ends) or ends[-1] != len(data) - 1:
        raise Malformed
    starts = np.empty_like(ends)
    starts[0] = 0
    starts[1:] = ends[:-1] + 1
    lengths = ends - starts + 1
    if lengths.max() > _MAX_VARINT_BYTES:
        raise Malformed
    shifts = (np.arange(len(data)) - np.repeat(starts, lengths)).astype(np.uint64) * np.uint64(7)
    return np.bitwise_or.reduceat((data & 0x7F).astype(np.uint64) << shifts, starts)


def _unexpected(name: str, model: str, why: str) -> ServeError:
    return invalid(f"unexpected explicit tensor data for input tensor '{name}' for model '{model}'{why}")
