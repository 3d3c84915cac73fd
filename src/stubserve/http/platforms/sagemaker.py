"""SageMaker's routes (`--allow-sagemaker`), as upstream has them.

    GET  /ping                    POST /invocations
    GET  /models                  POST /models            {"model_name": ..., "url": <folder>}
    GET  /models/<name>           DELETE /models/<name>   POST /models/<name>/invoke

`/invocations` asks the model that SAGEMAKER_TRITON_DEFAULT_MODEL_NAME names. SageMaker makes a folder for each model
that it loads with these routes, and names the model; the model lies in a folder of that folder. The header
`X-Amzn-SageMaker-Target-Model` overrides the model of the path.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

from stubserve.api.access import Access
from stubserve.api.management import ServerFacts
from stubserve.errors import ServeError, invalid
from stubserve.http.asgi_request import QUESTION_BYTES, body_of, guarded, json_response, not_allowed
from stubserve.http.json.values import ODD_BYTES, UNSET, find, parse_json
from stubserve.http.platforms.forward import Forward, nothing, refused
from stubserve.loading.control import ModelControl

BINARY = "application/vnd.sagemaker-triton.binary+json;json-header-size="
DEFAULT_MODEL = "SAGEMAKER_TRITON_DEFAULT_MODEL_NAME"
_TARGET = "X-Amzn-SageMaker-Target-Model"
# The status for a load that memory was not enough for: SageMaker then unloads other models
_INSUFFICIENT_STORAGE = 507
_OUT_OF_MEMORY = ("out of memory", "Failed to allocate", "failed to allocate", "No space left on device", "MemoryError")


class SageMaker:
    """The routes as an app; `app` serves the usual ones."""

    def __init__(
        self,
        server: ServerFacts,
        models: ModelControl,
        app: ASGIApp,
        access: Access | None,
        environment: Mapping[str, str],
    ) -> None:
        self._server = server
        self._models = models
        self._forward = Forward(app, BINARY)
        self._managed = guarded(self._manage, access, "model-repository")
        self._default = environment.get(DEFAULT_MODEL) or f"unspecified_{DEFAULT_MODEL}"
        # Name -> url of the models that these routes have loaded
        self._loaded: dict[str, str] = {}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        request = Request(scope, receive)
        path, method = request.url.path, request.method
        parts = path.strip("/").split("/")
        answer: Response | None = None
        if path == "/ping" and method == "GET":
            await self._forward(scope, receive, send, "/v2/health/ready", "GET")
        elif path == "/invocations" and method == "POST":
            await self._infer(request, send, self._default)
        elif path in ("/ping", "/invocations"):
            answer = not_allowed()
        elif parts[0] == "models" and len(parts) <= 2:
            await self._managed(scope, receive, send)
        elif len(parts) == 3 and (parts[0], parts[2]) == ("models", "invoke"):
            if method != "POST":
                answer = not_allowed()
            elif parts[1] in self._loaded:
                await self._infer(request, send, parts[1])
            else:
                answer = nothing(404)
        else:
            answer = nothing(400)
        if answer is not None:
            await answer(scope, receive, send)

    async def _infer(self, request: Request, send: Send, model: str) -> None:
        name = request.headers.get(_TARGET) or model
        if "/" in name:
            await nothing(400)(request.scope, request.receive, send)
            return
        await self._forward(request.scope, request.receive, send, f"/v2/models/{name}/infer", "POST")

    async def _manage(self, scope: Scope, receive: Receive, send: Send) -> None:
        request = Request(scope, receive)
        name = request.url.path.strip("/").partition("/")[2]
        try:
            answer = await (self._one(request, name) if name else self._all(request))
        except ServeError as error:
            answer = refused(error)
        await answer(scope, receive, send)

    async def _all(self, request: Request) -> Response:
        if request.method == "GET":
            return json_response({"models": [_told(name, url) for name, url in sorted(self._loaded.items())]})
        if request.method != "POST":
            return not_allowed()
        async with body_of(request, self._server, QUESTION_BYTES) as body:
            name, url = _asked(bytes(body))
        if name in self._loaded or url in self._loaded.values():
            return refused(invalid(f"model repository '{url}' has already been registered"), 409)
        self._loaded[name] = url
        try:
            await self._models.load_from(name, Path(url))
        except BaseException as raised:
            del self._loaded[name]
            if isinstance(raised, ServeError) and any(sign in raised.message for sign in _OUT_OF_MEMORY):
                return refused(raised, _INSUFFICIENT_STORAGE)
            raise
        return nothing(200)

    async def _one(self, request: Request, name: str) -> Response:
        if request.method not in ("GET", "DELETE"):
            return not_allowed()
        url = self._loaded.get(name)
        if url is None:
            return nothing(404)
        if request.method == "GET":
            return json_response(_told(name, url))
        await self._models.unload_from(name)
        self._loaded.pop(name, None)
        return nothing(200)


def _told(name: str, url: str) -> dict[str, str]:
    return {"modelName": name, "modelUrl": url}


def _asked(body: bytes) -> tuple[str, str]:
    """Name and folder of a model to load. Raises ServeError."""
    document = parse_json(body, ODD_BYTES)
    values: dict[str, str] = {}
    for member in ("model_name", "url"):
        value = find(document, member)
        if not (value is UNSET or isinstance(value, str)):
            raise invalid(f"'{member}' must be a string")
        values[member] = value if isinstance(value, str) else ""
    name, url = values.values()
    if not name:
        raise invalid("'model_name' must be given")
    if not url:
        raise invalid(f"failed to register '{url}', repository not found")
    return name, url
