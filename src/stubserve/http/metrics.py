"""The metrics port: `/metrics`, and the status page at `/`."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable
from pathlib import Path

from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

from stubserve.observability.exposition import CONTENT_TYPE

_PATH = re.compile(r"/metrics/?")
_PAGE = Path(__file__).parents[1] / "observability" / "status.html"
_PAGE_HEADERS = {
    "Cache-Control": "no-store",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    # Nothing but what is in the page, and its own data
    "Content-Security-Policy": "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; "
    "connect-src 'self'; img-src data:; base-uri 'none'; form-action 'none'",
}


def create_metrics_app(
    text: Callable[[], Awaitable[str]], status: Callable[[], Awaitable[bytes]] | None = None
) -> ASGIApp:
    """The app for the metrics port; `text()` gives the metrics of now, `status()` the data of the status page.

    Other paths are answered 200 and empty, as upstream does; so is the page's where there is no status.
    """

    async def answer(path: str) -> Response:
        if _PATH.fullmatch(path):
            return Response(await text(), headers={"Content-Type": CONTENT_TYPE})
        if status is not None and path == "/":
            return Response(_PAGE.read_bytes(), headers=_PAGE_HEADERS, media_type="text/html; charset=utf-8")
        if status is not None and path == "/status.json":
            return Response(await status(), headers=_PAGE_HEADERS, media_type="application/json")
        return Response("", headers={"Content-Type": CONTENT_TYPE})

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["method"] != "GET":
            response = Response('{"error":"Method Not Allowed"}', 405, media_type="application/json")
        else:
            response = await answer(scope["path"])
        await response(scope, receive, send)

    return app
