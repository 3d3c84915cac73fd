"""The access log of an ASGI app: of all routes over HTTP that are not a connection's own."""

from __future__ import annotations

import time
from typing import Any

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from stubserve.api.access_log import log_answer

# What a route says of its request: the id
REQUEST_ID = "stubserve.request_id"


class LoggedApp:
    """An app whose answers have lines in the access log. A client that goes before its answer begins has none."""

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
