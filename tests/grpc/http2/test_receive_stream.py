"""What a stream's messages are received into."""

from __future__ import annotations

import random
import tracemalloc
from types import SimpleNamespace
from typing import Any, cast

import pytest

from stubserve.connections.receive_buffers import ReceiveBuffers
from stubserve.connections.slow_clients import SlowClients
from stubserve.grpc.http2.endpoint import SHORT_MESSAGES_BYTES, Endpoint
from stubserve.grpc.http2.heads import RpcHead
from stubserve.grpc.http2.message import SHORT_BYTES
from stubserve.grpc.http2.stream import Http2Stream
from stubserve.grpc.transport import Method
from stubserve.memory.blocks import Block
from stubserve.memory.server_memory import Memory
from stubserve.settings.fronts import GrpcSettings
from tests.grpc.test_stream import Sent


class Taker:
    """An RPC that keeps what it is sent."""

    def __init__(self) -> None:
        self.messages: list[bytes] = []
        self.in_arena = 0

    def on_message(self, data: bytes | memoryview, block: Block | None = None, offset: int = 0) -> None:
        self.messages.append(bytes(data))
        self.in_arena += block is not None

    def on_cancel(self) -> None:
        pass


def an_endpoint(memory: Memory | None = None) -> Endpoint:
    clients = SlowClients()
    buffers = None if memory is None else ReceiveBuffers(memory, clients, 32 << 20)
    server = SimpleNamespace(slow_clients=clients, max_connections=0, receive_buffers=buffers, offload=None)
    if memory is not None:
        server.heap = memory.heap
    return Endpoint(cast(Any, server), {}, GrpcSettings())


def a_stream(endpoint: Endpoint, taker: Taker | None = None) -> Http2Stream:
    """On a connection of its own. Its client is not watched: nobody stalls here."""
    method = Method(lambda call: cast(Any, taker or Taker()), unary=False)
    stream = Http2Stream(endpoint, cast(Any, Sent()), lambda stream: None, 1, RpcHead([]), method)
    stream.pause_reading()
    return stream


def prefixed(message: bytes) -> bytes:
    return b"\0" + len(message).to_bytes(4, "big") + message


def test_a_message_takes_memory_as_it_comes() -> None:
    """A client can promise 64 KB on each of a thousand streams, with five bytes each."""
    endpoint = an_endpoint()
    streams = [a_stream(endpoint) for _ in range(200)]
    beginning = b"\0" + SHORT_BYTES.to_bytes(4, "big") + b"x"
    tracemalloc.start()
    for stream in streams:
        stream.data_received(memoryview(beginning))
        assert stream._partial is not None
    kept, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert kept < 300_000


@pytest.mark.usefixtures("clock")
def test_large_messages_lie_in_the_arena_and_claims_take_nothing() -> None:
    """Whole, however they come; and what thirteen prefixes claim is nobody's."""
    memory = Memory(64 << 20)
    endpoint = an_endpoint(memory)
    claims = [a_stream(endpoint) for _ in range(13)]
    for stream in claims:
        stream.data_received(memoryview(b"\0" + (60 << 20).to_bytes(4, "big") + b"x"))
    for _ in range(2):  # cold, and then into warm blocks
        for size in (1000, 16_384, 200_000):
            content = random.Random(size).randbytes(250_000)
            sent, taker = prefixed(content), Taker()
            stream = a_stream(endpoint, taker)
            for at in range(0, len(sent), size):
                stream.data_received(memoryview(sent[at : at + size]))
            assert taker.messages == [content]
            assert taker.in_arena == 1
    for stream in claims:
        assert stream._partial is not None
        assert stream._partial.missing == (60 << 20) - 1
        stream.reset_by_client()
    assert memory.ingress.live_blocks == 0


@pytest.mark.usefixtures("clock")
def test_short_messages_share_a_room_in_the_heap() -> None:
    """A thousand streams of a thousand connections may be left with a message that is nearly there."""
    memory = Memory(64 << 20)
    endpoint, taker = an_endpoint(memory), Taker()
    streams = [a_stream(endpoint, taker) for _ in range(SHORT_MESSAGES_BYTES // SHORT_BYTES + 100)]
    sent = memoryview(prefixed(bytes(SHORT_BYTES)))
    for stream in streams:
        stream.data_received(sent[:-1])
    assert memory.ingress.live_blocks == 100
    for stream in streams[:50] + streams[-50:]:
        stream.data_received(sent[-1:])
    assert taker.messages == [bytes(SHORT_BYTES)] * 100
    assert taker.in_arena == 50
    for stream in streams:
        stream.reset_by_client()
    assert memory.ingress.live_blocks == 0
    assert endpoint.short_messages_left == SHORT_MESSAGES_BYTES


def test_messages_in_pieces() -> None:
    messages = [b"", b"a" * 1000, b"b" * SHORT_BYTES, b"c"]
    sent = b"".join(map(prefixed, messages))
    for size in (1, 3, 5, 7, 1000, len(sent)):
        taker = Taker()
        stream = a_stream(an_endpoint(), taker)
        for at in range(0, len(sent), size):
            stream.data_received(memoryview(sent[at : at + size]))
        assert taker.messages == messages
        assert stream._partial is None
