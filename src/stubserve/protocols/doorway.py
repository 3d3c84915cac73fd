"""How an accepted connection comes in: a socket becomes a transport with its protocol, where there is TLS behind a
handshake. A client has HANDSHAKE_S for its part of that; where it fails the connection is closed.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import Callable

from stubserve.protocols.tls import HANDSHAKE_S


class Doorway:
    """Where connections come in, on the running loop; without `tls` they are plain.

    `on_failure` is called when one has been closed in place of coming in.
    """

    def __init__(
        self,
        tls: ssl.SSLContext | None = None,
        on_failure: Callable[[], object] = lambda: None,
    ) -> None:
        self._tls = tls
        self._on_failure = on_failure
        self._loop = asyncio.get_running_loop()
        # Those that are on their way in
        self._coming: set[asyncio.Task[None]] = set()

    def let_in(self, client: socket.socket, make: Callable[[], asyncio.BaseProtocol]) -> None:
        """Has a connection come in, which is the doorway's from now on. `make` makes its protocol."""
        coming = self._loop.create_task(self._come_in(client, make))
        self._coming.add(coming)
        coming.add_done_callback(self._coming.discard)

    def close(self) -> None:
        """Who is in the middle of a handshake, which may take as long as the client likes, is turned away."""
        if self._tls is not None:
            for coming in self._coming:
                coming.cancel()

    async def wait_closed(self) -> None:
        """Until all that were on their way are in."""
        while self._coming:
            await asyncio.wait(self._coming)

    async def _come_in(self, client: socket.socket, make: Callable[[], asyncio.BaseProtocol]) -> None:
        client.setblocking(False)
        try:
            handshake_s = None if self._tls is None else HANDSHAKE_S
            await self._loop.connect_accepted_socket(make, client, ssl=self._tls, ssl_handshake_timeout=handshake_s)
        except (OSError, asyncio.CancelledError):
            client.close()
            self._on_failure()
