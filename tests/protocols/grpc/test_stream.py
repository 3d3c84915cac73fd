"""What one HTTP/2 stream does that no client can show in a short time."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

from stubserve.protocols.grpc.http2.heads import Head
from stubserve.protocols.grpc.http2.stream import Stream
from stubserve.protocols.grpc.transport import Method


class Sent(list[bytes]):
    """A sender that keeps what is written."""

    stream_window = 1 << 16

    def write(self, *pieces: bytes) -> None:
        self.extend(pieces)


def test_a_client_that_may_not_send_has_not_stalled() -> None:
    sent = Sent()
    watched: set[Any] = set()
    connection = SimpleNamespace(
        ingress=None,
        sender=sent,
        compression=lambda method, head: None,
        stall_watch=SimpleNamespace(watch=watched.add, unwatch=watched.discard),
        forget=lambda stream: None,
    )
    handler = SimpleNamespace(on_cancel=lambda: None)
    stream = Stream(cast(Any, connection), 1, Head([]), Method(lambda call: cast(Any, handler), unary=False))
    stream.begin()
    stream.pause_reading()
    stream.data_received(memoryview(b"\0\0\0\0\x0ahalf"))
    assert watched == {stream}
    stream.stalled()
    assert not sent
    stream.resume_reading()
    stream.stalled()
    assert sent
