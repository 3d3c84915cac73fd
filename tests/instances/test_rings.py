"""Answers to calls, into a ring that nobody may read for a while."""

from __future__ import annotations

import asyncio
import contextlib
import os

import pytest
from stubserve_stub.wire import layout
from stubserve_stub.wire.ring import MAX_RECORD, RingWriter, read_doorbell

from stubserve.instances.rings import AnswerRing
from tests.instances.fakes import LIMIT, Stub, answer, on_a_loop

# The stubs whose rings turned out to be broken
broken: list[Stub] = []


def ring_of(stub: Stub) -> AnswerRing:
    """A second writer of the stub's answer ring, to be used instead of the first."""
    segment = stub.memory.arena.segment(stub.outputs.index)
    ring = RingWriter(
        segment.ring(layout.ANSWER_RING), segment.stub_words, layout.ANSWERS_READ, stub.process.answer_doorbell
    )
    return AnswerRing(ring, stub.outputs, stub.memory, lambda: broken.append(stub))


@on_a_loop
async def test_an_answer_takes_frees_along() -> None:
    with Stub() as stub:
        ring = ring_of(stub)
        place = stub.output()
        stub.outputs.output(place.offset, place.nbytes).drop()
        ring.send(7, False, answer(b"\1\0\0\0"))
        ring.send(7, True, None)
        assert await stub.answers() == [
            (7, False, (None, (("OUT", 11, (1,), b"\1\0\0\0"),), None), (place.offset,)),
            (7, True, None, ()),
        ]


@on_a_loop
async def test_what_the_ring_has_no_room_for_comes_later_and_in_order() -> None:
    with Stub() as stub:
        ring = ring_of(stub)
        count = 3 * layout.RING_BYTES // 1000
        for number in range(count):
            ring.send(number, True, answer(bytes(1000)))
        taken: list[int] = []
        while len(taken) < count:
            taken += [number for number, _, _, _ in await stub.answers()]
        assert taken == list(range(count))
        ring.close()


@on_a_loop
async def test_a_long_answer_lies_in_the_servers_memory_until_it_is_read() -> None:
    with Stub() as stub:
        ring = ring_of(stub)
        response = answer(*[bytes(1000)] * (MAX_RECORD // 1000 + 1))
        ring.send(7, True, response)
        assert stub.ingress_bytes
        [(number, final, (_, outputs, _), _)] = await stub.answers()
        assert (number, final, len(outputs)) == (7, True, len(response[1]))
        await stub.let_go()
        assert not stub.ingress_bytes
        ring.close()


@on_a_loop
async def test_an_answer_that_finds_no_memory_becomes_an_error_and_loses_no_frees() -> None:
    with Stub() as stub, contextlib.ExitStack() as full:
        ring = ring_of(stub)
        place = stub.output()
        stub.outputs.output(place.offset, place.nbytes).drop()
        full.callback(stub.memory.block(LIMIT - (4 << 20)).drop)
        ring.send(7, True, answer(*[bytes(1000)] * 6000))
        [(number, final, (error, outputs, parameters), frees)] = await stub.answers()
        assert (number, final, outputs, parameters, frees) == (7, True, (), None, (place.offset,))
        assert error[0].startswith("no room for ")
        ring.close()


@on_a_loop
async def test_nothing_is_tried_again_once_the_stub_is_gone() -> None:
    with Stub() as stub:
        ring = ring_of(stub)
        count = 2 * layout.RING_BYTES // 1000
        for number in range(count):
            ring.send(number, True, answer(bytes(1000)))
        ring.close()
        assert 0 < len(await stub.answers()) < count
        # There is room now, and the time for another try comes before that of this wait.
        await asyncio.sleep(0.01)
        os.set_blocking(stub.process.answer_doorbell, False)
        with pytest.raises(BlockingIOError):
            read_doorbell(stub.process.answer_doorbell)


@on_a_loop
async def test_a_stub_that_has_written_over_its_place_in_the_ring_is_told_of() -> None:
    with Stub() as stub:
        ring = ring_of(stub)
        stub.memory.arena.segment(stub.outputs.index).stub_words[layout.ANSWERS_READ] = 0
        for number in range(2 * layout.RING_BYTES // 1000):
            ring.send(number, True, answer(bytes(1000)))
        assert broken.pop() is stub
        ring.close()
