"""What a batch has to do before its result goes out, in a real arena."""

from __future__ import annotations

import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from stubserve_stub.runtime.batch import Batch
from stubserve_stub.runtime.failure import Refusal
from stubserve_stub.runtime.outputs import Lease
from stubserve_stub.wire import messages
from stubserve_stub.wire.arena import ArenaFull
from stubserve_stub.wire.layout import INLINE_BYTES
from stubserve_stub.wire.places import InArena, InRegion, Lent, Shared

from tests.stub.runtime.stub_memory import StubMemory, stub_memory

UINT8 = 2
DATA = bytes(range(250)) * 160


@pytest.fixture
def stub() -> Iterator[StubMemory]:
    with stub_memory() as memory:
        yield memory


@pytest.fixture
def batch(stub: StubMemory) -> Batch:
    return Batch(stub.channel, 1, ())


def array(batch: Batch, place: Any) -> Any:
    """An input as an array, whose death is watched."""
    offset, view = batch.input("IN", tuple(place))
    found = np.frombuffer(view, np.uint8)
    base: Any = found.base
    batch.watch(offset, weakref.ref(base))
    return found


def entry(*places: Any) -> Any:
    return (None, [("OUT", UINT8, [place.nbytes], place) for place in places], None)


def places_of(entry: Any) -> list[Any]:
    return [output[3] for output in entry[1]]


def test_an_input_is_a_view(stub: StubMemory, batch: Batch) -> None:
    place = stub.give(DATA)
    offset, view = batch.input("IN", tuple(place))
    assert offset == place.offset
    assert view == DATA
    view[0] = 9
    assert stub.read(place)[0] == 9


def test_what_others_read_too_cannot_be_written(stub: StubMemory, batch: Batch) -> None:
    place = stub.give(DATA)
    _, view = batch.input("IN", (*Shared(place.offset, place.nbytes),))
    assert view.readonly
    assert view == DATA


@pytest.mark.parametrize(
    ("place", "why"),
    [
        (InRegion(3, 0, 5), "input 'IN' lies in a client's shared memory (region 3), of which nobody has told"),
        (Lent(4096, 5, 4096), "input 'IN' lies in memory that was never this stub's to read"),
    ],
)
def test_an_input_that_lies_elsewhere(batch: Batch, place: Any, why: str) -> None:
    with pytest.raises(Refusal) as refused:
        batch.input("IN", tuple(place))
    assert str(refused.value) == why


def test_an_output_inside_an_input_stays_where_it_is(stub: StubMemory, batch: Batch) -> None:
    """In whole or in part, and of two inputs each in its own."""
    first, second = stub.give(DATA), stub.give(DATA)
    arrays = array(batch, first), array(batch, second)
    live = stub.channel.memory.live_blocks
    assert batch.place(arrays[1]) == Lent(second.offset, second.nbytes, second.offset)
    assert batch.place(arrays[0][1000:11000]) == Lent(first.offset + 1000, 10000, first.offset)
    assert batch.place(memoryview(arrays[0])[30000:]) == Lent(first.offset + 30000, 10000, first.offset)
    assert stub.channel.memory.live_blocks == live


def test_any_other_output_is_copied(stub: StubMemory, batch: Batch) -> None:
    given = array(batch, stub.give(DATA))
    for made in (given.copy(), bytes(DATA), memoryview(DATA), np.frombuffer(DATA, np.uint8)):
        place: Any = batch.place(made)
        assert isinstance(place, InArena)
        assert stub.read(place) == DATA
    before = stub.channel.memory.live_blocks
    batch.free([place.offset])
    assert stub.channel.memory.live_blocks == before - 1


def test_a_small_output_travels_in_its_message(stub: StubMemory, batch: Batch) -> None:
    place = stub.give(DATA)
    given = array(batch, place)
    most = INLINE_BYTES
    for small in (given[:most], bytes(DATA[:most]), memoryview(DATA)[:most]):
        assert batch.place(small) == DATA[:most]
    more = most + 1
    assert batch.place(given[:more]) == Lent(place.offset, more, place.offset)


def test_inputs_that_nobody_holds(stub: StubMemory, batch: Batch) -> None:
    place = stub.give(DATA)
    given = array(batch, place)
    entries = [entry(batch.place(given)), None, messages.RESCHEDULED]
    del given
    held, prepared = batch.prepare_result(entries)
    assert held == []
    assert prepared == entries


def writable(stub: StubMemory, place: InArena) -> bool:
    """Whether the stub may write to memory that it was given."""
    address = stub.channel.arena.address(place.offset)
    for line in Path("/proc/self/maps").read_text().splitlines():
        addresses, rights = line.split()[:2]
        start, end = (int(one, 16) for one in addresses.split("-"))
        if start <= address < end:
            return "w" in rights
    raise AssertionError("the memory is not mapped")


def test_inputs_are_writable_as_long_as_somebody_may_write_to_them(stub: StubMemory, batch: Batch) -> None:
    given, dropped, kept, lent, shared = (stub.give(bytes(40000)) for _ in range(5))
    names = [array(batch, place) for place in (dropped, kept)]
    batch.input("IN", tuple(lent))
    batch.lend(lent.offset)
    array(batch, Shared(shared.offset, shared.nbytes))
    assert [writable(stub, place) for place in (given, dropped, kept, lent, shared)] == [False, True, True, True, False]
    keeper = names[1][9:]
    names.clear()
    held, _ = batch.prepare_result([])
    assert held == [kept.offset]
    assert [writable(stub, place) for place in (dropped, kept, lent)] == [False, True, True]
    del keeper
    stub.channel._report_released()
    assert not writable(stub, kept)


def test_outputs_move_out_of_an_input_that_is_held(stub: StubMemory, batch: Batch) -> None:
    """Whoever holds it may write to it while the output is being sent."""
    kept, dropped = stub.give(DATA), stub.give(DATA)
    keeper = array(batch, kept)
    other = array(batch, dropped)
    entries = [entry(batch.place(keeper[500:10500]), batch.place(other)), None]
    part = keeper[7:9]
    del keeper, other
    held, (prepared, nothing) = batch.prepare_result(entries)
    assert held == [kept.offset]
    assert nothing is None
    moved, stays = places_of(prepared)
    assert isinstance(moved, InArena)
    part[:] = 0
    assert stub.read(moved) == DATA[500:10500]
    assert stays == Lent(dropped.offset, dropped.nbytes, dropped.offset)
    # And when the last view dies the parent hears of it.
    del part
    stub.channel._report_released()
    assert stub.sent() == [(messages.RELEASED, (kept.offset,))]


def test_outputs_move_out_of_an_input_that_others_look_after(stub: StubMemory, batch: Batch) -> None:
    """That is not said to be held: who looks after it says when it is free."""
    place = stub.give(DATA)
    offset, view = batch.input("IN", tuple(place))
    entries = [entry(batch.place(view))]
    batch.lend(offset)
    del view
    held, (prepared,) = batch.prepare_result(entries)
    assert held == []
    (moved,) = places_of(prepared)
    assert isinstance(moved, InArena)
    assert stub.read(moved) == DATA


@pytest.mark.parametrize("kept", [False, True])
def test_outputs_of_other_models(stub: StubMemory, batch: Batch, kept: bool) -> None:
    place = stub.give(DATA)
    answer: Any = Lease(stub.channel.arena, place.offset, place.nbytes, stub.channel.drop).view()
    entries = [entry(batch.place(answer[100:10100]))]
    assert places_of(entries[0]) == [Lent(place.offset + 100, 10000, place.offset)]
    if not kept:
        del answer
    held, (prepared,) = batch.prepare_result(entries)
    assert held == []  # the lease tells by itself when it ends
    (found,) = places_of(prepared)
    assert isinstance(found, InArena if kept else Lent)
    assert stub.read(found) == DATA[100:10100]


def test_no_room_to_move_an_output(stub: StubMemory, batch: Batch) -> None:
    """Its response becomes an error, and what else it had is freed; other responses go out."""
    keeper = array(batch, stub.give(DATA))
    own: Any = batch.place(bytes(30000))
    entries = [entry(own, batch.place(keeper), batch.place(keeper[:20000])), entry(batch.place(bytes(20000)))]
    stub.fill()
    live = stub.channel.memory.live_blocks
    prepared: Any = batch.prepare_result(entries)[1]
    failed, fine = prepared
    (text, code), outputs, _ = failed
    assert text.startswith("no room for ")
    assert (code, outputs) == (4, ())
    assert fine == entries[1]
    assert stub.channel.memory.live_blocks == live - 1
    with pytest.raises(KeyError):
        stub.channel.free([own.offset])


def test_no_room_for_an_output(stub: StubMemory, batch: Batch) -> None:
    stub.fill()
    with pytest.raises(ArenaFull):
        batch.place(bytes(40000))


def test_entries_that_are_not_sent(stub: StubMemory, batch: Batch) -> None:
    """Their own memory comes back, what the stub was given stays the parent's."""
    given = array(batch, stub.give(DATA))
    live = stub.channel.memory.live_blocks
    entries = [entry(batch.place(bytes(20000)), batch.place(given)), None, entry(batch.place(bytes(30000)))]
    assert stub.channel.memory.live_blocks == live + 2
    batch.take_back(entries)
    assert stub.channel.memory.live_blocks == live


# Room that a backend writes its outputs to


def test_room_is_answered_with_from_where_it_lies(stub: StubMemory, batch: Batch) -> None:
    room = batch.reserve(60000)
    room[:] = 7
    place = batch.place(room)
    batch.prepare_result([])
    assert isinstance(place, InArena)
    assert stub.read(place) == bytes([7]) * 60000
    live = stub.channel.memory.live_blocks
    stub.channel.free([place.offset])
    assert stub.channel.memory.live_blocks == live - 1


def test_parts_of_a_room_are_freed_one_by_one(stub: StubMemory, batch: Batch) -> None:
    """In any order; what is not answered with goes with the last of the parts."""
    before = stub.channel.memory.live_blocks
    room = batch.reserve(90000)
    room[:] = np.arange(90000) % 251
    places = [batch.place(room[start : start + 20000]) for start in (0, 20000, 50000)]
    assert [stub.read(place) for place in places] == [room[at : at + 20000].tobytes() for at in (0, 20000, 50000)]
    batch.prepare_result([])
    for place in (places[1], places[0]):
        stub.channel.free([place.offset])
        assert stub.channel.memory.live_blocks == before + 1
    stub.channel.memory.free([places[2].offset])
    assert stub.channel.memory.live_blocks == before


def test_room_that_is_not_answered_with_is_free_again(stub: StubMemory, batch: Batch) -> None:
    before = stub.channel.memory.live_blocks
    room = batch.reserve(90000)
    taken = [batch.place(room[:20000]), batch.place(room[20000:40000])]
    batch.free([place.offset for place in taken])
    assert stub.channel.memory.live_blocks == before + 1
    batch.prepare_result([])
    assert stub.channel.memory.live_blocks == before


def test_no_byte_of_a_room_is_given_out_twice(stub: StubMemory, batch: Batch) -> None:
    room = batch.reserve(60000)
    room[:] = 1
    first, second = batch.place(room[:40000]), batch.place(room[20000:60000])
    batch.prepare_result([])
    assert second.offset >= first.offset + 60000 or second.offset + 40000 <= first.offset
    assert stub.read(second) == bytes([1]) * 40000


def test_inputs_that_nobody_writes_to_stay_protected(stub: StubMemory, batch: Batch) -> None:
    place = stub.give(bytes(5000))
    _, view = batch.input("X", tuple(place), writable=False)
    assert view.readonly
