"""Rewrites large requests that have no raw contents: in steps, as messages with raw contents.

Typed contents may be millions of elements, and a description millions of tiny parts. Protobuf's own parser would take
them apart in one go, in which nothing else runs, and build an object for each. So a large message with a large
description is first walked here, in steps. Its parts are counted; contents become raw contents, numbers in numpy's
loops; the rest may not be longer than MAX_WORDS_BYTES. The result is an ordinary message for `infer_decode`, with a
short description.

Guarantee: a message keeps its meaning. Wrong contents (of another type than the input, or beside raw contents) are cut
down to a part that causes the same error. Costs: 10 ns for a number, half a microsecond for a string.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

from google.protobuf.message import DecodeError

from stubserve.grpc.contents import MAX_PARTS, Elements
from stubserve.grpc.infer_decode import split
from stubserve.grpc.messages import service_pb2
from stubserve.grpc.transport import Keep
from stubserve.grpc.wire import LENGTH, Malformed, TooLong, TooManyParts, field, fields, varint
from stubserve.inference.long_work import LARGE_BYTES, LongWork
from stubserve.memory.heap_account import MAX_WORDS_BYTES

_INPUT, _RAW = 5, 7
_SHAPE, _CONTENTS = 3, 5
_RAW_TAG = bytes((_RAW << 3 | LENGTH,))

Bytes = bytes | memoryview
Pieces = list[Bytes]


class _Kind(NamedTuple):
    """A type of message: the types of the messages inside it, by field number."""

    within: dict[int, _Kind]


_VALUE = _Kind({})
_ENTRY = _Kind({2: _VALUE})
_OUTPUT = _Kind({2: _ENTRY})
_INPUT_REST = _Kind({4: _ENTRY})
_REQUEST_REST = _Kind({4: _ENTRY, 6: _OUTPUT})


class _Input(NamedTuple):
    """An input without its contents, and its contents (None if it has none)."""

    rest: bytes
    elements: Elements | None


def rewrite(data: Bytes) -> Callable[[Keep], LongWork[Pieces]] | None:
    """The work that rewrites a message before it is decoded; None if that is not needed. The work raises Malformed."""
    try:
        description = len(split(data).description)
    except Malformed:
        return None
    return None if description <= LARGE_BYTES else _Walk(data).pieces


class _Walk:
    """One message, taken apart on all its levels. Raises Malformed.

    At most MAX_PARTS parts are read beside the elements of typed contents, which is too little work for steps.
    """

    def __init__(self, data: Bytes) -> None:
        self._data = data
        self._parts = 0

    def pieces(self, keep: Keep) -> LongWork[Pieces]:
        rest: Pieces = []
        raw: Pieces = []
        inputs: list[_Input] = []
        for number, wire, whole, content in self._fields(self._data):
            if wire == LENGTH and number == _INPUT:
                inputs.append((yield from self._input(content, keep)))
            elif wire == LENGTH and number == _RAW:
                raw.append(whole)
            else:
                if wire == LENGTH and number in _REQUEST_REST.within:
                    self._count(content, _REQUEST_REST.within[number])
                rest.append(whole)
        if sum(map(len, rest)) + sum(len(one.rest) for one in inputs) > MAX_WORDS_BYTES:
            raise TooLong
        made = None if raw else (yield from _all_raw(inputs, keep))
        if made is not None:
            return [b"".join([*rest, *(field(_INPUT, one.rest) for one in inputs)]), *made]
        for one in inputs:
            sample = b"" if one.elements is None else field(_CONTENTS, one.elements.sample())
            rest.append(field(_INPUT, one.rest + sample))
        return [b"".join(rest), *raw]

    def _input(self, data: Bytes, keep: Keep) -> LongWork[_Input]:
        rest: list[Bytes] = []
        elements: Elements | None = None
        for number, wire, whole, content in self._fields(data):
            if wire == LENGTH and number == _CONTENTS:
                if elements is None:
                    elements = Elements(keep)
                self._parts += yield from elements.read(content)
                self._check()
                continue
            if number == _SHAPE:
                self._parts += len(content)
                self._check()
            elif wire == LENGTH and number in _INPUT_REST.within:
                self._count(content, _INPUT_REST.within[number])
            rest.append(whole)
        return _Input(b"".join(rest), elements)

    def _count(self, data: Bytes, kind: _Kind) -> None:
        for number, wire, _, content in self._fields(data):
            if wire == LENGTH and number in kind.within:
                self._count(content, kind.within[number])

    def _fields(self, data: Bytes) -> Iterator[tuple[int, int, Bytes, Bytes]]:
        """Per field: number, wire type, the whole field and its content."""
        for tag, begin, content, end in fields(data):
            self._parts += 1
            self._check()
            if end > len(data):
                raise Malformed
            yield tag >> 3, tag & 7, data[begin:end], data[content:end]

    def _check(self) -> None:
        if self._parts > MAX_PARTS:
            raise TooManyParts("parts", MAX_PARTS)


def _all_raw(inputs: list[_Input], keep: Keep) -> LongWork[Pieces | None]:
    """The raw contents in place of the inputs' own; None if these are wrong, or if an input has none."""
    made: Pieces = []
    for rest, elements in inputs:
        if elements is None:
            return None
        try:
            tensor = service_pb2.ModelInferRequest.InferInputTensor.FromString(rest)
        except DecodeError:
            raise Malformed from None
        if "shared_memory_region" in tensor.parameters:
            return None
        pieces = yield from elements.as_tensor(tensor.datatype, keep)
        if pieces is None:
            return None
        made += [_RAW_TAG + varint(sum(map(len, pieces))), *pieces]
    return made
