"""The stub's end of the rings, on an arena of its own."""

from __future__ import annotations

import contextlib
import os

import pytest
from stubserve_stub.runtime.channel import Channel
from stubserve_stub.wire import layout, messages
from stubserve_stub.wire.arena import Arena
from stubserve_stub.wire.budget import ArenaFull, Grant, Ledger
from stubserve_stub.wire.ring import RingReader, read_doorbell
from stubserve_stub.wire.stub_arena import StubArena


@pytest.mark.parametrize("last", [False, True])
def test_a_response_that_finds_no_room_for_its_message_becomes_an_error(last: bool) -> None:
    with contextlib.ExitStack() as stack:
        doorbells = [os.eventfd(0) for _ in range(3)]
        for doorbell in doorbells:
            stack.callback(os.close, doorbell)
        arena = Arena.create(Ledger(1 << 20))
        stack.callback(os.close, arena.fd)
        segment = arena.segment(1)
        channel = Channel(StubArena(arena.fd, arena.facts(), 1, Grant(1 << 17)), *doorbells)
        output = channel.memory.place(bytes(5000))
        with contextlib.suppress(ArenaFull):
            while True:
                channel.memory.place(bytes(5000))
        blocks = channel.memory.live_blocks
        # Its name makes the message longer than a record.
        response = (None, [("O" * 60_000, 2, [output.nbytes], output)], None)
        if last:
            channel.respond_last((7, 0), 1, response, [])
        else:
            channel.respond((7, 0), 1, response, False)
        assert channel.memory.live_blocks == blocks - 1
        count, _ = read_doorbell(doorbells[1])
        reader = RingReader(segment.ring(layout.RESPONSE_RING), segment.parent_words, layout.RESPONSES_READ)
        (message,) = reader.take(count, lambda data, _: messages.unpack(data))
    kind, *key, _, ((text, code), outputs, _), flags, held = message
    assert (kind, key, code, outputs, held) == (messages.RESPONSE, [7, 0], 4, (), ())
    assert text.startswith("no room for ")
    assert flags == (messages.FINAL if last else 0)
