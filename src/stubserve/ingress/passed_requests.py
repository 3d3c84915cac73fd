"""Requests that a worker has passed on: the owner's end of the socket pair that each of them has for itself."""

from __future__ import annotations

import contextlib
import functools
import logging
import socket

from stubserve_stub.wire import messages
from uvicorn.server import ServerState

from stubserve.errors import overloaded
from stubserve.ingress.descriptors import Spare, receive
from stubserve.protocols.doorway import Doorway
from stubserve.protocols.http.app import create_app
from stubserve.protocols.http.connection import HttpConnection
from stubserve.protocols.http.cors import Cors
from stubserve.protocols.http.fallback import uvicorn_config
from stubserve.protocols.http.infer_encode import encode_error
from stubserve.protocols.http.reply import reply_head
from stubserve.protocols.http.shared import Connections
from stubserve.protocols.open_connections import OpenConnections
from stubserve.server import Server

log = logging.getLogger("stubserve.server")

# A client's address, as text
_PEER_BYTES = 256
_NO_DESCRIPTOR = "the server has no descriptor left for this request; its operator can raise the limit (ulimit -n)"


class PassedRequests:
    """Serves them. What a client's connection is allowed, and what is logged of it, is the worker's business."""

    def __init__(self, server: Server) -> None:
        origins = server.settings.http.cors_origins
        app = create_app(server, cors_origins=origins)
        shared = Connections(server, Cors(origins) if origins else None, False, server.http_access)
        shared.open = OpenConnections(0)
        shared.have_one_request = True
        config = uvicorn_config(app, server.settings.logging.access)
        config.load()
        self._make = functools.partial(HttpConnection, shared, config, ServerState(), {})
        self._doorway = Doorway()
        self._spare = Spare()
        self._refused = False

    def receive(self, worker: socket.socket) -> bool:
        """Serves a request that a worker has sent over a socket, with its client's address; False at the end of all.

        One that gets the last descriptor is refused, or the next one could not even be told so.
        """
        self._spare.leave()
        try:
            peer, descriptors = receive(worker, _PEER_BYTES)
        except OSError:
            self._spare.take()
            return True
        there_are_more = self._spare.take()
        for descriptor in descriptors:
            request = socket.socket(fileno=descriptor)
            if there_are_more:
                self._doorway.let_in(request, functools.partial(self._make, peer=messages.unpack(peer)))
            else:
                _refuse(request)
                self._spare.take()
        if not there_are_more and not self._refused:
            log.warning("requests of HTTP workers are refused: no descriptor is left. Raise the limit (ulimit -n)")
        self._refused = not there_are_more
        return bool(peer)


def _refuse(request: socket.socket) -> None:
    """What it says is not read: an answer of one piece always has room in a socket that nothing was written to."""
    reply = encode_error(overloaded(_NO_DESCRIPTOR))
    body = b"".join(reply.parts)
    head = reply_head(reply.status, reply.content_type, len(body), extra=reply.headers, keep_alive=False)
    with request, contextlib.suppress(OSError):
        request.send(head + body)
