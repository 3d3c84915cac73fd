"""Batches as the wire has them, without a ring."""

from __future__ import annotations

from typing import Any

import pytest
from stubserve_stub.wire import messages, places, strings
from stubserve_stub.wire.datatypes import BYTES
from stubserve_stub.wire.places import InArena, Shared, Zeros

from stubserve.inference.request import SEQUENCE_START, Request
from stubserve.inference.tensor import Tensor, drop_blocks
from stubserve.inference.work import Work
from stubserve.instances.batch import InFlightBatch, pack_batch, read_result
from stubserve.memory.blocks import Block, Span
from stubserve.memory.server_memory import Memory
from stubserve.memory.stub_memory import StubMemory
from tests.inference.models import request
from tests.instances.fakes import FP32, LIMIT, small


def block(released: list[Block], offset: int = 4096, nbytes: int = 8192) -> Block:
    return Block(offset, nbytes, memoryview(bytearray(nbytes)), released.append)


def unpacked(slots: list[Request | None], extras: Any = None) -> tuple[Any, ...]:
    message: tuple[Any, ...] = messages.unpack(pack_batch(3, [64], Work.of_slots(slots, extras)))
    kind, number, frees, requests = message
    assert (kind, number, frees) == (messages.EXECUTE, 3, (64,))
    found: tuple[Any, ...] = requests
    return found


def test_a_request_with_all_that_it_can_have() -> None:
    fields = {
        "id": "a",
        "correlation_id": "seq",
        "flags": SEQUENCE_START,
        "priority": 2,
        "timeout_us": 5,
        "parameters": {"p": 1},
        "requested_outputs": ["OUT"],
    }
    [wire] = unpacked([request(small(1), **fields)])
    assert wire == ("a", ("seq", 1, 2, 5, {"p": 1}), None, ("OUT",), (("IN", FP32, (1,), b"\1\0\0\0"),))


def test_a_model_is_told_what_the_scheduler_makes_of_a_sequence() -> None:
    one, other = (request(small(1), correlation_id=7, flags=SEQUENCE_START) for _ in range(2))
    work = Work([one, other])
    work.options = [one.options._replace(correlation_id=5, flags=0), None]
    _, _, _, requests = messages.unpack(pack_batch(3, [], work))
    assert [wire[1][:2] for wire in requests] == [(5, 0), (7, SEQUENCE_START)]


def test_strings_go_one_by_one_where_they_came_so() -> None:
    elements = (b"a", "é".encode(), b"\xff\0", b"")
    tensor = Tensor.of_strings("IN", [1, 4], elements, 4 * 4 + 5)
    [wire] = unpacked([request(tensor)])
    assert wire[-1] == (("IN", BYTES, (1, 4), places.AsList(elements)),)
    # Whoever wants the bytes of the tensor has them, and its stub still gets the strings.
    assert tensor.nbytes == len(tensor.buffer)
    assert tensor.data == tensor.buffer == strings.join([*elements])
    assert unpacked([request(tensor)]) == (wire,)


@pytest.mark.parametrize("datatype", [BYTES, FP32])
def test_a_stub_answers_with_strings_one_by_one(datatype: int) -> None:
    batch = InFlightBatch(Work([request(small(1))]), None)
    entry = (None, [("OUT", datatype, (2,), tuple(places.AsList((b"a", b""))))], None)
    [(_, response)], _ = read_result(batch, 1, 2, [entry], None, StubMemory(Memory(LIMIT).segments), "m_0")
    if datatype == BYTES:
        [output] = response.outputs
        assert (output.elements, output.strings, output.nbytes) == ((b"a", b""), 2, 9)
        assert bytes(output.buffer) == strings.join([b"a", b""])
    else:
        why = "is a list of strings, which only a tensor of BYTES may be"
        assert str(response.error) == f"output 'OUT' of stub 'm_0' {why}"


def test_sharing_is_the_spans_alone() -> None:
    released: list[Block] = []
    body = block(released)
    one, other = (Tensor("IN", FP32, (1024,), None, Span(body.hold(), 4096 + at, 4096)) for at in (0, 4096))
    body.drop()
    assert one.span is not None
    one.span.shared = True
    part = Tensor("PART", FP32, (16,), None, one.span.hold(), 4160, 64)
    [(*_, inputs)] = unpacked([request(one, other, part)])
    assert [place for _, _, _, place in inputs] == [Shared(4096, 4096), InArena(8192, 4096), Shared(4160, 64)]
    drop_blocks([one, other])
    assert not released
    drop_blocks([part])
    assert released == [body]


def test_empty_slots_and_extra_inputs() -> None:
    first, second = request(small(1)), request(small(2))
    extra = Tensor("READY", FP32, (1,), b"\0\0\x80\x3f")
    one, control, other, empty = unpacked([first, None, second, None], [[extra], [extra], [], []])
    assert [name for name, _, _, _ in one[4]] == ["IN", "READY"]
    assert [name for name, _, _, _ in control[4]] == ["READY"]
    assert [name for name, _, _, _ in other[4]] == ["IN"]
    assert empty is None
    assert len(first.inputs) == 1


def test_zeros_of_an_empty_slot_travel_as_their_size() -> None:
    nothing = Tensor("IN", FP32, (1, 1 << 20), None, nbytes=4 << 20)
    packed = pack_batch(3, [], Work.of_slots([request(small()), *[None] * 99], [[], *[[nothing]] * 99]))
    assert len(packed) < 4096
    *_, wire = messages.unpack(packed)
    assert [one[4] for one in wire[1:]] == [(("IN", FP32, (1, 1 << 20), Zeros(4 << 20)),)] * 99


def test_extra_inputs_for_every_slot_or_none() -> None:
    with pytest.raises(ValueError, match="zip"):
        pack_batch(3, [], Work.of_slots([request(small()), None], [[]]))


def test_who_is_unanswered() -> None:
    first, second, third = (request(small()) for _ in range(3))
    full = InFlightBatch(Work([first, second]), None)
    assert full.unanswered() == [first, second]
    holes = InFlightBatch(Work.of_slots([None, first, second, None, third]), None)
    assert holes.unanswered() == [first, second, third]
    holes.answered = {2}
    assert holes.unanswered() == [first, third]


def test_a_batch_holds_its_extra_inputs() -> None:
    released: list[Block] = []
    one, other = block(released), block(released, 1 << 20)
    extras = [[Tensor("A", FP32, (2048,), None, one.whole())], [Tensor("B", FP32, (2048,), None, other.whole())]]
    batch = InFlightBatch(Work.of_slots([request(), request()], extras), None)
    assert [tensor.name for tensor in batch.tensors()] == ["A", "B"]
    for tensors in extras:
        drop_blocks(tensors)
    taken = batch.take_extras(1)
    assert [tensor.name for tensor in batch.tensors()] == ["A"]
    batch.drop()
    assert released == [one]
    drop_blocks(taken)
    assert released == [one, other]
