"""The elements of a BYTES tensor: each is four bytes of length, little endian, and so many bytes.

Whether a tensor holds as many as its shape says has to be found out from its bytes, by the quickest way that they
allow: `strings.of_one_length`, where all are of one length; `strings.is_short_text`, where they are short; else by
walking from one to the next.
"""

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

# The product of a longer shape is a number that may take long to work out.
MAX_DIMS = 64
_LENGTH = Struct("<I")
# Bytes per element above which walking from one to the next is quicker than looking at all bytes.
_SHORT = 64
# How many elements are walked in one step.
_STRINGS = 4096


def check_strings(request: Request, tensor: Tensor, expected: int, model: str) -> None:
    """Checks that a BYTES tensor holds exactly `expected` elements, each behind its length. Raises ServeError.

    Upstream's core does not look at the end of the last element; the text for it is that of its Python backend.
    """
    if tensor.strings != expected and not holds_strings(tensor.buffer, expected):
        raise finish(_walk(tensor.buffer)).refusal(request, tensor, expected, model)


def holds_strings(data: bytes | memoryview, expected: int) -> bool:
    """Whether there are exactly `expected` elements in the data, each behind its length.

    About 0.1 µs per element where `wire.strings` has no quicker way.
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
    """Finds out what a large tensor holds, in steps."""
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
    """What walking through the elements of a BYTES tensor has found.

    There are `count` of them in `size` bytes, the last of which is said to end `at`; it begins at `start` and has
    `length` bytes. Where fewer than four bytes are left for another length, `at` is where they begin.
    """

    __slots__ = ("at", "count", "length", "size", "start")

    def __init__(self, size: int) -> None:
        self.size = size
        self.at = self.count = self.length = self.start = 0

    def holds(self, expected: int) -> bool:
        """Whether there are so many whole elements and nothing else."""
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
