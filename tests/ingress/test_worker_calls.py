"""What a worker says that is none of its messages ends the worker, and leaves nothing of it in the owner's hands."""

from __future__ import annotations

import asyncio
import os
from typing import Any

import pytest
from stubserve_stub.wire import layout, messages
from stubserve_stub.wire.messages import pack, unpack
from stubserve_stub.wire.places import InArena, Shared
from stubserve_stub.wire.ring import RingReader, RingWriter, read_doorbell

from stubserve.errors import Code, not_found
from stubserve.inference.served_model import ServedModel
from stubserve.ingress.messages import CALL, handlers_of_owner
from stubserve.ingress.worker_calls import WorkerCalls
from stubserve.instances.answer_ring import AnswerRing
from stubserve.instances.memory import Memory
from stubserve.instances.stub_memory import StubMemory


class Owned:
    """One worker's calls, and what the worker hears; there is no model."""

    def __init__(self) -> None:
        self.server = Memory(16 << 20)
        self.memory = StubMemory(self.server.segments, most_unreported=0)
        self.segment = self.server.arena.segment(self.memory.index)
        self.doorbell = os.eventfd(0, os.EFD_NONBLOCK)
        self._reader = RingReader(self.segment.ring(layout.ANSWER_RING), self.segment.stub_words, layout.ANSWERS_READ)
        ring = RingWriter(
            self.segment.ring(layout.ANSWER_RING), self.segment.stub_words, layout.ANSWERS_READ, self.doorbell
        )
        answers = AnswerRing(ring, self.segment.parent_words, self.memory, self.server, lambda: None)
        self.calls = WorkerCalls(self.find, self.memory, answers, lambda: 0)

    def find(self, name: str, version: str) -> ServedModel:
        raise not_found(f"no model '{name}'")

    def hear(self, message: object) -> None:
        """As from the ring."""
        messages.deliver(handlers_of_owner(self.calls), [unpack(pack(message))])

    def answers(self) -> list[Any]:
        return self._reader.take(read_doorbell(self.doorbell)[0], lambda data, flags: unpack(data))

    async def close(self) -> None:
        """The worker is ended; its segment goes back when nothing in it is held any more."""
        self.calls.close()
        self.memory.close()
        assert self.memory.emptying is not None
        await self.memory.emptying
        os.close(self.doorbell)


def wire_request(place: object) -> tuple[object, ...]:
    return ("id", 0, 0, 0, 0, None, None, [("INPUT0", 11, (1,), place)], 1, None, 0, 1)


def test_a_request_to_an_unknown_model_is_refused_and_its_memory_free() -> None:
    async def talk() -> None:
        owned = Owned()
        place = InArena(owned.segment.start + layout.HEAP, 4096)
        owned.hear((CALL, 7, "unknown", "", wire_request(place), ()))
        ((number, final, (error, outputs, parameters), frees),) = owned.answers()
        assert (number, final, outputs, parameters, frees) == (7, True, (), None, (place.offset,))
        assert error == ("no model 'unknown'", int(Code.NOT_FOUND), 0)
        await owned.close()

    asyncio.run(talk())


@pytest.mark.parametrize(
    "message",
    [
        (CALL,),
        (CALL, "seven", "m", "", wire_request(b"1234"), ()),
        (CALL, 7, "m", "", (1, 2, 3), ()),
        (CALL, 7, "m", "", None, ()),
        (CALL, 7, "m", "", wire_request((1, 2)), ()),
        (CALL, 7, "m", "", wire_request(Shared(0, 1)), ()),
        (CALL, 7, "m", "", (*wire_request(b"")[:7], [()], 1, None, 0, 1), ()),
        (99, 1),
        (2,),
        "text",
        (),
    ],
)
def test_nonsense_is_raised_and_leaves_nothing(message: object) -> None:
    async def talk() -> None:
        owned = Owned()
        with pytest.raises((ValueError, TypeError, KeyError, IndexError)):
            owned.hear(message)
        await owned.close()

    asyncio.run(talk())


def test_a_place_outside_of_the_segment_is_refused() -> None:
    async def talk() -> None:
        owned = Owned()
        good = InArena(owned.segment.start + layout.HEAP, 64)
        request = (*wire_request(b"")[:7], [("A", 11, (1,), good), ("B", 11, (1,), InArena(64, 64))], 1, None, 0, 1)
        owned.hear((CALL, 7, "m", "", request, ()))
        ((_, _, (error, _, _), _),) = owned.answers()
        assert "outside of its segment" in error[0]
        await owned.close()

    asyncio.run(talk())
