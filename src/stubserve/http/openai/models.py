"""`/v1/models`: the models that are ready, and, under explicit model control, loads and unloads by name."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from stubserve.api.management import ServerFacts
from stubserve.errors import invalid, not_found
from stubserve.http.asgi_request import body_of, json_response
from stubserve.http.openai.part import PARAMETER
from stubserve.http.openai.use import (
    CHAT,
    CHAT_TEMPLATE,
    COMPLETIONS,
    EMBEDDINGS,
    TEXT,
    OpenAiUse,
    openai_use,
)
from stubserve.inference.served_model import ServedModel

# The key of a model's use in the memo of its signature
_USE = "openai"


class ModelRoutes:
    """The models that one of the routes can serve, or all `as_upstream`."""

    def __init__(self, server: ServerFacts, as_upstream: bool) -> None:
        self._server = server
        self._as_upstream = as_upstream
        # OpenAI's models have a time; that of ours is when the server started.
        self._created = int(time.time())
        # Models with a load or unload under way
        self._changing: set[str] = set()

    async def all(self, request: Request) -> Response:
        return json_response({"object": "list", "data": [self._row(name) for name in self._names()]})

    async def one(self, request: Request) -> Response:
        name = request.path_params["model"]
        if name not in self._names():
            raise not_found(f"there is no model '{name}' that these routes serve and that is ready").at("model")
        return json_response(self._row(name))

    async def load(self, request: Request) -> Response:
        name = request.path_params["model"]
        async with body_of(request, self._server, what="Request size"):
            with self._change(name):
                if self._server.registry.ready_versions(name):
                    raise invalid(f"Model '{name}' is already loaded").at("model")
                await self._server.control.load(name)
        return json_response(self._row(name))

    async def unload(self, request: Request) -> Response:
        name = request.path_params["model"]
        async with body_of(request, self._server, what="Request size"):
            with self._change(name):
                if not self._server.registry.ready_versions(name):
                    raise invalid(f"Unknown model: {name}").at("model")
                await self._server.control.unload(name)
        return json_response({"status": "success", "model": name})

    @contextlib.contextmanager
    def _change(self, name: str) -> Iterator[None]:
        if not self._server.control.is_explicit:
            raise invalid("Model load/unload requires --model-control-mode=explicit")
        if name in self._changing:
            raise invalid(f"Model '{name}' is being loaded or unloaded already").at("model")
        self._changing.add(name)
        try:
            yield
        finally:
            self._changing.discard(name)

    def _names(self) -> list[str]:
        ready = (model for model in self._server.registry.serving() if not model.down())
        if self._as_upstream:
            return list(dict.fromkeys(model.name for model in ready))
        served = (model.name for model in ready if any(map(use_of(model).input_of, (CHAT, COMPLETIONS, EMBEDDINGS))))
        return list(dict.fromkeys(served))

    def _row(self, name: str) -> dict[str, Any]:
        owner = "Triton Inference Server" if self._as_upstream else "stubserve"
        return {"id": name, "object": "model", "created": self._created, "owned_by": owner}


def use_of(model: ServedModel) -> OpenAiUse:
    """How the routes use a model, found once."""
    memo = model.signature.memo
    if _USE not in memo:
        use = openai_use(model.config)
        if use.completions == TEXT and memo.get(CHAT_TEMPLATE) is not None and PARAMETER not in model.config.parameters:
            use = use._replace(chat=use.chat or TEXT)
        memo[_USE] = use
    found: OpenAiUse = memo[_USE]
    return found
