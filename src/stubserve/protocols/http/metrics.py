"""The metrics port: `/metrics`, and nothing else."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable

from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

from stubserve.observability.exposition import CONTENT_TYPE

_PATH = re.compile(r"/metrics/?")


def create_metrics_app(text: Callable[[], Awaitable[str]]) -> ASGIApp:
    """The app for the metrics port; `text()` gives the metrics of now.

    Other paths are answered 200 and empty, as upstream does.
    """

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["method"] != "GET":
            response = Response('{"error":"Method Not Allowed"}', 405, media_type="application/json")
        else:
            body = await text() if _PATH.fullmatch(scope["path"]) else ""
            response = Response(body, headers={"Content-Type": CONTENT_TYPE})
        await response(scope, receive, send)

    return app
