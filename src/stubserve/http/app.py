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

from stubserve.api import management
from stubserve.api.access import Access
from stubserve.api.management import ServerFacts
from stubserve.errors import ServeError, internal, invalid
from stubserve.http.access import ANY, EXPOSED, INFERENCE, METHODS
from stubserve.http.asgi_request import error_response, json_response, values_of
from stubserve.http.infer_routes import GenerateRoute, InferRoute
from stubserve.http.management_routes import ManagementRoutes
from stubserve.http.pages import CHAT, TRY, page

Endpoint = Callable[[Request], Awaitable[Response]]


class _Digits(Convertor[str]):
    """A version as text. Starlette's own `int` convertor fails for numbers that are too long for Python's `int()`."""

    regex = "[0-9]+"

    def convert(self, value: str) -> str:
        return value

    def to_string(self, value: str) -> str:
        return value


register_url_convertor("digits", _Digits())


_NOT_ALLOWED = invalid("Method Not Allowed")


class _Methods:
    """One route as an ASGI app: picks the handler by method and turns its exceptions into answers.

    `kind` is the kind of API, for which the server may have rules of access; `access` are other rules than the server's
    for HTTP. `answer` is the form of its errors.
    """

    def __init__(
        self,
        server: ServerFacts,
        kind: str,
        handlers: dict[str, Endpoint],
        answer: Callable[[ServeError], Response] = error_response,
        access: Access | None = None,
    ) -> None:
        self._server = server
        self._kind = kind
        self._answer = answer
        self._access = access
        self.methods = handlers

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        request = Request(scope, receive)
        handler = self.methods.get(request.method)
        access = self._access or self._server.http_access
        refusal = None if access is None else access.refusal(self._kind, functools.partial(values_of, request))
        response: Response
        if refusal is not None:
            response = self._answer(refusal)
        elif handler is None:
            response = self._answer(_NOT_ALLOWED)
            response.status_code = 405
        else:
            try:
                response = await handler(request)
            except ServeError as error:
                response = self._answer(error)
            except ClientDisconnect:
                return
        await response(scope, receive, send)


def _page(name: str) -> Endpoint:
    async def show(request: Request) -> Response:
        return page(name)

    return show


# Path, kind of API (as --http-restricted-api calls it), methods
_Row = tuple[str, str, dict[str, Endpoint]]


def _table(server: ServerFacts, try_page: bool) -> list[_Row]:
    routes = ManagementRoutes(server)
    infer = InferRoute(server)
    trace_settings: dict[str, Endpoint] = {"GET": routes.trace_settings, "POST": routes.update_trace_settings}
    table: list[_Row] = [
        ("/v2", "metadata", {"GET": routes.server_metadata}),
        ("/v2/health/live", "health", {"GET": routes.live}),
        ("/v2/health/ready", "health", {"GET": routes.ready}),
        # By GET, too: hooks of Kubernetes know nothing else.
        ("/v2/drain", management.REPOSITORY, {"GET": routes.drain, "POST": routes.drain}),
        ("/v2/models/stats", "statistics", {"GET": routes.statistics}),
        ("/v2/logging", "logging", {"GET": routes.log_settings, "POST": routes.update_log_settings}),
        ("/v2/trace/setting", "trace", trace_settings),
        ("/v2/models/{model}/trace/setting", "trace", trace_settings),
    ]
    if try_page:
        table.append(("/v2/openapi.json", "metadata", {"GET": routes.openapi}))
    for prefix in ("/v2/models/{model}", "/v2/models/{model}/versions/{version:digits}"):
        table += [
            (prefix, "metadata", {"GET": routes.metadata}),
            (prefix + "/ready", "health", {"GET": routes.model_ready}),
            (prefix + "/config", "model-config", {"GET": routes.config}),
            (prefix + "/stats", "statistics", {"GET": routes.statistics}),
            (prefix + "/infer", INFERENCE, {"POST": infer}),
            (prefix + "/generate", INFERENCE, {"POST": GenerateRoute(server, streamed=False)}),
            (prefix + "/generate_stream", INFERENCE, {"POST": GenerateRoute(server, streamed=True)}),
        ]
    by_name = routes.repository_by_name
    for prefix, load, unload in (
        ("/v2/repository", routes.load, routes.unload),
        ("/v2/repository/{repository}", by_name, by_name),
    ):
        table += [
            (prefix + "/index", "model-repository", {"POST": routes.index}),
            (prefix + "/models/{model}/load", "model-repository", {"POST": load}),
            (prefix + "/models/{model}/unload", "model-repository", {"POST": unload}),
        ]
    for path in ("/v2/systemsharedmemory", "/v2/systemsharedmemory/region/{region}"):
        table += [
            (path + "/status", "shared-memory", {"GET": routes.region_status}),
            (path + "/register", "shared-memory", {"POST": routes.register_region}),
            (path + "/unregister", "shared-memory", {"POST": routes.unregister_region}),
        ]
    for path in ("/v2/cudasharedmemory", "/v2/cudasharedmemory/region/{region}"):
        table += [
            (path + "/status", "shared-memory", {"GET": routes.cuda_region_status}),
            (path + "/register", "shared-memory", {"POST": routes.register_cuda_region}),
            (path + "/unregister", "shared-memory", {"POST": routes.unregister_cuda_region}),
        ]
    return table


def _switched_off(path: str, try_page: bool, openai: bool) -> str:
    """The flag that a path needs, in a sentence; empty if no flag would make a difference."""
    if path in ("/try", "/chat") and not try_page:
        return "this page is served with --try-page, or where --http-address is a loopback address"
    if (path == "/chat" or path.startswith("/v1/")) and not openai:
        return "OpenAI's routes are served on this port with --openai"
    return ""


def create_app(
    server: ServerFacts,
    lifespan: Any = None,
    cors_origins: Sequence[str] = (),
    try_page: bool = False,
    openai: bool = False,
    metrics: Callable[[], Awaitable[str]] | None = None,
    as_upstream: bool = False,
    access: Access | None = None,
) -> Starlette:
    """The app for a server. With `lifespan` (an ASGI host runs it) the app starts and stops the server itself.

    Pages of `cors_origins` may ask. `try_page` adds the page on which people try models, and the
    models' description for tools (OpenAPI). The page itself needs no token: it says nothing about the server.
    `openai` adds OpenAI's routes, whose errors have a form of their own, and where `metrics()` gives them the metrics;
    with both there is a page to chat, too. `as_upstream`: these answer as Triton's own front end for OpenAI's protocol.
    `access` are other rules of access than the server's for HTTP.
    """
    routes = [
        Route(path, _Methods(server, kind, handlers, error_response, access))
        for path, kind, handlers in _table(server, try_page)
    ]
    if openai:
        # Here, so that a server without these routes does not load them.
        from stubserve.http.openai.errors import openai_error, upstream_error
        from stubserve.http.openai.routes import table

        answer = upstream_error if as_upstream else openai_error
        rows = table(server, as_upstream, metrics)
        routes += [Route(path, _Methods(server, kind, handlers, answer, access)) for path, kind, handlers in rows]
    if try_page:
        routes.append(Route("/try", _page(TRY)))
        if openai:
            routes.append(Route("/chat", _page(CHAT)))

    async def unexpected(request: Request, error: Exception) -> Response:
        return error_response(internal("unexpected error while the request was handled; see the server's log"))

    async def no_route(request: Request, error: Exception) -> Response:
        why = _switched_off(request.url.path, try_page, openai)
        return json_response({"error": f"Not Found: {why}" if why else "Not Found"}, 404)

    app = Starlette(
        routes=routes,
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
