"""The app of the HTTP port, with inference for where it is served as plain ASGI."""

from __future__ import annotations

import functools
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from starlette.applications import Starlette
from starlette.convertors import Convertor, register_url_convertor
from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from stubserve.api.management import ServerFacts
from stubserve.errors import ServeError, internal
from stubserve.http.access import ANY, EXPOSED, INFERENCE, METHODS
from stubserve.http.asgi_request import error_response, json_response, values_of
from stubserve.http.infer_routes import GenerateRoute, InferRoute
from stubserve.http.management_routes import ManagementRoutes
from stubserve.http.pages import TRY, page

Endpoint = Callable[[Request], Awaitable[Response]]


class _Digits(Convertor[str]):
    """A version as it stands in the path. Starlette's own `int` fails where Python refuses to read so long a number."""

    regex = "[0-9]+"

    def convert(self, value: str) -> str:
        return value

    def to_string(self, value: str) -> str:
        return value


register_url_convertor("digits", _Digits())


class _Methods:
    """One route as an ASGI app: picks the handler by method and turns what it raises into an answer."""

    def __init__(self, **handlers: Endpoint) -> None:
        self._handlers = handlers
        # The server with the rules for clients, and the kind of API that they go by; set when it becomes a route
        self.server: ServerFacts
        self.kind = ""

    @property
    def methods(self) -> list[str]:
        """The HTTP methods that it answers."""
        return list(self._handlers)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        request = Request(scope, receive)
        handler = self._handlers.get(request.method)
        access = self.server.http_access
        refusal = None if access is None else access.refusal(self.kind, functools.partial(values_of, request))
        response: Response
        if refusal is not None:
            response = error_response(refusal)
        elif handler is None:
            response = json_response({"error": "Method Not Allowed"}, 405)
        else:
            try:
                response = await handler(request)
            except ServeError as error:
                response = error_response(error)
            except ClientDisconnect:
                return
        await response(scope, receive, send)


async def _try(request: Request) -> Response:
    return page(TRY)


# Path, kind of API (as --http-restricted-api calls it), methods
_Row = tuple[str, str, _Methods]


def _table(server: ServerFacts, try_page: bool) -> list[_Row]:
    """All routes that have rules."""
    routes = ManagementRoutes(server)
    infer = InferRoute(server)
    table: list[_Row] = [
        ("/v2", "metadata", _Methods(GET=routes.server_metadata)),
        ("/v2/health/live", "health", _Methods(GET=routes.live)),
        ("/v2/health/ready", "health", _Methods(GET=routes.ready)),
        ("/v2/models/stats", "statistics", _Methods(GET=routes.statistics)),
        ("/v2/logging", "logging", _Methods(GET=routes.log_settings, POST=routes.update_log_settings)),
        *(
            (path, "trace", _Methods(GET=routes.trace_settings, POST=routes.update_trace_settings))
            for path in ("/v2/trace/setting", "/v2/models/{model}/trace/setting")
        ),
    ]
    if try_page:
        table.append(("/v2/openapi.json", "metadata", _Methods(GET=routes.openapi)))
    for prefix in ("/v2/models/{model}", "/v2/models/{model}/versions/{version:digits}"):
        table += [
            (prefix, "metadata", _Methods(GET=routes.metadata)),
            (prefix + "/ready", "health", _Methods(GET=routes.model_ready)),
            (prefix + "/config", "model-config", _Methods(GET=routes.config)),
            (prefix + "/stats", "statistics", _Methods(GET=routes.statistics)),
            (prefix + "/infer", INFERENCE, _Methods(POST=infer)),
            (prefix + "/generate", INFERENCE, _Methods(POST=GenerateRoute(server, streamed=False))),
            (prefix + "/generate_stream", INFERENCE, _Methods(POST=GenerateRoute(server, streamed=True))),
        ]
    by_name = routes.repository_by_name
    for prefix, load, unload in (
        ("/v2/repository", routes.load, routes.unload),
        ("/v2/repository/{repository}", by_name, by_name),
    ):
        table += [
            (prefix + "/index", "model-repository", _Methods(POST=routes.index)),
            (prefix + "/models/{model}/load", "model-repository", _Methods(POST=load)),
            (prefix + "/models/{model}/unload", "model-repository", _Methods(POST=unload)),
        ]
    for path in ("/v2/systemsharedmemory", "/v2/systemsharedmemory/region/{region}"):
        table += [
            (path + "/status", "shared-memory", _Methods(GET=routes.region_status)),
            (path + "/register", "shared-memory", _Methods(POST=routes.register_region)),
            (path + "/unregister", "shared-memory", _Methods(POST=routes.unregister_region)),
        ]
    for path in ("/v2/cudasharedmemory", "/v2/cudasharedmemory/region/{region}"):
        table += [
            (path + "/status", "shared-memory", _Methods(GET=routes.cuda_region_status)),
            (path + "/register", "shared-memory", _Methods(POST=routes.register_cuda_region)),
            (path + "/unregister", "shared-memory", _Methods(POST=routes.unregister_cuda_region)),
        ]
    return table


def create_app(
    server: ServerFacts, lifespan: Any = None, cors_origins: Sequence[str] = (), try_page: bool = False
) -> Starlette:
    """The app for a server. With `lifespan` (an ASGI host runs it) the app starts and stops the server itself.

    `cors_origins` are those of pages that may ask. `try_page` adds the page on which people try models, and what it and
    other tools know the models by (OpenAPI). The page itself needs no token: it says nothing of the server.
    """
    table = _table(server, try_page)
    for _, kind, methods in table:
        methods.server, methods.kind = server, kind

    async def unexpected(request: Request, error: Exception) -> Response:
        return error_response(internal("unexpected error while the request was handled; see the server's log"))

    async def no_route(request: Request, error: Exception) -> Response:
        return json_response({"error": "Not Found"}, 404)

    app = Starlette(
        routes=[*(Route(path, methods) for path, _, methods in table), *([Route("/try", _try)] if try_page else [])],
        exception_handlers={404: no_route, Exception: unexpected},
        middleware=[
            Middleware(
                CORSMiddleware,
                allow_origins=cors_origins,
                allow_methods=METHODS,
                allow_headers=[ANY],
                expose_headers=EXPOSED,
            )
        ]
        if cors_origins
        else [],
        lifespan=lifespan,
    )
    app.router.redirect_slashes = False
    return app
