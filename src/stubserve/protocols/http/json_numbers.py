"""JSON requests whose numbers change while everything around them stays the same.

`split` cuts the `data` arrays out of a request's text without parsing it, on a guess: an array ends with the last
bracket before the next quote or brace. What is left, the frame, has an empty array in each place. A wrong guess does no
harm, for it has to pass two checks. `is_frame` says whether a frame, out of a request that was read in full, has empty
arrays in all of its inputs; then each array that was cut out was the whole value of one input's `data`, and may be
exchanged for any other value. And `pack` takes nothing but arrays of numbers that fit; for all else it returns None,
and the request is read in full, for the values that it then has or the error that it deserves.

256 numbers, decoded and admitted: 11 µs, of which 4 are orjson's, in place of 24.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from functools import lru_cache
from itertools import chain
from typing import Any

import orjson

from stubserve.inference.tensor import Tensor
from stubserve.protocols.http.json_values import find, parse_json

# By type number, the format with which struct takes what upstream takes, or fails. Python's own "f" makes what is
# beyond a float infinite, as upstream does.
_FORMATS = {2: "B", 3: "H", 4: "I", 5: "Q", 6: "b", 7: "h", 8: "i", 9: "q", 11: "f", 12: "d"}
_FIELD = b'"data":'
# How many lists inside lists are taken apart here; more are rare.
_NESTING = 4


def pack(arrays: Sequence[bytes], kinds: Sequence[tuple[int, int]]) -> bytes | None:
    """Arrays as the bytes of inputs of `kinds` (datatype, nbytes), one behind the other.

    None unless every array has the right count of the right numbers.
    """
    packed = []
    try:
        for text, kind in zip(arrays, kinds, strict=True):
            # struct takes a boolean for a number. Numbers have none of these letters.
            if b"u" in text or b"s" in text:
                return None
            values = orjson.loads(text)
            if type(values[0]) is list:
                values = _flat(values)
            packed.append(_packer(*kind)(*values))
    except (orjson.JSONDecodeError, struct.error, TypeError, LookupError, OverflowError):
        return None
    return packed[0] if len(packed) == 1 else b"".join(packed)


@lru_cache(maxsize=256)
def _packer(datatype: int, nbytes: int) -> Callable[..., bytes]:
    letter = _FORMATS[datatype]
    return struct.Struct(f"{nbytes // struct.calcsize(letter)}{letter}").pack


def _flat(values: list[Any]) -> list[Any]:
    """The elements of a list of lists of one depth. Raises TypeError or IndexError for most others."""
    for _ in range(_NESTING):
        values = list(chain.from_iterable(values))
        if type(values[0]) is not list:
            break
    return values


def split(text: bytes) -> tuple[bytes, list[bytes]]:
    """The frame of a request's JSON, and the arrays that were where it has empty ones."""
    frame = []
    arrays = []
    done = at = 0
    while (at := text.find(_FIELD, at)) >= 0:
        at += len(_FIELD)
        if text.startswith(b" ", at):
            at += 1
        if text.startswith(b"[", at):
            quote = text.find(b'"', at)
            stop = quote if quote >= 0 else len(text)
            brace = text.find(b"}", at, stop)
            end = text.rfind(b"]", at, brace if brace >= 0 else stop) + 1
            if end:
                frame.append(text[done:at])
                arrays.append(text[at:end])
                done = at = end
    frame.append(text[done:])
    return b"[]".join(frame), arrays


def is_frame(frame: bytes, inputs: Sequence[Tensor], arrays: Sequence[bytes]) -> bool:
    """Whether other arrays in `frame` would mean the same request with other numbers.

    `inputs` are those of the request that `frame` and `arrays` came from.
    """
    if len(arrays) != len(inputs) or not all(tensor.nbytes and tensor.datatype in _FORMATS for tensor in inputs):
        return False
    try:
        # Where orjson refuses a frame, numbers would be read in another way too.
        orjson.loads(frame)
    except orjson.JSONDecodeError:
        return False
    items = find(parse_json(frame), "inputs")
    return isinstance(items, list) and len(items) == len(inputs) and all(find(item, "data") == [] for item in items)
