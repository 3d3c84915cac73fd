"""What a worker says that is none of its messages ends the worker, and leaves nothing of it in the owner's hands."""

from __future__ import annotations

import asyncio
import os
from typing import Any, cast

import pytest
from stubserve_stub.wire import layout, messages
from stubserve_stub.wire.datatypes import BYTES
from stubserve_stub.wire.messages import pack, unpack
from stubserve_stub.wire.places import InArena, InRegion, Shared
from stubserve_stub.wire.ring import RingReader, RingWriter, read_doorbell

from stubserve.errors import Code, not_found, overloaded
from stubserve.inference.served_model import ServedModel
from stubserve.inference.signature import Signature
from stubserve.ingress.messages import CALL, DESCRIBE, handlers_of_owner
from stubserve.ingress.worker_calls import WorkerCalls
from stubserve.instances.answer_ring import AnswerRing
from stubserve.instances.memory import Memory
from stubserve.instances.stub_memory import StubMemory
from stubserve.model_config.parse import parse_text
from stubserve.protocols.client_regions import ClientRegions
from tests.client_memory import SharedFile


class Busy:
    """As much of a model as is described."""

    config = parse_text('backend: "python"', "config.pbtxt")

    def __init__(self) -> None:
        self.signature = Signature("m", 3, self.config)


class Owned:
    """One worker's calls, and what the worker hears; there is no model, or one that takes no requests now."""

    def __init__(self, regions: ClientRegions | None = None, busy: Busy | None = None) -> None:
        self.busy = busy
        self.server = Memory(16 << 20)
        self.memory = StubMemory(self.server.segments, most_unreported=0)
        self.segment = self.server.arena.segment(self.memory.index)
        self.doorbell = os.eventfd(0, os.EFD_NONBLOCK)
        self._reader = RingReader(self.segment.ring(layout.ANSWER_RING), self.segment.stub_words, layout.ANSWERS_READ)
        ring = RingWriter(
            self.segment.ring(layout.ANSWER_RING), self.segment.stub_words, layout.ANSWERS_READ, self.doorbell
        )
        answers = AnswerRing(ring, self.segment.parent_words, self.memory, self.server, lambda: None)
        self.calls = WorkerCalls(self, self.memory, answers, lambda: 0, regions)

    def find_model(self, name: str, version: str) -> ServedModel:
        self.known_model(name, version)
        raise overloaded("memory is short on this machine")

    def known_model(self, name: str, version: str) -> ServedModel:
        if self.busy is None:
            raise not_found(f"no model '{name}'")
        return cast(ServedModel, self.busy)

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


def wire_request(*places: object, datatype: int = 11, regions: object = None) -> tuple[object, ...]:
    inputs = [(f"INPUT{number}", datatype, (1,), place) for number, place in enumerate(places)]
    return ("id", 0, 0, 0, 0, None, None, inputs, 1, None, 0, 1, None, regions)


def regions_with(nbytes: int) -> ClientRegions:
    """One region, of number 1."""
    regions = ClientRegions()
    with SharedFile(nbytes) as file:
        regions.register("in", file.key, 0, nbytes)
    return regions


def test_a_region_that_is_unregistered_meanwhile_costs_its_request_and_no_memory() -> None:
    async def talk() -> None:
        regions = regions_with(16)
        owned = Owned(regions)
        place = InArena(owned.segment.start + layout.HEAP, 4096)
        outputs = [("OUTPUT0", 1, 8, 8)]
        for request, said in (
            (wire_request(InRegion(1, 8, 8), place, regions=outputs), "no model 'm'"),
            (wire_request(InRegion(1, 8, 8), place), "was unregistered while a request"),
            (wire_request(place, regions=outputs), "was unregistered while a request"),
        ):
            owned.hear((CALL, 7, "m", "", request, ()))
            ((_, _, (error, _, _), frees),) = owned.answers()
            assert said in error[0]
            assert frees == (place.offset,)
            regions.unregister("")
        await owned.close()

    asyncio.run(talk())


def test_a_request_to_an_unknown_model_is_refused_and_its_memory_free() -> None:
    async def talk() -> None:
        owned = Owned()
        place = InArena(owned.segment.start + layout.HEAP, 4096)
        owned.hear((CALL, 7, "unknown", "", wire_request(place), ()))
        ((number, final, (error, outputs, parameters), frees),) = owned.answers()
        assert (number, final, outputs, parameters, frees) == (7, True, (), None, (place.offset,))
        assert error == ("no model 'unknown'", int(Code.NOT_FOUND), 0, True)
        await owned.close()

    asyncio.run(talk())


def test_a_model_is_described_while_its_requests_are_refused() -> None:
    async def talk() -> None:
        owned = Owned(busy=Busy())
        owned.hear((DESCRIBE, "m", ""))
        ((number, _, description, _),) = owned.answers()
        assert (number, description[:3], description[5]) == (0, ("m", "", 0), 3)
        owned.hear((CALL, 7, "m", "", wire_request(), ()))
        ((_, _, (error, _, _), _),) = owned.answers()
        assert error[:2] == ("memory is short on this machine", int(Code.UNAVAILABLE))
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
        (CALL, 7, "m", "", wire_request(InRegion(1, 8, 9)), ()),
        (CALL, 7, "m", "", wire_request(InRegion(1, 0, 8), datatype=BYTES), ()),
        (CALL, 7, "m", "", wire_request(b"1234", regions=[("OUTPUT0", 1, -1, 4)]), ()),
        (CALL, 7, "m", "", wire_request(b"1234", regions=[("OUTPUT0", 1, 0, "4")]), ()),
        (CALL, 7, "m", "", wire_request(b"1234", regions=7), ()),
        (CALL, 7, "m", "", (*wire_request(b"")[:7], [()], *wire_request()[8:]), ()),
        (99, 1),
        (2,),
        "text",
        (),
    ],
)
@pytest.mark.parametrize("has_regions", [False, True])
def test_nonsense_is_raised_and_leaves_nothing(message: object, has_regions: bool) -> None:
    async def talk() -> None:
        owned = Owned(regions_with(16) if has_regions else None)
        with pytest.raises((ValueError, TypeError, KeyError, IndexError)):
            owned.hear(message)
        await owned.close()

    asyncio.run(talk())


def test_a_place_outside_of_the_segment_is_refused() -> None:
    async def talk() -> None:
        owned = Owned()
        good = InArena(owned.segment.start + layout.HEAP, 64)
        owned.hear((CALL, 7, "m", "", wire_request(InArena(64, 64), good), ()))
        ((_, _, (error, _, _), frees),) = owned.answers()
        assert "outside of its segment" in error[0]
        assert frees == (good.offset,)
        await owned.close()

    asyncio.run(talk())
