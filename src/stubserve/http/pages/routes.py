"""The handlers of the pages, and of what they read beside the usual routes."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from starlette.requests import Request
from starlette.responses import FileResponse, Response
from starlette.routing import Route

from stubserve.api.access import AUTHORIZATION
from stubserve.api.management import ServerFacts
from stubserve.errors import ServeError
from stubserve.http.app import route
from stubserve.http.asgi_request import json_response
from stubserve.parts import MetricsPage
from stubserve.repository.registry import ModelEntry

if TYPE_CHECKING:
    from stubserve.http.pages.status import ServerStatus

HEADERS = {
    "Cache-Control": "no-store",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    # Allows only what the page itself contains, and requests to this server
    "Content-Security-Policy": "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; "
    "connect-src 'self'; img-src data:; base-uri 'none'; form-action 'none'",
}


# Swagger UI's own files come from this server, too.
_DOCS_HEADERS = {
    **HEADERS,
    "Content-Security-Policy": "default-src 'none'; style-src 'self' 'unsafe-inline'; "
    "script-src 'self' 'unsafe-inline'; connect-src 'self'; img-src 'self' data:; base-uri 'none'; form-action 'none'",
}
_SWAGGER_FILES = {"swagger-ui-bundle.js": "text/javascript", "swagger-ui.css": "text/css"}


def openapi_routes(server: ServerFacts) -> Iterator[Route]:
    """The models' description for tools, and the page that shows it, if the package with Swagger UI is there."""

    async def describe(request: Request) -> Response:
        from stubserve.http.pages import openapi  # not at the top: few people ask

        access, models = server.http_access, server.registry.serving()
        wants_token = access is not None and AUTHORIZATION in access.credentials
        return json_response(openapi.document(server.name, server.version, models, wants_token))

    async def show_docs(request: Request) -> Response:
        return _page("docs.html", _DOCS_HEADERS)

    async def show_file(request: Request) -> Response:
        name = request.path_params["name"]
        if name not in _SWAGGER_FILES:
            return Response(status_code=404)
        return FileResponse(
            static / name, headers={"X-Content-Type-Options": "nosniff"}, media_type=_SWAGGER_FILES[name]
        )

    yield route(server, "/v2/openapi.json", "metadata", {"GET": describe})
    package = find_spec("swagger_ui")
    if package is not None and package.origin is not None:
        static = Path(package.origin).with_name("static")
        yield Route("/docs", show_docs)
        yield Route("/docs/{name}", show_file)


def try_routes(with_chat: bool) -> Iterator[Route]:
    """The page on which people try models, and that to chat.

    The pages themselves need no token: they say nothing about the server.
    """

    async def show_try(request: Request) -> Response:
        return _page("try.html")

    async def show_chat(request: Request) -> Response:
        return _page("chat.html")

    yield Route("/try", show_try)
    if with_chat:
        yield Route("/chat", show_chat)


def status_pages(server: ServerFacts) -> Iterable[MetricsPage]:
    """The status page and its data. Everybody may load the page itself, which asks for a token."""
    began = time.time()
    status: ServerStatus | None = None

    def models() -> Iterable[ModelEntry]:
        try:
            return server.registry.models.values()
        except ServeError:  # the start has failed
            return ()

    async def show() -> Response:
        return _page("status.html")

    async def tell() -> Response:
        nonlocal status
        if status is None:
            from stubserve.http.pages.status import ServerStatus

            status = ServerStatus(
                server.name, server.version, models, server.memory, server.log_settings.last_errors, began
            )
        data = await server.offload.run(status.json())
        return Response(data, headers=HEADERS, media_type="application/json")

    return [("/", False, show), ("/status.json", True, tell)]


def _page(name: str, headers: Mapping[str, str] = HEADERS) -> Response:
    """A page by its file's name."""
    return Response(Path(__file__).with_name(name).read_bytes(), headers=headers, media_type="text/html; charset=utf-8")
