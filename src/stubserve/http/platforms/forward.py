"""Requests of cloud platforms as requests of the usual routes: another path, and a header under another name.

Clients of Triton write the length of the JSON in front of binary tensors into `Inference-Header-Content-Length`. Here
it travels in the content type, both ways: `<type>;json-header-size=<n>`.
"""

from __future__ import annotations

from typing import Any
from urllib.parse import quote

from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from stubserve.errors import ServeError
from stubserve.http.asgi_request import error_response

_LENGTH = b"inference-header-content-length"


class Forward:
    """Passes requests on to an app. Its binary answers get the content type `binary`, to which the length is added."""

    def __init__(self, app: ASGIApp, binary: str) -> None:
        self._app = app
        self._binary = binary.encode()

    async def __call__(self, scope: Scope, receive: Receive, send: Send, path: str, method: str) -> None:
        """Forwards the request to `path`. If the app has no such path the answer is 400, without a body."""
        headers = [(name, value) for name, value in scope["headers"] if name != _LENGTH]
        kind = dict(headers).get(b"content-type", b"")
        if kind.startswith(self._binary):
            headers.append((_LENGTH, _number(kind[len(self._binary) :])))
        forwarded = {
            **scope,
            "path": path,
            "raw_path": quote(path).encode(),
            "query_string": b"",
            "method": method,
            "headers": headers,
        }
        unknown = False

        async def answer(message: Message) -> None:
            nonlocal unknown
            if message["type"] == "http.response.start":
                if "endpoint" not in forwarded:  # the app has no such route
                    unknown = True
                    return
                message = {**message, "headers": self._answered(message["headers"])}
            if not unknown:
                await send(message)

        await self._app(forwarded, receive, answer)
        if unknown:
            await Response(b"", 400)(scope, receive, send)

    def _answered(self, headers: Any) -> list[tuple[bytes, bytes]]:
        given = dict(headers)
        length = given.get(_LENGTH)
        if length is None:
            return list(headers)
        left = [(name, value) for name, value in headers if name not in (_LENGTH, b"content-type")]
        return [*left, (b"content-type", self._binary + length)]


def _number(text: bytes) -> bytes:
    """The digits that a text begins with; 0 if there are none, as in upstream."""
    digits = text[: len(text) - len(text.lstrip(b"0123456789"))]
    return digits or b"0"


def nothing(status: int) -> Response:
    """An answer without a body."""
    return Response(b"", status)


def refused(error: ServeError, status: int | None = None) -> Response:
    """An error in the form of the usual routes."""
    response = error_response(error)
    if status is not None:
        response.status_code = status
    return response
