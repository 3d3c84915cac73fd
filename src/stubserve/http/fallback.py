"""uvicorn's own HTTP protocol, fed one request at a time by our connection, for every route that is not inference."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from uvicorn.config import Config
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol
from uvicorn.server import ServerState

from stubserve.http.access_log import LoggedApp


def uvicorn_config(app: Any, logs_access: bool, **more: Any) -> Config:
    """What uvicorn needs to know to serve an app as a part of ours; `more` is passed on to it."""
    return Config(
        LoggedApp(app) if logs_access else app,
        ws="none",
        lifespan="off",
        access_log=False,
        log_config=None,
        server_header=False,
        date_header=False,
        **more,
    )


class Fallback(HttpToolsProtocol):
    """Serves the Starlette app on a transport that belongs to somebody else.

    The owner feeds the bytes of exactly one request and waits for `on_done` before the next. Keep-alive, reading and
    the end of the connection stay the owner's business, so this protocol is not in uvicorn's set of connections.
    """

    on_done: Callable[[], None]

    def __init__(
        self,
        config: Config,
        server_state: ServerState,
        app_state: dict[str, Any],
        loop: asyncio.AbstractEventLoop | None,
    ) -> None:
        super().__init__(config, server_state, app_state, loop)

    def attach(self, transport: asyncio.Transport, on_done: Callable[[], None]) -> None:
        self.on_done = on_done
        self.connection_made(transport)
        self.connections.discard(self)

    def _unsupported_upgrade_warning(self) -> None:
        """Nothing: clients offer HTTP/2 in this way as a matter of course, and are answered in HTTP/1."""

    def on_response_complete(self) -> None:
        super().on_response_complete()
        self._unset_keepalive_if_required()
        if not self.transport.is_closing():
            self.on_done()
