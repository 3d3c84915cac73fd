"""Vertex AI's routes (`--allow-vertex-ai`), as upstream has them: health and predict, at paths from the environment.

A predict request asks the default model. With the header `X-Vertex-Ai-Triton-Redirect: v2/...` it is a request for that
path instead, with the method that the path needs.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

from stubserve.api.management import ServerFacts
from stubserve.errors import ServeError, invalid, unavailable
from stubserve.http.asgi_request import not_allowed
from stubserve.http.platforms.forward import Forward, nothing, refused

BINARY = "application/vnd.vertex-ai-triton.binary+json;json-header-size="
PREDICT_ROUTE, HEALTH_ROUTE = "AIP_PREDICT_ROUTE", "AIP_HEALTH_ROUTE"
_REDIRECT = "X-Vertex-Ai-Triton-Redirect"
# Paths that need POST. Settings are changed by a request with a body.
_POSTED = re.compile(r"v2/.*/(infer|generate|generate_stream|index|load|unload|register|unregister)")
_SETTINGS = re.compile(r"v2/(.*/setting|logging)")


class VertexAi:
    """The routes as an app; `app` serves the usual ones, `metrics` those of the metrics port.

    Raises ServeError INVALID_ARG if the environment does not name the routes' paths.
    """

    def __init__(
        self,
        server: ServerFacts,
        app: ASGIApp,
        metrics: ASGIApp | None,
        default_model: str,
        environment: Mapping[str, str],
    ) -> None:
        self._server = server
        self._forward = Forward(app, BINARY)
        self._metrics = metrics
        self._default = default_model
        self._health = environment.get(HEALTH_ROUTE, "")
        self._predict = environment.get(PREDICT_ROUTE, "")
        for name, route in (PREDICT_ROUTE, self._predict), (HEALTH_ROUTE, self._health):
            if not route:
                raise invalid(f"{name} is not defined for Vertex AI endpoint")

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        request = Request(scope, receive)
        path, method = request.url.path, request.method
        answer: Response | None = None
        if path not in (self._health, self._predict):
            answer = nothing(400)
        elif method != ("GET" if path == self._health else "POST"):
            answer = not_allowed()
        elif path == self._health:
            await self._forward(scope, receive, send, "/v2/health/ready", "GET")
        else:
            answer = await self._predicted(request, send)
        if answer is not None:
            await answer(scope, receive, send)

    async def _predicted(self, request: Request, send: Send) -> Response | None:
        target = request.headers.get(_REDIRECT)
        if target is None:
            try:
                target = f"v2/models/{self._default or self._only_model()}/infer"
            except ServeError as error:
                return refused(error)
        elif target == "metrics" and self._metrics is not None:
            scope = {**request.scope, "path": "/metrics", "method": "GET"}
            await self._metrics(scope, request.receive, send)
            return None
        if not re.match(r"v2(/|$)", target):
            return nothing(400)
        posted = bool(_POSTED.fullmatch(target))
        if _SETTINGS.fullmatch(target):
            posted = request.headers.get("content-length", "0") != "0"
        await self._forward(request.scope, request.receive, send, f"/{target}", "POST" if posted else "GET")
        return None

    def _only_model(self) -> str:
        names = {model.name for model in self._server.registry.serving()}
        if not names:
            raise unavailable("no model is ready")
        if len(names) > 1:
            raise invalid("Expect the model repository contains only a single model if default model is not specified")
        return names.pop()
