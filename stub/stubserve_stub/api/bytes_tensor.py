"""BYTES tensors: on the wire each element is its length (4 bytes, little-endian) and then its bytes, in C order.

Decoding is `wire.strings.split`, encoding is `wire.strings.join`. Elements that all have one length (hashes, padded
text, a column of labels) need no loop: numpy cuts them as one array of void scalars.

1000 strings of 1 to 20 bytes: decode 130 µs (with a slice per element 190), encode 65 µs; of one length 20 and 38 µs.
"""

from __future__ import annotations

import struct
from typing import Any, List, Sequence, Union

import numpy as np

from stubserve_stub.api.exceptions import TritonModelException
from stubserve_stub.wire import strings

Buffer = Union[bytes, bytearray, memoryview, "np.ndarray[Any, Any]"]

_unpack_length = struct.Struct("<I").unpack_from


def elements_of(array: "np.ndarray[Any, Any]") -> List[bytes]:
    """The elements of an array of objects or of `S` strings; objects that are not exactly `bytes` go through `str()`.

    Raises UnicodeEncodeError for text with lone surrogates, and what an object's `__str__` raises.
    """
    elements: List[Any] = [array.item()] if array.size == 1 else array.reshape(-1).tolist()
    if list(map(type, elements)).count(bytes) != len(elements):
        elements = [element if type(element) is bytes else str(element).encode() for element in elements]
    return elements


def encode(array: "np.ndarray[Any, Any]") -> bytes:
    """An array as a blob. Raises as `elements_of` does."""
    return strings.join(elements_of(array))


def decode(blob: Buffer) -> List[bytes]:
    """The elements of a blob. Raises TritonModelException if it does not end where an element does."""
    try:
        return strings.split(blob if isinstance(blob, bytes) else bytes(blob))
    except ValueError as malformed:
        raise TritonModelException(f"Invalid bytes tensor data: {malformed}") from None


def decode_array(blob: Buffer) -> "np.ndarray[Any, Any]":
    """The elements of a blob as a writable one-dimensional array of objects. Raises as `decode` does."""
    data = blob if isinstance(blob, bytes) else bytes(blob)
    if len(data) >= 4 and len(data) == 4 + _unpack_length(data)[0]:
        array = np.empty(1, np.object_)
        array[0] = data[4:]
        return array
    rows = strings.of_one_length(data)
    return object_array(decode(data)) if rows is None else rows.astype(np.object_)


def object_array(elements: Sequence[Union[bytes, str]]) -> "np.ndarray[Any, Any]":
    """A writable one-dimensional array of objects."""
    return np.array(elements, np.object_)
