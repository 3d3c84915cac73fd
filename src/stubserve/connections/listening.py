"""Sockets that listen, and the order in which new connections come in: first those that have sent a request.

uvloop accepts one connection in each pass of the event loop, in the order in which they came. So a health probe waited
for seconds behind a few thousand silent connections. Accepting many at once would make connected clients wait, because
making a connection's transport and protocol takes 0.1 ms.

So the two steps are apart. Connections are accepted many at a time, which takes 10 µs each, and stay bare sockets. In
each pass of the loop that does no other long work (`inference.long_work`) the oldest of them comes in. Some in each
pass come in earlier: those with the head of a request, or with bytes that can never be one; a look at the bytes takes 3
µs. A silent client waits, and costs only a descriptor. A client that goes away before it has sent a head is closed at
once, and takes no other's place: on a busy core turns are few, and a probe waited behind thousands that had gone.

The system hands connections out in their order, so a probe behind thousands waits until all of these are accepted. A
pass may spend a millisecond on accepting, with few system calls: only the first few are looked at right away. The looks
at those outside may take another millisecond. Where passes are long, there are few of them. So each of the two may also
take an eighth of the time since the last pass, up to ten milliseconds.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import select
import socket
import ssl
from collections.abc import Callable
from time import perf_counter

from stubserve.connections.paced_transport import PacedProtocol
from stubserve.inference.long_work import Offload

log = logging.getLogger("stubserve.server")

# Seconds for a client's part of a TLS handshake
HANDSHAKE_S = 10.0
# How many connections may wait to be accepted. The server of a listener sets it again.
BACKLOG = 2048
# Seconds of accepting, or of looking, in a pass of the loop, at least and at most; part of the time since the last one
_PASS_S = 0.001
_MOST_PASS_S = 0.01
_PASS_PART = 1 / 8
# How many that have sent a request come in per pass
_AT_ONCE = 4
# The part of a request's head that is looked at
_HEAD_BYTES = 2048
# Seconds without accepting when the system has no more descriptors
_PAUSE_S = 0.1


def listen(address: str, port: int, shared: bool = False) -> socket.socket:
    """A listening socket; a `shared` one is only bound, and its server makes it listen. Raises OSError.

    The system gives the connections of a shared port to all servers that listen.
    """
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if shared:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        listener.bind((address, port))
        if not shared:
            listener.listen(BACKLOG)
    except OSError:
        listener.close()
        raise
    return listener


def explained(error: OSError, protocol: str, place: str) -> str:
    """Why a protocol cannot be served, and what to do; its flags are `--<protocol>-port` and `--<protocol>-address`.

    `place` says what cannot be opened, unless it is a file for TLS.
    """
    reason = error.strerror or str(error)
    if error.filename is not None:
        front = "grpc" if protocol == "grpc" else "http"
        return (
            f"there is no TLS for {protocol}: {error.filename}: {reason}. The files for TLS are those of "
            f"--{front}-server-cert, --{front}-server-key and --{front}-root-cert."
        )
    if error.errno == errno.EADDRINUSE:
        reason += f". Is another server running? Choose another --{protocol}-port."
    elif error.errno == errno.EACCES:
        reason += f". Low ports are for root only. Choose another --{protocol}-port."
    elif error.errno == errno.EADDRNOTAVAIL or isinstance(error, socket.gaierror):
        reason += f". Is --{protocol}-address one of this machine's?"
    return f"{place}: {reason}"


class Acceptor:
    """Accepts for one listening socket, on the running loop. `make` makes the protocol of a connection that comes in.

    `asks` tells from a connection's first bytes whether it has work for the server already; with `tls` the beginning of
    a handshake is work. A client has HANDSHAKE_S for its part of the handshake; if it fails the connection is closed.
    """

    def __init__(
        self,
        listener: socket.socket,
        make: Callable[[], asyncio.BaseProtocol],
        asks: Callable[[bytes], bool],
        offload: Offload,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        self._listener = listener
        self._asks = asks
        self._offload = offload
        self._make = make
        self._tls = tls
        self._loop = asyncio.get_running_loop()
        # Accepted connections that have not come in, in order, by descriptor
        self._outside: dict[int, socket.socket] = {}
        self._turn_is_due = False
        self._spoken = select.epoll()
        self._coming: set[asyncio.Task[None]] = set()
        self._retry: asyncio.TimerHandle | None = None
        # Whether the system refused the last accept
        self._refused = False
        self._accepted_at = self._looked_at = perf_counter()
        listener.setblocking(False)
        self._loop.add_reader(self._spoken.fileno(), self._listen_to_them)
        self._loop.add_reader(listener.fileno(), self._accept)

    def close(self) -> None:
        """No connection comes in any more; those outside are closed."""
        if self._spoken.closed:
            return
        if self._retry is not None:
            self._retry.cancel()
        self._loop.remove_reader(self._listener.fileno())
        self._loop.remove_reader(self._spoken.fileno())
        self._spoken.close()
        for client in self._outside.values():
            client.close()
        self._outside.clear()
        if self._tls is not None:
            # In the middle of a handshake, which may take as long as the client likes.
            for coming in self._coming:
                coming.cancel()

    async def wait_closed(self) -> None:
        while self._coming:
            await asyncio.wait(self._coming)

    def _accept(self) -> None:
        now = perf_counter()
        end = _end_of_share(now, self._accepted_at)
        self._accepted_at = now
        looks = _AT_ONCE
        while True:
            try:
                client, _address = self._listener.accept()
            except (BlockingIOError, InterruptedError):
                return
            except ConnectionError:
                continue  # the client has gone again
            except OSError as error:
                if not self._refused:
                    self._refused = True
                    log.warning("no connection can be accepted: %s", error.strerror)
                self._loop.remove_reader(self._listener.fileno())
                self._retry = self._loop.call_later(_PAUSE_S, self._accept_again)
                return
            self._refused = False
            if looks > 0 and self._has_asked(client):
                self._let_in(client)
            else:
                self._spoken.register(client, select.EPOLLIN | select.EPOLLRDHUP | select.EPOLLONESHOT)
                self._outside[client.fileno()] = client
                if not self._turn_is_due:
                    self._turn_is_due = True
                    self._offload.in_turn(self._next)
            looks -= 1
            if perf_counter() > end:
                return

    def _accept_again(self) -> None:
        self._retry = None
        self._loop.add_reader(self._listener.fileno(), self._accept)

    def _listen_to_them(self) -> None:
        """Some connections outside have sent something, or have gone."""
        now = perf_counter()
        end = _end_of_share(now, self._looked_at)
        self._looked_at = now
        left = _AT_ONCE
        while left and perf_counter() < end:
            spoken = self._spoken.poll(0, left)
            if not spoken:
                return
            for descriptor, events in spoken:
                if self._has_asked(self._outside[descriptor]):
                    left -= 1
                    self._let_in(self._take(descriptor))
                elif events & select.EPOLLRDHUP:
                    self._take(descriptor).close()
                else:
                    # Looked at again when the client goes. Other bytes wait for the connection's turn.
                    self._spoken.modify(descriptor, select.EPOLLRDHUP | select.EPOLLONESHOT)

    def _has_asked(self, client: socket.socket) -> bool:
        try:
            beginning = client.recv(_HEAD_BYTES, socket.MSG_PEEK | socket.MSG_DONTWAIT)
        except OSError:
            return False  # nothing has come, or the client has gone
        return len(beginning) == _HEAD_BYTES or (len(beginning) > 0 and self._asks(beginning))

    def _take(self, descriptor: int) -> socket.socket:
        self._spoken.unregister(descriptor)
        return self._outside.pop(descriptor)

    def _next(self) -> None:
        self._turn_is_due = False
        if self._outside:
            self._let_in(self._take(next(iter(self._outside))))
        if self._outside:
            self._turn_is_due = True
            self._offload.in_turn(self._next)

    def _let_in(self, client: socket.socket) -> None:
        coming = self._loop.create_task(self._come_in(client))
        self._coming.add(coming)
        coming.add_done_callback(self._coming.discard)

    async def _come_in(self, client: socket.socket) -> None:
        """Makes a socket a transport with its protocol; with TLS after a handshake."""
        client.setblocking(False)
        try:
            if self._tls is None:
                await self._loop.connect_accepted_socket(self._make, client)
            else:
                await self._loop.connect_accepted_socket(
                    lambda: PacedProtocol(self._make()), client, ssl=self._tls, ssl_handshake_timeout=HANDSHAKE_S
                )
        except (OSError, asyncio.CancelledError):
            client.close()


def _end_of_share(now: float, last: float) -> float:
    """Until when a pass that begins `now` may accept or look, where the last one did at `last`."""
    return now + min(max(_PASS_S, (now - last) * _PASS_PART), _MOST_PASS_S)
