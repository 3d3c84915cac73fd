"""Which tensors of a request travel inside their message, and which lie in the arena."""

from __future__ import annotations

import pytest
from stubserve_stub.wire import strings
from stubserve_stub.wire.datatypes import BYTES
from stubserve_stub.wire.layout import INLINE_BYTES

from stubserve.api.placement import MOST_INLINE, SMALL_BYTES, BodyPlacer
from stubserve.inference.tensor import Tensor
from tests.http.arena import Memory

UINT8 = 2
TIMES = MOST_INLINE // INLINE_BYTES


def is_inside(tensor: Tensor) -> bool:
    return tensor.data is not None


def test_strings_go_inside_one_by_one_as_long_as_there_is_room(memory: Memory) -> None:
    placer = BodyPlacer(b"", None, 0, memory.store)
    several, most = ["é".encode(), b""], [b"x" * 200] * (MOST_INLINE // 204)
    lists = [several, most, most, several, [b"alone"], [b"x"] * 128]
    tensors = [placer.put_strings("IN", [len(elements)], elements) for elements in lists]
    assert [tensor.elements is not None for tensor in tensors] == [True, True, False, True, False, False]
    assert [is_inside(tensor) for tensor in tensors] == [True, True, False, True, True, True]
    for tensor, elements in zip(tensors, lists, strict=True):
        assert bytes(tensor.buffer) == strings.join(elements)
        assert (tensor.datatype, tensor.strings, tensor.nbytes) == (BYTES, len(elements), len(tensor.buffer))
    placer.undo()


@pytest.mark.parametrize("in_body", [False, True])
@pytest.mark.parametrize("sliced", [False, True])
def test_what_goes_inside_is_bounded_for_each_request(memory: Memory, in_body: bool, sliced: bool) -> None:
    """Small tensors go inside however many there are; of larger ones the first ones do."""
    sizes = [INLINE_BYTES + 1, SMALL_BYTES, *[INLINE_BYTES] * TIMES, INLINE_BYTES, SMALL_BYTES + 1, SMALL_BYTES]
    body = bytes(range(251)) * (sum(sizes) // 251 + 1)
    block = memory.store(body) if in_body else None
    placer = BodyPlacer(body, block, 0 if block is None else block.offset, memory.store)
    tensors = []
    at = 0
    for size in sizes:
        if sliced:
            tensors.append(placer.slice("IN", UINT8, [size], at, size))
        else:
            tensors.append(placer.put("IN", UINT8, [size], body[at : at + size]))
        assert bytes(tensors[-1].buffer) == body[at : at + size]
        at += size
    assert [is_inside(tensor) for tensor in tensors] == [False, True, *[True] * TIMES, False, False, True]
    placer.undo()
    if block is not None:
        block.drop()
