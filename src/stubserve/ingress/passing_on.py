"""What a worker does not do itself: one request after the other goes to the owner as it came, and answers come back.

Each request has a socket pair of its own, whose other end the owner serves like a connection. So nobody here has to
know where an answer ends: behind one that another request can follow the owner shuts down its half of the pair and
leaves the rest to the worker; where a client's connection is to end, with the answer or in the middle of it, it closes
all of it, and the two can be told apart (POLLHUP). Bytes wait for each other as they would without a worker: who
reads slowly is sent slowly, and what the owner does not take is not read.
"""

from __future__ import annotations

import asyncio
import select
import socket
from collections.abc import Callable
from typing import cast

from stubserve.protocols.fair_queues import Peer

_RETRY_S = 0.01
# More of a request than this does not wait here.
_MOST_WAITING = 256 * 1024
_INTERIM = b"HTTP/1.1 1"
_HEAD_END = b"\r\n\r\n"


class PassingOn:
    """One client's requests to the owner. In the place of uvicorn's protocol (`protocols.http.fallback`).

    `send` gives the owner its end of a socket pair, with the client's address, and raises OSError while it cannot.
    `on_status` hears of each answer's status.
    """

    def __init__(self, send: Callable[[socket.socket, Peer | None], None], on_status: Callable[[int], None]) -> None:
        self._send = send
        self._on_status = on_status
        self._loop = asyncio.get_running_loop()
        # Per-connection state
        self._client: asyncio.Transport
        self._on_done: Callable[[], None]
        self._gone = False
        # Per-request state
        self._owner: asyncio.Transport | None = None
        self._connecting: asyncio.Task[None] | None = None
        self._waiting: list[bytes] = []
        self._has_status = False
        # Whether the client has to wait until the owner has taken more
        self._behind = False

    # For the client's connection

    def attach(self, transport: asyncio.Transport, on_done: Callable[[], None], peer: Peer | None) -> None:
        """The client's transport and address, and what to call when a request has been answered."""
        self._peer = peer
        self._client = transport
        self._on_done = on_done

    def data_received(self, data: bytes) -> None:
        """Bytes of a request."""
        if self._owner is not None:
            self._owner.write(data)
            return
        self._waiting.append(data)
        if sum(map(len, self._waiting)) > _MOST_WAITING:
            self.owner_is_behind()
        if self._connecting is None:
            self._has_status = False
            self._connecting = self._loop.create_task(self._connect())

    def connection_lost(self, exc: Exception | None) -> None:
        """The client has gone, which its request's other end learns of in the same way."""
        self._gone = True
        if self._connecting is not None:
            self._connecting.cancel()
        if self._owner is not None:
            self._owner.abort()

    def pause_writing(self) -> None:
        """The client does not read."""
        if self._owner is not None:
            self._owner.pause_reading()

    def resume_writing(self) -> None:
        if self._owner is not None:
            self._owner.resume_reading()

    # To the owner

    async def _connect(self) -> None:
        while True:
            try:
                ours = self._offer()
                break
            except OSError:
                await asyncio.sleep(_RETRY_S)
        try:
            await self._loop.create_connection(lambda: _OwnersEnd(self), sock=ours)
        except OSError:
            ours.close()
            self._client.close()
        except BaseException:
            ours.close()
            raise

    def _offer(self) -> socket.socket:
        """Sends the owner one end of a new pair, with what there is of the request, and returns the other.

        Raises OSError while the owner takes none, or no descriptor is left.
        """
        ours, theirs = socket.socketpair()
        ours.setblocking(False)
        request = b"".join(self._waiting)
        with theirs:
            try:
                # First, for an owner that cannot serve it answers and closes at once, and then nothing can be written.
                sent = ours.send(request)
                self._send(theirs, self._peer)
            except OSError:
                ours.close()
                raise
        self._waiting = [request[sent:]]
        return ours

    def connected(self, transport: asyncio.Transport) -> None:
        """The owner's end is there."""
        self._owner = transport
        self._connecting = None
        transport.set_write_buffer_limits(high=_MOST_WAITING)
        waiting, self._waiting = self._waiting, []
        transport.write(b"".join(waiting))
        if transport.get_write_buffer_size() <= _MOST_WAITING:
            self.owner_has_caught_up()

    def answered(self, data: bytes) -> None:
        """Bytes of the answer."""
        self._client.write(data)
        if not self._has_status:
            while data.startswith(_INTERIM):
                data = data[data.find(_HEAD_END) + len(_HEAD_END) :]
            status = data[9:12]
            if status.isdigit():
                self._has_status = True
                self._on_status(int(status))

    def ended(self, finished: bool) -> None:
        """The owner has answered, or has broken off; then the client's connection ends, too."""
        self._owner = None
        self.owner_has_caught_up()
        if self._gone:
            return
        if finished:
            self._on_done()
        else:
            self._client.close()

    def owner_is_behind(self) -> None:
        """The owner takes less than the client sends."""
        if not self._behind and not self._client.is_closing():
            self._behind = True
            self._client.pause_reading()

    def owner_has_caught_up(self) -> None:
        if self._behind and not self._client.is_closing():
            self._behind = False
            self._client.resume_reading()


class _OwnersEnd(asyncio.Protocol):
    """What the transport to the owner tells."""

    def __init__(self, passing: PassingOn) -> None:
        self._passing = passing
        self._transport: asyncio.BaseTransport
        self._finished = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport
        self._passing.connected(cast(asyncio.Transport, transport))

    def data_received(self, data: bytes) -> None:
        self._passing.answered(data)

    def eof_received(self) -> bool:
        """The transport closes itself then."""
        poll = select.poll()
        poll.register(self._transport.get_extra_info("socket").fileno(), 0)
        self._finished = not any(event & select.POLLHUP for _, event in poll.poll(0))
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        self._passing.ended(self._finished)

    def pause_writing(self) -> None:
        self._passing.owner_is_behind()

    def resume_writing(self) -> None:
        self._passing.owner_has_caught_up()
