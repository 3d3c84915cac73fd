"""Entries as bytes, for stores outside of this process, and back.

Anybody may have written what such a store returns. So all of it is checked: its length, a checksum over it and over its
key, and every field. Nothing in it is ever executed or unpickled.

    "SRC1" | SHA-256 of the key and of all that follows (32 bytes) | length of the header (4 bytes, little-endian)
    header: msgpack of [[[name, data type, [dimension, ...], bytes], ...], {parameter: value}]
    the bytes of the outputs, one behind the other
"""

from __future__ import annotations

from hashlib import sha256
from math import prod
from struct import Struct
from typing import Any

import msgpack
from stubserve_stub.wire.datatypes import BY_NUMBER, BYTES

from stubserve.inference.tensor import Tensor
from stubserve.response_cache.entry import CacheEntry

_MAGIC = b"SRC1"
_DIGEST_BYTES = 32
_LENGTH = Struct("<I")
_HEADER_AT = len(_MAGIC) + _DIGEST_BYTES + _LENGTH.size
_MOST_HEADER = 1 << 20


class BadEntry(ValueError):
    """Bytes that are no entry of this key; the text says why."""


def to_bytes(key: bytes, entry: CacheEntry) -> bytes:
    """An entry as bytes. Raises ValueError if it cannot be written so."""
    outputs = [(one.name, one.datatype, list(one.shape), one.nbytes) for one in entry.outputs]
    try:
        header = msgpack.packb((outputs, entry.parameters or {}))
    except (TypeError, OverflowError, UnicodeEncodeError) as wrong:
        raise ValueError(str(wrong)) from None
    rest = b"".join((_LENGTH.pack(len(header)), header, *(one.buffer for one in entry.outputs)))
    return b"".join((_MAGIC, _digest(key, rest), rest))


def from_bytes(key: bytes, data: bytes) -> CacheEntry:
    """The entry in `data`, in the heap. Raises BadEntry."""
    if len(data) < _HEADER_AT or not data.startswith(_MAGIC):
        raise BadEntry("it is not one of this server's")
    rest = memoryview(data)[len(_MAGIC) + _DIGEST_BYTES :]
    if _digest(key, rest) != data[len(_MAGIC) : len(_MAGIC) + _DIGEST_BYTES]:
        raise BadEntry("its checksum is wrong")
    length = _LENGTH.unpack_from(rest)[0]
    if length > _MOST_HEADER:
        raise BadEntry("its header is too long")
    at = _HEADER_AT + length
    try:
        outputs, parameters = msgpack.unpackb(data[_HEADER_AT:at], strict_map_key=True)
        tensors = []
        for name, datatype, shape, nbytes in outputs:
            _check_output(name, datatype, shape, nbytes)
            tensors.append(Tensor(name, datatype, tuple(shape), data[at : at + nbytes]))
            at += nbytes
    except BadEntry:
        raise
    except Exception as wrong:
        raise BadEntry(f"its header cannot be read: {wrong!r}") from None
    if at != len(data):
        raise BadEntry(f"it has {len(data)} bytes, and its header speaks of {at}")
    if not isinstance(parameters, dict) or not all(
        isinstance(one, str | bool | int | float) for one in parameters.values()
    ):
        raise BadEntry("its parameters are none")
    return CacheEntry(tensors, parameters or None)


def _digest(key: bytes, rest: bytes | memoryview) -> bytes:
    digest = sha256(key)
    digest.update(rest)
    return digest.digest()


def _check_output(name: Any, datatype: Any, shape: Any, nbytes: Any) -> None:
    if not isinstance(name, str) or type(datatype) is not int or datatype not in BY_NUMBER:
        raise BadEntry("an output has no name or type")
    if not isinstance(shape, list) or not all(type(one) is int and one >= 0 for one in (*shape, nbytes)):
        raise BadEntry(f"the shape of output '{name}' is none")
    if datatype != BYTES and prod(shape) * BY_NUMBER[datatype].itemsize != nbytes:
        raise BadEntry(f"the bytes of output '{name}' do not fit its shape")
