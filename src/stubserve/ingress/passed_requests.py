"""Requests that a worker has passed on: the owner's end of the socket pair that each of them has for itself."""

from __future__ import annotations

import functools
import logging
import socket

from uvicorn.server import ServerState

from stubserve.protocols.doorway import Doorway
from stubserve.protocols.fair_queues import Peer
from stubserve.protocols.http.app import create_app
from stubserve.protocols.http.connection import HttpConnection
from stubserve.protocols.http.cors import Cors
from stubserve.protocols.http.fallback import uvicorn_config
from stubserve.protocols.http.shared import Connections
from stubserve.protocols.open_connections import OpenConnections
from stubserve.server import Server

log = logging.getLogger("stubserve.server")


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

    def serve(self, request: socket.socket, peer: Peer | None) -> None:
        """Serves the request that comes in by a socket. `peer` is where its client is."""
        self._doorway.let_in(request, functools.partial(self._make, peer=peer))
