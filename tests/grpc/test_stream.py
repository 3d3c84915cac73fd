"""What HTTP/2's streams and their sender do that no client can show in a short time."""

from __future__ import annotations

import gc
from types import SimpleNamespace
from typing import Any, cast

import pytest

from stubserve.connections.sent_memory import SentMemory
from stubserve.connections.slow_clients import RequestPace
from stubserve.grpc.http2 import frames
from stubserve.grpc.http2.heads import RpcHead
from stubserve.grpc.http2.inbox import SmallRoom
from stubserve.grpc.http2.sender import Sender
from stubserve.grpc.http2.stream import Stream
from stubserve.grpc.transport import OK, Method, Rpc


class Sent(list[bytes]):
    """A sender that keeps what is written."""

    stream_window = 1 << 16

    def send_whole(self, stream: Any, size: int, parts: list[bytes]) -> bool:
        return False

    def room(self) -> int:
        return 1 << 14

    def send_data(self, stream: int, length: int, pieces: list[bytes]) -> None:
        self.extend(pieces)

    def send_head(self, stream: int, block: bytes, ends: bool = False) -> None:
        self.append(block)

    def write(self, *pieces: bytes) -> None:
        self.extend(pieces)


class Whole(Sent):
    """One that takes whole answers."""

    def send_whole(self, stream: Any, size: int, parts: list[bytes]) -> bool:
        self.extend(parts)
        return True


def test_a_client_that_may_not_send_has_not_stalled() -> None:
    """And the time in which it may not does not count afterwards."""
    sent = Sent()
    watched: set[Any] = set()
    connection = SimpleNamespace(
        server=None,
        small_room=SmallRoom(),
        sender=sent,
        compression=lambda method, head: None,
        slow_clients=SimpleNamespace(watch_arriving=watched.add, unwatch_arriving=watched.discard, pace=RequestPace()),
        forget=lambda stream: None,
    )
    handler = SimpleNamespace(on_cancel=lambda: None)
    stream = Stream(cast(Any, connection), 1, RpcHead([]), Method(lambda call: cast(Any, handler), unary=False))
    stream.begin()
    stream.data_received(memoryview(b"\0\0\0\0\x0aha"))
    assert watched == {stream._inbox}
    stream.pause_reading()
    stream.data_received(memoryview(b"lf"))
    assert not watched
    stream.resume_reading()
    assert watched == {stream._inbox}
    assert not sent
    watched.pop().stalled()
    assert sent
    assert not stream._inbox.watched


@pytest.mark.parametrize("unary", [True, False])
def test_nothing_of_an_rpc_that_is_over_knows_itself(unary: bool) -> None:
    """Reference counting frees it: in steady traffic the garbage collector finds nothing."""
    connection = SimpleNamespace(
        server=None,
        small_room=SmallRoom(),
        sent_memory=SentMemory(),
        sender=Whole() if unary else Sent(),
        compression=lambda method, head: None,
        slow_clients=SimpleNamespace(
            watch_arriving=lambda one: None, unwatch_arriving=lambda one: None, pace=RequestPace()
        ),
        forget=lambda stream: None,
    )

    class Echo:
        def __init__(self, rpc: Rpc) -> None:
            self.rpc = rpc

        def on_message(self, data: bytes, block: object, offset: int) -> None:
            if unary:
                self.rpc.reply([data], [])
            else:
                self.rpc.send([data], [])
                self.rpc.finish(OK)

    stream = Stream(cast(Any, connection), 1, RpcHead([]), Method(cast(Any, Echo), unary))
    stream.begin()
    gc.collect()
    gc.disable()
    try:
        stream.data_received(memoryview(b"\0\0\0\0\2h"))
        stream.data_received(memoryview(b"a"))
        assert stream.closed
        del stream
        assert gc.collect() == 0
    finally:
        gc.enable()


class Waiting:
    """A stream with more to send than it may."""

    def __init__(self, sender: Sender) -> None:
        self.sender = sender
        self.pumped = 0

    def pump(self) -> None:
        self.pumped += 1
        self.sender.send_data(1, self.sender.room(), [])
        self.sender.waiting[cast(Any, self)] = None


def test_a_window_update_costs_no_more_than_it_lets_through() -> None:
    """A thousand streams that wait, and a flood of updates of one byte, were seconds of the event loop."""
    later: list[Any] = []
    loop = SimpleNamespace(call_soon=lambda callback, *arguments: later.append(callback))
    sender = Sender(cast(Any, None), cast(Any, loop))
    streams: list[Any] = [Waiting(sender) for _ in range(3)]
    while sender.room():
        sender.send_data(1, sender.room(), [])
    for stream in streams:
        sender.waiting[stream] = None
    for _ in range(4):
        sender.widen(1)
    assert [stream.pumped for stream in streams] == [2, 1, 1]
    for size in (1 << 17, 1 << 16, 1 << 18):
        sender.apply(memoryview(frames.settings({frames.INITIAL_WINDOW_SIZE: size}))[frames.HEAD_BYTES :], streams)
    assert later.count(sender._pump_all) == 1
    assert sender.stream_window == 1 << 18
