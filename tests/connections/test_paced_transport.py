"""A transport that writes as fast as what it stands for takes it: order, ends, and what waits."""

from __future__ import annotations

import asyncio
import weakref
from typing import Any

from stubserve.connections.paced_transport import _PIECE, PacedProtocol, PacedTransport


class Underneath(asyncio.Transport):
    """Takes so many bytes, and pauses its protocol when it has them."""

    def __init__(self, takes: int) -> None:
        super().__init__()
        self.left = takes
        self.written = b""
        self.ended = ""
        self.protocol: PacedProtocol

    def write(self, data: Any) -> None:
        assert not self.ended
        self.written += bytes(data)
        before, self.left = self.left, self.left - len(data)
        if before > 0 >= self.left:
            self.protocol.pause_writing()

    def take(self, more: int) -> None:
        self.left = more
        self.protocol.resume_writing()

    def close(self) -> None:
        self.ended = "closed"

    def abort(self) -> None:
        self.ended = "aborted"

    def is_closing(self) -> bool:
        return bool(self.ended)

    def get_write_buffer_size(self) -> int:
        return max(0, -self.left)


class Inner(asyncio.BufferedProtocol):
    def __init__(self) -> None:
        self.heard: list[str] = []

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, PacedTransport)
        self.transport = transport

    def pause_writing(self) -> None:
        self.heard.append("pause")

    def resume_writing(self) -> None:
        self.heard.append("resume")


def connected(takes: int) -> tuple[Underneath, Inner]:
    below, inner = Underneath(takes), Inner()
    below.protocol = PacedProtocol(inner)
    below.protocol.connection_made(below)
    return below, inner


def test_small_writes_go_through() -> None:
    below, inner = connected(1 << 30)
    inner.transport.write(b"one")
    inner.transport.writelines([b"two", memoryview(b"three"), b""])
    assert below.written == b"onetwothree"
    inner.transport.close()
    assert below.ended == "closed"
    assert inner.heard == []


def test_what_is_not_taken_waits_in_its_order_and_is_written_before_the_end() -> None:
    large = bytes(range(256)) * (_PIECE // 64)
    below, inner = connected(_PIECE)
    inner.transport.writelines([b"head", large])
    inner.transport.write(b"behind")
    inner.transport.close()
    inner.transport.write(b"too late")
    assert below.written == (b"head" + large)[: _PIECE + 4]
    assert inner.transport.get_write_buffer_size() == 4 + len(large) + 6 - _PIECE
    assert inner.transport.is_closing()
    assert inner.heard == ["pause"]
    while not below.ended:
        below.take(_PIECE)
    assert below.written == b"head" + large + b"behind"
    assert inner.heard == ["pause", "resume"]


def test_resuming_is_told_when_nothing_waits() -> None:
    below, inner = connected(_PIECE)
    inner.transport.write(bytes(3 * _PIECE))
    assert inner.heard == ["pause"]
    below.take(_PIECE)
    assert "resume" not in inner.heard
    below.take(1 << 30)
    assert inner.heard[-1] == "resume"
    assert len(below.written) == 3 * _PIECE


def test_a_connection_that_has_gone_holds_nothing() -> None:
    for end in ("abort", "lost"):
        below, inner = connected(1)
        data = bytearray(3 * _PIECE)
        inner.transport.write(data)
        if end == "abort":
            inner.transport.abort()
        else:
            below.protocol.connection_lost(None)
        data.extend(b"nobody has a view of it any more")
        assert inner.transport.get_write_buffer_size() <= _PIECE


def test_what_has_gone_is_forgotten_by_whoever_still_knows_its_transport() -> None:
    """With a connection's buffers, which nobody may have to wait for the collector to free."""
    underneath, inner = connected(takes=10)
    inner.transport.write(bytes(20))
    inner.transport.write(bytes(_PIECE))
    gone = weakref.ref(underneath)
    underneath.protocol.connection_lost(None)
    del underneath
    assert gone() is None
    inner.transport.write(b"late")
    inner.transport.writelines([b"late"])
    inner.transport.pause_reading()
    inner.transport.resume_reading()
    inner.transport.close()
    inner.transport.abort()
    assert inner.transport.is_closing()
    assert inner.transport.get_write_buffer_size() == 0
    assert inner.transport.get_extra_info("peername") is None
