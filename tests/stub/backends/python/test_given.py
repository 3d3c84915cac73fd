"""What a Python model's batch makes of the places that it is given, and of slots that are empty."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from stubserve_stub.api import bls
from stubserve_stub.api.constants import ErrorCode
from stubserve_stub.api.sender import Senders
from stubserve_stub.backends.python.batch import ModelBatch
from stubserve_stub.runtime.batch import Batch
from stubserve_stub.runtime.channel import Channel
from stubserve_stub.runtime.failure import Refusal
from stubserve_stub.wire import messages, strings
from stubserve_stub.wire.arena import Arena
from stubserve_stub.wire.budget import Grant, Ledger
from stubserve_stub.wire.datatypes import BYTES
from stubserve_stub.wire.options import NO_OPTIONS
from stubserve_stub.wire.places import AsList, InRegion, Lent, Place, Shared, Zeros
from stubserve_stub.wire.stub_arena import StubArena

from tests.stub.runtime.stub_memory import forget_held

FP32 = 11


@pytest.fixture
def channel() -> Iterator[Channel]:
    with contextlib.ExitStack() as stack:
        doorbells = [os.eventfd(0) for _ in range(3)]
        for doorbell in doorbells:
            stack.callback(os.close, doorbell)
        arena = Arena.create(Ledger(1 << 20))
        stack.callback(os.close, arena.fd)
        arena.segment(1)
        channel = Channel(StubArena(arena.fd, arena.facts(), 1, Grant(1 << 20)), *doorbells)
        stack.callback(forget_held, channel)
        yield channel


def batch(channel: Channel, *slots: Any) -> ModelBatch:
    # As they come out of a message
    requests = messages.unpack(messages.pack(slots))
    return ModelBatch(Batch(channel, 7, requests), Senders(channel, False), ["OUT"])


def request(*places: Place, elements: int = 1024) -> messages.WireRequest:
    return (
        "",
        NO_OPTIONS,
        None,
        None,
        [(f"IN{index}", FP32, (elements,), place) for index, place in enumerate(places)],
    )


def test_own_memory_is_writable_and_shared_memory_is_copied_when_it_is_looked_at(channel: Channel) -> None:
    places = [channel.memory.place(np.arange(10_000, dtype=np.float32)) for _ in range(2)]
    made = batch(channel, request(places[0], Shared(places[1].offset, places[1].nbytes), elements=10_000))
    own, shared = made.requests[0].inputs()
    for tensor in (own, shared):
        tensor.as_numpy()[:] = -1
    memory = [np.frombuffer(channel.arena.view(place.offset, place.nbytes), np.float32) for place in places]
    assert memory[0].tolist() == [-1] * 10_000
    assert memory[1].tolist() == list(range(10_000))


def test_strings_that_come_one_by_one(channel: Channel) -> None:
    elements = [b"a", b"", "é".encode(), b"d"]
    place = AsList(elements)
    fields = ("IN", BYTES, (2, 2), place)
    made = batch(channel, (*request()[:-1], [fields]))
    [given] = made.requests[0].inputs()
    array = given.as_numpy()
    assert array.tolist() == [elements[:2], elements[2:]]
    assert given.as_numpy() is array
    array[0, 0] = b"written to"
    assert given._payload() == (BYTES, (2, 2), strings.join(elements))


@pytest.mark.parametrize("elements", [1, 10_000])
def test_zeros_are_the_models_own(channel: Channel, elements: int) -> None:
    place, strings_ = Zeros(4 * elements), ("S", BYTES, (1, elements), Zeros(4 * elements))
    made = batch(channel, *[(*request()[:-1], [("IN", FP32, (1, elements), place), strings_])] * 2)
    (first, texts), (second, _) = (one.inputs() for one in made.requests)
    first.as_numpy()[:] = 1
    assert second.as_numpy().tolist() == [[0.0] * elements]
    assert texts.as_numpy().tolist() == [[b""] * elements]
    # Passed on they are memory as any other.
    assert bls._input(channel, second)[1:3] == (FP32, (1, elements))


def test_an_empty_slot_is_refused(channel: Channel) -> None:
    with pytest.raises(Refusal, match="a slot of the batch is empty, which Python models have no way to see"):
        batch(channel, request(), None)


@pytest.mark.parametrize(
    ("place", "text"),
    [
        (InRegion(7, 0, 4096), "input 'IN1' lies in a client's shared memory (region 7), of which nobody has told"),
        (Lent(4096, 4096, 4096), "input 'IN1' lies in memory that was never this stub's to read"),
    ],
)
def test_places_that_a_model_cannot_read_are_refused(channel: Channel, place: Place, text: str) -> None:
    with pytest.raises(Refusal) as caught:
        batch(channel, request(b"", place))
    assert str(caught.value) == text


def test_an_answer_that_cannot_be_read_is_an_error_and_the_rest_of_it_is_let_go_of(channel: Channel) -> None:
    place = channel.memory.place(bytes(4096))
    outputs = [("A", FP32, (1024,), place), ("B", FP32, (1024,), InRegion(7, 0, 4096))]
    response = bls.received(channel, messages.unpack(messages.pack((None, outputs, None))))
    error = response.error()
    assert error is not None
    assert error.code() == ErrorCode.UNSUPPORTED
    assert error.message() == (
        "Output 'B' of another model lies in a client's shared memory (region 7), of which nobody has told."
    )
    assert list(channel._released) == [place.offset]
