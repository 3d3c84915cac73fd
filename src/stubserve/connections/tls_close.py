"""The end of a connection over TLS whose client does not answer.

Each side says that it has sent its last, and uvloop waits 30 s for a client to say so. A client that keeps a connection
for its next request reads nothing meanwhile, so it says nothing, and the end of the server waited for it. The protocol
lets a side close without that answer. So here a client has PARTING_S, from when it has all that was sent to it.
"""

from __future__ import annotations

import asyncio

from stubserve.connections.sent_memory import unacknowledged

PARTING_S = 1.0


def wait_for_parting(transport: asyncio.Transport) -> None:
    """Sees that a transport ends which has been closed, or will be."""
    if transport.get_extra_info("ssl_object") is not None:
        asyncio.get_running_loop().call_later(PARTING_S / 2, _look, transport, False)


def _look(transport: asyncio.Transport, had_all: bool) -> None:
    """Looks twice: between the two more may be sent, since the first may come before the event loop knows of room."""
    socket = transport.get_extra_info("socket")
    if socket is None or socket.fileno() < 0:
        return
    has_all = transport.is_closing() and not unacknowledged(socket.fileno())
    if has_all and had_all:
        transport.abort()
    else:
        asyncio.get_running_loop().call_later(PARTING_S / 2, _look, transport, has_all)
