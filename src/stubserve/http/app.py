"""The app of the HTTP port, with inference for where it is served as plain ASGI."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Awaitable, Callable, Iterable, Sequence
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
from stubserve.parts import Part

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


def route(
    server: ServerFacts,
    path: str,
    kind: str,
    handlers: dict[str, Endpoint],
    answer: Callable[[ServeError], Response] = error_response,
    access: Access | None = None,
) -> Route:
    """A route. `kind` is its kind of API, `answer` the form of its errors; `access` are other rules than for HTTP."""
    return Route(path, _Methods(server, kind, handlers, answer, access))


# Path, kind of API (as --http-restricted-api calls it), methods
_Row = tuple[str, str, dict[str, Endpoint]]


def _table(server: ServerFacts) -> list[_Row]:
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


def create_app(
    server: ServerFacts,
    parts: Sequence[Part] = (),
    routes: Iterable[Route] = (),
    lifespan: Any = None,
    cors_origins: Sequence[str] = (),
    access: Access | None = None,
) -> Starlette:
    """The app for a server, with the routes of `parts`, and more `routes`.

    With `lifespan` (an ASGI host runs it) the app starts and stops the server itself. Pages of `cors_origins` may ask.
    `access` are other rules of access than the server's for HTTP.
    """
    found = [route(server, path, kind, handlers, access=access) for path, kind, handlers in _table(server)]
    found += [*itertools.chain.from_iterable(part.routes(server) for part in parts), *routes]

    async def unexpected(request: Request, error: Exception) -> Response:
        return error_response(internal("unexpected error while the request was handled; see the server's log"))

    async def no_route(request: Request, error: Exception) -> Response:
        why = next(filter(None, (part.hint(request.url.path) for part in parts)), "")
        return json_response({"error": f"Not Found: {why}" if why else "Not Found"}, 404)

    app = Starlette(
        routes=found,
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
