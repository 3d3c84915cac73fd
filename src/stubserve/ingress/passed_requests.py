"""Requests that a worker has passed on: the owner's end of the socket pair that each of them has for itself."""

from __future__ import annotations

import asyncio
import functools
import logging
import socket
from typing import Any

import uvicorn
from uvicorn.server import ServerState

from stubserve.protocols.http.app import create_app
from stubserve.protocols.http.connection import HttpConnection
from stubserve.protocols.http.cors import Cors
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
        config = uvicorn.Config(
            app, ws="none", lifespan="off", access_log=False, log_config=None, server_header=False, date_header=False
        )
        config.load()
        self._make: Any = functools.partial(HttpConnection, shared, config, ServerState(), {})
        self._coming: set[asyncio.Task[Any]] = set()

    def serve(self, request: socket.socket) -> None:
        """Serves the request that comes in by a socket."""
        request.setblocking(False)
        loop = asyncio.get_running_loop()
        coming = loop.create_task(loop.connect_accepted_socket(self._make, request))
        self._coming.add(coming)
        coming.add_done_callback(self._coming.discard)
