"""Pages for people, each of which is one file, and the metrics port: `/metrics`, and the status page at `/`."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable
from pathlib import Path

from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

from stubserve.api.access import Access
from stubserve.http.asgi_request import guarded
from stubserve.observability.exposition import CONTENT_TYPE

_METRICS = re.compile(r"/metrics/?")
STATUS, TRY, CHAT = "status.html", "try.html", "chat.html"
HEADERS = {
    "Cache-Control": "no-store",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    # Allows only what the page itself contains, and requests to this server
    "Content-Security-Policy": "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; "
    "connect-src 'self'; img-src data:; base-uri 'none'; form-action 'none'",
}


def page(name: str) -> Response:
    """A page by its file's name."""
    return Response(Path(__file__).with_name(name).read_bytes(), headers=HEADERS, media_type="text/html; charset=utf-8")


def create_metrics_app(
    text: Callable[[], Awaitable[str]], status: Callable[[], Awaitable[bytes]] | None, access: Access | None
) -> ASGIApp:
    """The app for the metrics port; `text()` gives the current metrics, `status()` the data of the status page.

    Other paths are answered 200 and empty, as upstream does; so is the page's path if there is no status. `access` has
    the rules for reading. Everybody may load the page itself: it contains no data, and asks for a token.
    """

    async def answer(path: str) -> Response:
        if _METRICS.fullmatch(path):
            return Response(await text(), headers={"Content-Type": CONTENT_TYPE})
        if status is not None and path == "/status.json":
            return Response(await status(), headers=HEADERS, media_type="application/json")
        return Response("", headers={"Content-Type": CONTENT_TYPE})

    async def read(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["method"] != "GET":
            response = Response('{"error":"Method Not Allowed"}', 405, media_type="application/json")
        else:
            response = await answer(scope["path"])
        await response(scope, receive, send)

    guard = guarded(read, access, "metrics")

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        is_page = status is not None and scope["path"] == "/" and scope["method"] == "GET"
        await (page(STATUS) if is_page else guard)(scope, receive, send)

    return app
