"""What a stream's messages are received into."""

from __future__ import annotations

import random
import tracemalloc
from types import SimpleNamespace
from typing import Any, cast

import pytest

from stubserve.connections.arrival import Arrivals
from stubserve.connections.slow_clients import SlowClients
from stubserve.grpc.http2.inbox import ROOM_BYTES, SMALL_BYTES, Inbox, SmallRoom
from stubserve.memory.server_memory import Memory

# Nobody, since nothing here stalls
OWNER = cast(Any, SimpleNamespace())


def test_a_message_takes_memory_as_it_comes() -> None:
    """A client can promise 64 KB on each of a thousand streams, with five bytes each."""
    inboxes = [Inbox(cast(Any, None), SmallRoom(), 0, OWNER) for _ in range(200)]
    prefix = b"\0" + SMALL_BYTES.to_bytes(4, "big")
    tracemalloc.start()
    for inbox in inboxes:
        assert not list(inbox.feed(memoryview(prefix + b"x")))
        assert inbox.partial
    kept, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert kept < 300_000


@pytest.mark.usefixtures("clock")
def test_large_messages_lie_in_the_arena_and_claims_take_nothing() -> None:
    """Whole, however they come; and what thirteen prefixes claim is nobody's."""
    memory = Memory(64 << 20)
    server = SimpleNamespace(arrivals=Arrivals(memory, SlowClients(), 32 << 20))
    room = SmallRoom()
    claims = [Inbox(cast(Any, server), room, number, OWNER) for number in range(13)]
    for inbox in claims:
        assert not list(inbox.feed(memoryview(b"\0" + (60 << 20).to_bytes(4, "big") + b"x")))
    for _ in range(2):  # cold, and then into warm blocks
        for size in (1000, 16_384, 300_000):
            content = random.Random(size).randbytes(3_000_000)
            sent = b"\0" + len(content).to_bytes(4, "big") + content
            inbox = Inbox(cast(Any, server), room, 0, OWNER)
            [message] = [
                message for at in range(0, len(sent), size) for message in inbox.feed(memoryview(sent[at : at + size]))
            ]
            assert message.block is not None
            assert bytes(message.data) == content
            assert not inbox.missing
            message.drop()
    for inbox in claims:
        assert inbox.missing == (60 << 20) - 1
        inbox.drop()
    assert memory.ingress.live_blocks == 0


@pytest.mark.usefixtures("clock")
def test_short_messages_share_a_room_in_the_heap() -> None:
    """A thousand streams of a thousand connections may be left with a message that is nearly there."""
    memory = Memory(64 << 20)
    server = SimpleNamespace(arrivals=Arrivals(memory, SlowClients(), 32 << 20))
    room = SmallRoom()
    inboxes = [Inbox(cast(Any, server), room, 0, OWNER) for _ in range(ROOM_BYTES // SMALL_BYTES + 100)]
    sent = memoryview(b"\0" + SMALL_BYTES.to_bytes(4, "big") + bytes(SMALL_BYTES))
    for inbox in inboxes:
        assert not list(inbox.feed(sent[:-1]))
    assert memory.ingress.live_blocks == 100
    for inbox in inboxes[:50] + inboxes[-50:]:
        [message] = inbox.feed(sent[-1:])
        assert message.data == bytes(SMALL_BYTES)
        message.drop()
    for inbox in inboxes:
        inbox.drop()
    assert memory.ingress.live_blocks == 0
    assert room.left == ROOM_BYTES


def test_messages_in_pieces() -> None:
    messages = [b"", b"a" * 1000, b"b" * SMALL_BYTES, b"c"]
    sent = b"".join(b"\0" + len(message).to_bytes(4, "big") + message for message in messages)
    for size in (1, 3, 5, 7, 1000, len(sent)):
        inbox = Inbox(cast(Any, None), SmallRoom(), 0, OWNER)
        found = [
            message.data for at in range(0, len(sent), size) for message in inbox.feed(memoryview(sent[at : at + size]))
        ]
        assert found == messages
        assert not inbox.partial
