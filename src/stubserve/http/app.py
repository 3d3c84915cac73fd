"""Every HTTP route but inference, as a Starlette app; with inference too when it is served as plain ASGI."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import orjson
from starlette.applications import Starlette
from starlette.convertors import Convertor, register_url_convertor
from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from stubserve.api import management
from stubserve.api.management import ServerFacts
from stubserve.errors import ServeError, internal, invalid
from stubserve.http.access import ANY, EXPOSED, INFERENCE, METHODS
from stubserve.http.asgi_request import body_of, error_response, values_of
from stubserve.http.infer_routes import GenerateRoute, InferRoute
from stubserve.http.json.values import UNSET, find, parse_json
from stubserve.http.load_parameters import parse_load_parameters, parse_unload_dependents
from stubserve.http.log_settings import parse_log_settings
from stubserve.http.region_parameters import parse_region
from stubserve.http.trace_settings import parse_trace_settings, shown
from stubserve.inference.served_model import ServedModel
from stubserve.memory import client_regions
from stubserve.model_config.metadata import model_metadata
from stubserve.model_config.render import to_json_dict

Endpoint = Callable[[Request], Awaitable[Response]]


class _Digits(Convertor[str]):
    """A version as it stands in the path. Starlette's own `int` fails where Python refuses to read so long a number."""

    regex = "[0-9]+"

    def convert(self, value: str) -> str:
        return value

    def to_string(self, value: str) -> str:
        return value


register_url_convertor("digits", _Digits())


def json_response(document: Any, status: int = 200) -> Response:
    return Response(orjson.dumps(document), status, media_type="application/json")


class ManagementRoutes:
    """The handlers. Each either returns a response or raises ServeError."""

    def __init__(self, server: ServerFacts) -> None:
        self._server = server

    # Health

    async def live(self, request: Request) -> Response:
        return Response(b"", 200 if management.live(self._server) else 400)

    async def ready(self, request: Request) -> Response:
        management.refuse_while_exiting(self._server)
        return Response(b"", 200 if await self._server.ready() else 400)

    async def model_ready(self, request: Request) -> Response:
        reason = await self._model(request).check_ready()
        if reason:
            raise invalid(f"Model version not ready: {reason}")
        return Response(b"")

    # Metadata

    async def server_metadata(self, request: Request) -> Response:
        return json_response(
            {
                "name": self._server.name,
                "version": self._server.version,
                "extensions": management.extensions(self._server),
            }
        )

    async def metadata(self, request: Request) -> Response:
        model = self._model(request)
        versions = management.metadata_versions(self._server, model, request.path_params.get("version", ""))
        return json_response(model_metadata(model.config, versions))

    async def config(self, request: Request) -> Response:
        return json_response(to_json_dict(self._model(request).config))

    # Statistics and repository

    async def statistics(self, request: Request) -> Response:
        params = request.path_params
        rows = management.statistics(self._server.registry, params.get("model", ""), params.get("version", ""))
        return json_response({"model_stats": rows})

    async def index(self, request: Request) -> Response:
        async with body_of(request, self._server) as body:
            only_ready = find(parse_json(body), "ready") if body else UNSET
        if only_ready is UNSET:
            only_ready = False
        elif not isinstance(only_ready, bool):
            raise invalid("Invalid value for 'ready': expected a boolean")
        return json_response(await self._server.control.index(only_ready))

    async def repository_by_name(self, request: Request) -> Response:
        raise management.no_repository_name()

    async def load(self, request: Request) -> Response:
        async with body_of(request, self._server) as body:
            config, files = await asyncio.to_thread(parse_load_parameters, body)
        await self._server.control.load(request.path_params["model"], config, files)
        return Response(b"")

    async def unload(self, request: Request) -> Response:
        async with body_of(request, self._server) as body:
            unload_dependents = parse_unload_dependents(body)
        await self._server.control.unload(request.path_params["model"], unload_dependents)
        return Response(b"")

    async def log_settings(self, request: Request) -> Response:
        return json_response(self._server.log_settings.to_dict())

    async def update_log_settings(self, request: Request) -> Response:
        async with body_of(request, self._server) as body:
            changes = parse_log_settings(body)
        self._server.log_settings.update(changes)
        return await self.log_settings(request)

    async def trace_settings(self, request: Request) -> Response:
        model = management.traced_model(self._server, request.path_params.get("model", ""))
        return json_response(shown(self._server.tracing.to_dict(model)))

    async def update_trace_settings(self, request: Request) -> Response:
        model = management.traced_model(self._server, request.path_params.get("model", ""))
        async with body_of(request, self._server) as body:
            changes = parse_trace_settings(body)
        self._server.tracing.update(changes, model)
        return await self.trace_settings(request)

    # Shared memory of clients

    async def region_status(self, request: Request) -> Response:
        return json_response(management.region_rows(self._server, _region(request)))

    async def cuda_region_status(self, request: Request) -> Response:
        return json_response(management.cuda_region_rows(self._server, _region(request)))

    async def register_region(self, request: Request) -> Response:
        name = _region(request)
        async with body_of(request, self._server) as body:
            if self._server.regions is None:
                raise client_regions.disabled()
            if not name:
                raise invalid("'region name' is necessary to register system shared memory region")
            management.register_region(self._server, name, *parse_region(body))
        return Response(b"", media_type="application/json")

    async def register_cuda_region(self, request: Request) -> Response:
        name = _region(request)
        async with body_of(request, self._server):
            if self._server.regions is not None and not name:
                raise invalid("'region name' is necessary to register cuda shared memory region")
            management.refuse_cuda_region(self._server, name)
        return Response(b"", media_type="application/json")

    async def unregister_region(self, request: Request) -> Response:
        async with body_of(request, self._server):
            management.unregister_region(self._server, _region(request))
        return Response(b"", media_type="application/json")

    async def unregister_cuda_region(self, request: Request) -> Response:
        async with body_of(request, self._server):
            management.unregister_cuda_region(self._server, _region(request))
        return Response(b"", media_type="application/json")

    def _model(self, request: Request) -> ServedModel:
        return self._server.known_model(request.path_params["model"], request.path_params.get("version", ""))


def _region(request: Request) -> str:
    name: str = request.path_params.get("region", "")
    return name


class _Methods:
    """One route as an ASGI app: picks the handler by method and turns what it raises into an answer."""

    def __init__(self, **handlers: Endpoint) -> None:
        self._handlers = handlers
        # Whose rules say who may use it, as an API of which kind; set when it becomes a route
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


# Path, kind of API (as --http-restricted-api calls it), methods
_Row = tuple[str, str, _Methods]


def _table(server: ServerFacts) -> list[_Row]:
    """All routes."""
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


def create_app(server: ServerFacts, lifespan: Any = None, cors_origins: Sequence[str] = ()) -> Starlette:
    """The app for a server. With `lifespan` (an ASGI host runs it) the app starts and stops the server itself.

    `cors_origins` are those of pages that may ask.
    """
    table = _table(server)
    for _, kind, methods in table:
        methods.server, methods.kind = server, kind

    async def unexpected(request: Request, error: Exception) -> Response:
        return error_response(internal("unexpected error while the request was handled; see the server's log"))

    async def no_route(request: Request, error: Exception) -> Response:
        return json_response({"error": "Not Found"}, 404)

    app = Starlette(
        routes=[Route(path, methods) for path, _, methods in table],
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
