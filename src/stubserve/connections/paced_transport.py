"""Writing over TLS as fast as the client takes it, and no faster.

uvloop's TLS encrypts at once whatever it is given, into memory of the process. With an answer of 100 MiB the arena's
memory was free again before the client had any of it, but 100 MiB of the heap were in use, which no limit counts.
OpenSSL keeps its buffer as long as the connection, at the largest size that it ever had. So a connection over TLS has a
transport that hands on one piece at a time, and only while few encrypted bytes are not taken yet. The waiting data are
what was given: views of the arena, held and counted as without TLS.

The end of such a connection does not wait for its client. In TLS each side announces its last byte, and uvloop waits 30
s for the client to do so. A client that keeps a connection for its next request reads nothing meanwhile, so it
announces nothing, and the server's end had to wait. The protocol allows a side to close without that answer. So here a
client has ANSWER_S, counted from when it has all that was sent to it.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterable
from typing import Any, cast

from stubserve.connections.sent_memory import unacknowledged

# Encrypted at once. OpenSSL's buffer keeps this size as long as the connection lives. With 256 KiB a connection that
# had carried 256 KiB there and back kept 600 KiB instead of 330, and was no quicker.
_PIECE = 64 * 1024
# Seconds for a client to announce its last byte
ANSWER_S = 1.0

_Data = bytes | bytearray | memoryview


class PacedTransport(asyncio.Transport):
    """Stands for `transport`. Data wait here while `transport` has paused its protocol."""

    def __init__(self, transport: asyncio.Transport) -> None:
        super().__init__()
        self._transport = transport
        self._waiting: deque[memoryview] = deque()
        self._nbytes = 0
        self._paused = False
        self._closes = False
        self._know(transport)

    def write(self, data: _Data) -> None:
        if self._closes:
            return
        if not self._waiting and len(data) <= _PIECE:
            self._transport.write(data)
            return
        self._add(data)
        self._go_on()

    def writelines(self, list_of_data: Iterable[_Data]) -> None:
        if self._closes:
            return
        for data in list_of_data:
            self._add(data)
        self._go_on()

    def close(self) -> None:
        self._closes = True
        if not self._waiting:
            self._end()

    def abort(self) -> None:
        self.forget()
        self._transport.abort()

    def is_closing(self) -> bool:
        return self._closes or self._transport.is_closing()

    def get_write_buffer_size(self) -> int:
        return self._nbytes + self._transport.get_write_buffer_size()

    def pause(self) -> None:
        """The client has not taken the encrypted bytes."""
        self._paused = True

    def resume(self) -> bool:
        """The client has taken the encrypted bytes; whether nothing waits any more."""
        self._paused = False
        self._go_on()
        return not self._paused

    def forget(self) -> None:
        self._waiting.clear()
        self._nbytes = 0

    def lost(self) -> None:
        """The connection has gone: lets go of its transport, whose buffers are half a MiB.

        Objects that still refer to this transport are in a circle, which Python's collector finds late. Without this,
        each of a hundred more connections would keep its buffers until then.
        """
        self.forget()
        self._closes = True
        self._transport = gone = cast(asyncio.Transport, _Gone())
        self._know(gone)

    def _know(self, transport: asyncio.Transport) -> None:
        """Takes over the transport's own methods that are often called."""
        self.pause_reading = transport.pause_reading  # type: ignore[method-assign]
        self.resume_reading = transport.resume_reading  # type: ignore[method-assign]
        self.get_extra_info = transport.get_extra_info  # type: ignore[method-assign]
        self.set_write_buffer_limits = transport.set_write_buffer_limits  # type: ignore[method-assign]
        self.write_eof = transport.write_eof  # type: ignore[method-assign]

    def _add(self, data: _Data) -> None:
        if len(data):
            view = memoryview(data)
            self._waiting.append(view)
            self._nbytes += len(view)

    def _go_on(self) -> None:
        waiting = self._waiting
        while waiting and not self._paused:
            piece = waiting[0][:_PIECE]
            if len(piece) < len(waiting[0]):
                waiting[0] = waiting[0][_PIECE:]
            else:
                waiting.popleft()
            self._nbytes -= len(piece)
            self._transport.write(piece)
        if self._closes and not waiting:
            self._end()

    def _end(self) -> None:
        self._transport.close()
        ensure_closed(self)


class _Gone:
    """In place of a transport that has been closed: accepts every call, and does nothing."""

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return default

    def get_write_buffer_size(self) -> int:
        return 0

    def __getattr__(self, name: str) -> Callable[..., None]:
        return lambda *given, **named: None


class PacedProtocol(asyncio.BufferedProtocol):
    """Stands for `protocol`, which writes to a PacedTransport."""

    def __init__(self, protocol: Any) -> None:
        self._protocol = protocol
        self._paced: PacedTransport | None = None
        # Whether `protocol` has been told to wait
        self._waits = False
        # Reading goes straight to `protocol`.
        self.get_buffer = protocol.get_buffer  # type: ignore[method-assign]
        self.buffer_updated = protocol.buffer_updated  # type: ignore[method-assign]
        self.eof_received = protocol.eof_received  # type: ignore[method-assign]

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._paced = PacedTransport(cast(asyncio.Transport, transport))
        self._protocol.connection_made(self._paced)

    def pause_writing(self) -> None:
        if self._paced is not None:
            self._paced.pause()
        if not self._waits:
            self._waits = True
            self._protocol.pause_writing()

    def resume_writing(self) -> None:
        if self._paced is None or self._paced.resume():
            self._waits = False
            self._protocol.resume_writing()

    def connection_lost(self, exc: Exception | None) -> None:
        if self._paced is not None:
            self._paced.forget()
        self._protocol.connection_lost(exc)
        if self._paced is not None:
            self._paced.lost()


def ensure_closed(transport: asyncio.Transport) -> None:
    """Makes sure that a transport ends after its close."""
    if transport.get_extra_info("ssl_object") is not None:
        asyncio.get_running_loop().call_later(ANSWER_S / 2, _look, transport, False)


def _look(transport: asyncio.Transport, had_all: bool) -> None:
    """Looks twice: more may be sent between, because the first look may come before the loop sees room for it."""
    socket = transport.get_extra_info("socket")
    if socket is None or socket.fileno() < 0:
        return
    has_all = transport.is_closing() and not unacknowledged(socket.fileno())
    if has_all and had_all:
        transport.abort()
    else:
        asyncio.get_running_loop().call_later(ANSWER_S / 2, _look, transport, has_all)
