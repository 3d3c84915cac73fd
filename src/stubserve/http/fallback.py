"""uvicorn's HTTP protocol on our connections, one request at a time, for all routes but inference; its access log."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Any, cast

from starlette.types import ASGIApp, Message, Receive, Scope, Send
from uvicorn.config import Config
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol
from uvicorn.server import ServerState

from stubserve.api.access_log import log_answer

# The scope's keys for the request id, which a route sets, and for the headers as they came. ASGI has names in lower
# case, and a model that gets headers is to see the client's spelling, whichever way the request goes.
REQUEST_ID = "stubserve.request_id"
HEADERS = "stubserve.headers"


def uvicorn_config(app: Any, logs_access: bool, **more: Any) -> Config:
    """uvicorn's configuration for an app that is a part of our server; `more` is passed on to it."""
    more.setdefault("http", AsgiProtocol)
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


class AsgiProtocol(HttpToolsProtocol):
    """uvicorn's protocol, with the headers as they came, and without the fields of a trailer.

    uvicorn appends these to the headers: what a proxy in front says of its client could be said again by the client.
    """

    _as_sent: list[tuple[bytes, bytes]]
    _in_head: bool

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._in_head = True
        self._as_sent = []
        cast(dict[str, Any], self.scope)[HEADERS] = self._as_sent

    def on_header(self, name: bytes, value: bytes) -> None:
        if self._in_head:
            super().on_header(name, value)
            self._as_sent.append((name, value))

    def on_headers_complete(self) -> None:
        self._in_head = False
        super().on_headers_complete()


class Fallback(AsgiProtocol):
    """Serves the Starlette app on a transport that another object owns.

    The owner feeds the bytes of exactly one request and waits for `on_done` before the next. The owner also handles
    keep-alive, reading and the end of the connection, so this protocol is not in uvicorn's set of connections.
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

    def close_after_answer(self) -> None:
        """Lets the answer to this request say that the connection is closed."""
        if self.cycle is not None:
            self.cycle.keep_alive = False

    def _unsupported_upgrade_warning(self) -> None:
        """Logs nothing: clients offer HTTP/2 in this way routinely, and are answered in HTTP/1."""

    def on_response_complete(self) -> None:
        super().on_response_complete()
        self._unset_keepalive_if_required()
        if not self.transport.is_closing():
            self.on_done()


class LoggedApp:
    """Logs each answer of an app (`--access-log`). A client that goes before its answer begins has no line."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        began_ns = time.monotonic_ns()
        status = received = sent = 0

        async def counted_receive() -> Message:
            nonlocal received
            message = await receive()
            received += len(message.get("body", b""))
            return message

        async def counted_send(message: Message) -> None:
            nonlocal status, sent
            status = message.get("status", status)
            sent += len(message.get("body", b""))
            await send(message)

        try:
            await self._app(scope, counted_receive, counted_send)
        finally:
            if status:
                log_answer(_client(scope), _request(scope), status, _names(scope), began_ns, received, sent)


def _client(scope: Scope) -> str:
    host, port = scope.get("client") or ("", 0)
    return f"{host}:{port}"


def _request(scope: Scope) -> str:
    query = f"?{scope['query_string'].decode('latin-1')}" if scope["query_string"] else ""
    return f"{scope['method']} {scope['raw_path'].decode('latin-1')}{query} HTTP/{scope['http_version']}"


def _names(scope: Scope) -> dict[str, str]:
    parameters: dict[str, Any] = scope.get("path_params", {})
    return {**parameters, "id": scope.get(REQUEST_ID, "")}
