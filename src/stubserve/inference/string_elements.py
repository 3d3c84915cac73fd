"""The elements of a BYTES tensor: each has four bytes of length, little endian, and then that number of bytes.

Only the bytes tell whether a tensor holds as many elements as its shape demands. There are three ways, the quickest
that the bytes allow: `strings.of_one_length` for elements of one length, `strings.is_short_text` for short elements,
else a walk from each element to the next.
"""

# Compiled by mypyc.
from __future__ import annotations

from functools import partial
from math import prod
from struct import Struct
from struct import error as StructError

from stubserve_stub.wire import strings

from stubserve.errors import ServeError, invalid
from stubserve.inference.long_work import LongWork, finish
from stubserve.inference.request import Request
from stubserve.inference.tensor import Tensor

# The product of a longer shape may take long to compute.
MAX_DIMS = 64
_LENGTH = Struct("<I")
# Bytes per element above which the walk is quicker than a look at all bytes.
_SHORT = 64
# How many elements are walked in one step.
_STRINGS = 4096


def check_strings(request: Request, tensor: Tensor, expected: int, model: str) -> None:
    """Checks that a BYTES tensor holds exactly `expected` elements, each behind its length. Raises ServeError.

    Upstream's core does not check the end of the last element; the text for that fault is that of its Python backend.
    """
    if tensor.strings != expected and not holds_strings(tensor.buffer, expected):
        raise finish(_walk(tensor.buffer)).refusal(request, tensor, expected, model)


def holds_strings(data: bytes | memoryview, expected: int) -> bool:
    """Whether the data holds exactly `expected` elements.

    About 0.1 µs an element where `wire.strings` has no quicker way.
    """
    size = len(data)
    if size > strings.SMALL:
        rows = strings.of_one_length(data)
        if rows is not None and len(rows) == expected:
            return True
        if size < expected * _SHORT and strings.is_short_text(data, expected):
            return True
    length_at = _LENGTH.unpack_from
    at = count = 0
    try:
        while at < size:
            at += length_at(data, at)[0] + 4
            count += 1
    except StructError:
        return False
    return at == size and count == expected


def walk_quickly(tensor: Tensor) -> LongWork[StringWalk]:
    """Finds the elements of a large tensor, in steps."""
    data = tensor.buffer
    walk = StringWalk(len(data))
    rows = yield partial(strings.of_one_length, data)
    count = 0 if rows is None else len(rows)
    if rows is None and len(tensor.shape) <= MAX_DIMS:
        expected = prod(tensor.shape)
        if len(data) < expected * _SHORT and (yield partial(strings.is_short_text, data, expected)):
            count = expected
    if not count:
        return (yield from _walk(data))
    walk.at, walk.count = walk.size, count
    return walk


class StringWalk:
    """The result of a walk through the elements of a BYTES tensor.

    `count` elements were found in `size` bytes. The last element begins at `start`, has `length` bytes, and ends `at`
    by its length. If fewer than four bytes are left for another length, these begin `at`.
    """

    __slots__ = ("at", "count", "length", "size", "start")

    def __init__(self, size: int) -> None:
        self.size = size
        self.at = self.count = self.length = self.start = 0

    def holds(self, expected: int) -> bool:
        """Whether there are exactly `expected` whole elements, and no further bytes."""
        return self.at == self.size and self.count == expected

    def refusal(self, request: Request, tensor: Tensor, expected: int, model: str) -> ServeError:
        """Why a tensor that does not hold `expected` elements is refused; the first fault counts."""
        if self.count > expected or (self.count == expected and self.at < self.size):
            return request.refuse(
                f"unexpected number of string elements {expected + 1} for inference input '{tensor.name}' "
                f"for model '{model}', expecting {expected}",
            )
        if self.at < self.size:
            return request.refuse(
                f"incomplete string length indicator for inference input '{tensor.name}' for model '{model}', "
                f"expecting 4 bytes but only {self.size - self.at} bytes available. "
                "Please make sure the string length indicator is in one buffer.",
            )
        if self.count != expected:
            return request.refuse(
                f"expected {expected} string elements for inference input '{tensor.name}' for model '{model}', "
                f"got {self.count}",
            )
        return invalid(
            f"incomplete string data for inference input '{tensor.name}', expecting string of length {self.length} "
            f"but only {self.size - self.start} bytes available"
        )


def _walk(data: bytes | memoryview) -> LongWork[StringWalk]:
    """Walks from each element to the next, in steps."""
    size = len(data)
    walk = StringWalk(size)
    length_at = _LENGTH.unpack_from
    at = count = length = start = 0
    try:
        while at < size:
            for _ in range(_STRINGS):
                (length,) = length_at(data, at)
                start = at + 4
                at = start + length
                count += 1
                if at >= size:
                    break
            yield None
    except StructError:
        pass
    walk.at, walk.count, walk.length, walk.start = at, count, length, start
    return walk
