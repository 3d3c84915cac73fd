"""What HTTP/2's streams and their writer do that no client can show in a short time."""

from __future__ import annotations

import gc
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, cast

import pytest

from stubserve.connections.slow_clients import SlowClients
from stubserve.grpc.http2 import frames
from stubserve.grpc.http2.endpoint import Endpoint
from stubserve.grpc.http2.heads import RpcHead
from stubserve.grpc.http2.stream import Http2Stream
from stubserve.grpc.http2.writer import FrameWriter
from stubserve.grpc.transport import OK, UNAVAILABLE, Handler, Method, Rpc
from stubserve.settings.fronts import GrpcSettings


class Sent(list[bytes]):
    """A writer that keeps what is written."""

    stream_window = 1 << 16

    def send_whole(self, id: int, widened: int, size: int, parts: list[bytes]) -> bool:
        return False

    def room(self) -> int:
        return 1 << 14

    def send_data(self, stream: int, length: int, pieces: list[bytes]) -> None:
        self.extend(pieces)

    def send_head(self, stream: int, block: bytes, ends: bool = False) -> None:
        self.append(block)

    def write(self, *pieces: bytes) -> None:
        self.extend(pieces)

    __hash__ = object.__hash__  # type: ignore[assignment]


class Whole(Sent):
    """One that takes whole answers."""

    def send_whole(self, id: int, widened: int, size: int, parts: list[bytes]) -> bool:
        self.extend(parts)
        return True


class Watching(SlowClients):
    """Knows what is watched."""

    def __init__(self) -> None:
        super().__init__()
        self.watched: set[Any] = set()
        self.watch_receiver = self.watched.add  # type: ignore[method-assign]
        self.unwatch_receiver = self.watched.discard  # type: ignore[method-assign]


def a_stream(
    writer: Sent, open: Callable[[Rpc], Handler], unary: bool, clients: SlowClients | None = None, **server: Any
) -> Http2Stream:
    """An open stream, of a server that has this."""
    of_server = SimpleNamespace(slow_clients=clients or Watching(), max_connections=0, **server)
    endpoint = Endpoint(cast(Any, of_server), {}, GrpcSettings())
    return Http2Stream(endpoint, cast(Any, writer), lambda stream: None, 1, RpcHead([]), Method(open, unary))


def test_a_client_that_may_not_send_has_not_stalled() -> None:
    """And the time in which it may not does not count afterwards."""
    sent, clients = Sent(), Watching()
    handler = cast(Any, SimpleNamespace(on_cancel=lambda: None))
    stream = a_stream(sent, lambda call: handler, False, clients)
    stream.data_received(memoryview(b"\0\0\0\0\x0aha"))
    assert clients.watched == {stream}
    stream.pause_reading()
    stream.data_received(memoryview(b"lf"))
    assert not clients.watched
    stream.resume_reading()
    assert clients.watched == {stream}
    assert not sent
    stream.stalled()
    assert sent
    assert not clients.watched


@pytest.mark.parametrize("refused", [False, True])
@pytest.mark.parametrize("unary", [True, False])
def test_nothing_of_an_rpc_that_is_over_knows_itself(unary: bool, refused: bool) -> None:
    """Reference counting frees it: in steady traffic the garbage collector finds nothing."""

    class Echo:
        def __init__(self, rpc: Rpc) -> None:
            self.rpc = rpc
            if refused:
                rpc.finish(UNAVAILABLE, "not now")

        def on_message(self, data: bytes, block: object, offset: int) -> None:
            if unary:
                self.rpc.reply([data], [])
            else:
                self.rpc.send([data], [])
                self.rpc.finish(OK)

    stream = a_stream(Whole() if unary else Sent(), cast(Any, Echo), unary)
    endpoint = stream._endpoint
    gc.collect()
    gc.disable()
    try:
        stream.data_received(memoryview(b"\0\0\0\0\2h"))
        stream.data_received(memoryview(b"a"))
        assert stream.closed
        del stream
        assert gc.collect() == 0
        assert endpoint.short_messages_left
    finally:
        gc.enable()


class Waiting:
    """A stream with more to send than it may."""

    def __init__(self, writer: FrameWriter, id: int) -> None:
        self.writer = writer
        self.id = id
        self.pumped = 0

    def pump(self) -> None:
        self.pumped += 1
        self.writer.send_data(1, self.writer.room(), [])
        self.writer.waiting[self.id] = self.pump


def test_a_window_update_costs_no_more_than_it_lets_through() -> None:
    """A thousand streams that wait, and a flood of updates of one byte, were seconds of the event loop."""
    later: list[Any] = []
    loop = SimpleNamespace(call_soon=lambda callback, *arguments: later.append(callback))
    writer = FrameWriter(cast(Any, None), cast(Any, loop))
    streams = [Waiting(writer, id) for id in (1, 3, 5)]
    while writer.room():
        writer.send_data(1, writer.room(), [])
    for stream in streams:
        writer.waiting[stream.id] = stream.pump
    for _ in range(4):
        writer.widen(1)
    assert [stream.pumped for stream in streams] == [2, 1, 1]
    for size in (1 << 17, 1 << 16, 1 << 18):
        settings = frames.settings({frames.INITIAL_WINDOW_SIZE: size})
        writer.apply(memoryview(settings)[frames.HEAD_BYTES :], lambda: None)
    assert later.count(writer._pump_all) == 1
    assert writer.stream_window == 1 << 18
