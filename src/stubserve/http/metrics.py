"""The app of the port of metrics: `/metrics`, and the pages that parts of the server have there."""

from __future__ import annotations

import re

from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

from stubserve.api.management import ServerFacts
from stubserve.http.asgi_request import guarded, not_allowed
from stubserve.observability.exposition import CONTENT_TYPE

_METRICS = re.compile(r"/metrics/?")


def create_metrics_app(server: ServerFacts) -> ASGIApp:
    """The app. Other paths than those of metrics and pages are answered 200 and empty, as upstream does."""
    pages = {path: (is_guarded, show) for part in server.parts for path, is_guarded, show in part.metrics_pages(server)}

    async def read(scope: Scope, receive: Receive, send: Send) -> None:
        path = scope["path"]
        if scope["method"] != "GET":
            response = not_allowed()
        elif path in pages:
            response = await pages[path][1]()
        else:
            text = await server.offload.run(server.metrics.text()) if _METRICS.fullmatch(path) else ""
            response = Response(text, headers={"Content-Type": CONTENT_TYPE})
        await response(scope, receive, send)

    guard = guarded(read, server.http_access, "metrics")

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        is_guarded, _ = pages.get(scope["path"], (True, None))
        is_open = not is_guarded and scope["method"] == "GET"
        await (read if is_open else guard)(scope, receive, send)

    return app
