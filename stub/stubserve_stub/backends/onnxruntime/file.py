"""An ONNX file's own description, read without loading it: versions, and the place of its external data.

An ONNX file is one protobuf message. Only the few needed fields are read, and weights are skipped in a memory map: a
file of 2 GB costs no more than its nodes, about 0.1 ms for each thousand fields. This is done before onnxruntime gets
the file, for two reasons. A file that is cut off, or is no ONNX, gets an error that says so. And the paths of other
files in it are checked with every version of onnxruntime, because such a file often comes from strangers.
"""

from __future__ import annotations

import mmap
import os
from typing import Any, Dict, Iterator, NamedTuple, Set, Tuple

from stubserve_stub.backends.loading import HEAD_BYTES, resemblance
from stubserve_stub.runtime.failure import Refusal

# Kinds of fields on the wire
_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5

# The fields of each message that may contain tensors: field -> kind of message
_MODEL, _GRAPH, _NODE, _ATTRIBUTE, _TENSOR, _SPARSE, _FUNCTION = range(7)
_INSIDE: Dict[int, Dict[int, int]] = {
    _MODEL: {7: _GRAPH, 25: _FUNCTION},
    _GRAPH: {1: _NODE, 5: _TENSOR, 15: _SPARSE},
    _FUNCTION: {7: _NODE},
    _NODE: {5: _ATTRIBUTE},
    _ATTRIBUTE: {5: _TENSOR, 6: _GRAPH, 10: _TENSOR, 11: _GRAPH, 22: _SPARSE, 23: _SPARSE},
    _SPARSE: {1: _TENSOR, 2: _TENSOR},
}
_IR_VERSION, _OPSET_IMPORT, _EXTERNAL_DATA = 1, 8, 13

# onnxruntime's own format, which onnxruntime checks
_ORT_FORMAT = b"ORTM"


class OnnxFile(NamedTuple):
    """`opsets` are versions by domain (empty for ONNX's own); `external` are files of weights, as the file has them."""

    ir_version: int
    opsets: Dict[str, int]
    external: Set[str]


class CutOff(Exception):
    """A field ends behind its message."""


def read(path: str) -> OnnxFile:
    """Raises Refusal if the file is no complete ONNX file, or if its weights are missing or lie outside its folder."""
    found = _scan(path)
    folder = os.path.dirname(path)
    for location in sorted(found.external):
        inside = os.path.normpath(os.path.join(folder, location))
        if os.path.isabs(location) or not inside.startswith(os.path.join(os.path.normpath(folder), "")):
            raise Refusal(
                f"'{path}' has weights in '{location}', which is outside of its folder: nothing is read there"
            )
        if not os.path.isfile(inside):
            raise Refusal(f"'{path}' has weights in '{location}', but there is no file '{inside}'")
    return found


def _scan(path: str) -> OnnxFile:
    found = OnnxFile(0, {}, set())
    try:
        with open(path, "rb") as file:
            if not os.fstat(file.fileno()).st_size:
                raise Refusal(f"'{path}' is no ONNX model: it is empty")
            # The last view unmaps it, which may be in the frames of an error.
            view = memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))
    except OSError as error:
        raise Refusal(f"'{path}' cannot be read: {error.strerror}") from None
    return found if bytes(view[4:8]) == _ORT_FORMAT else _read_model(path, view)


def _read_model(path: str, view: memoryview) -> OnnxFile:
    ir_version, opsets = 0, {}
    external: Set[str] = set()
    seen: Set[int] = set()
    try:
        for number, value in fields(view):
            seen.add(number)
            if number == _IR_VERSION and isinstance(value, int):
                ir_version = value
            elif number == _OPSET_IMPORT and isinstance(value, memoryview):
                entry = dict(fields(value))
                opsets[text_of(entry.get(1, b""))] = int(entry.get(2, 0))
            elif number in _INSIDE[_MODEL] and isinstance(value, memoryview):
                _collect(_INSIDE[_MODEL][number], value, external)
    except (CutOff, ValueError, TypeError):
        # A file that begins as a model was cut off; any other file is something else.
        if ir_version and max(seen) < 100:
            raise Refusal(
                f"'{path}' is no whole ONNX model: it is damaged, or cut off after {view.nbytes} bytes"
            ) from None
        seen.clear()
    if 7 not in seen:
        raise Refusal(f"'{path}' is no ONNX model: it has no graph{resemblance(bytes(view[:HEAD_BYTES]))}")
    return OnnxFile(ir_version, opsets, external)


def _collect(kind: int, message: memoryview, external: Set[str]) -> None:
    """Notes the files of all tensors in a message."""
    if kind == _TENSOR:
        for number, value in fields(message):
            if number == _EXTERNAL_DATA and isinstance(value, memoryview):
                entry = dict(fields(value))
                if bytes(entry.get(1, b"")) == b"location":
                    external.add(text_of(entry.get(2, b"")))
        return
    inside = _INSIDE[kind]
    for number, value in fields(message):
        if number in inside and isinstance(value, memoryview):
            _collect(inside[number], value, external)


def fields(message: memoryview) -> Iterator[Tuple[int, Any]]:
    """Number and value of each field of a message: an integer, or a view. Raises CutOff."""
    at, end = 0, len(message)
    while at < end:
        key, at = _varint(message, at)
        number, kind = key >> 3, key & 7
        if not number:
            raise CutOff
        if kind == _VARINT:
            value, at = _varint(message, at)
            yield number, value
            continue
        if kind == _BYTES:
            length, at = _varint(message, at)
        elif kind in (_FIXED32, _FIXED64):
            length = 4 if kind == _FIXED32 else 8
        else:
            raise CutOff
        if at + length > end:
            raise CutOff
        yield number, message[at : at + length]
        at += length


def _varint(message: memoryview, at: int) -> Tuple[int, int]:
    value = shift = 0
    try:
        while True:
            byte = message[at]
            at += 1
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                return value, at
            shift += 7
            if shift > 63:
                raise CutOff
    except IndexError:
        raise CutOff from None


def text_of(value: Any) -> str:
    return bytes(value).decode("utf-8", "backslashreplace")
