"""The handlers of OpenAI's routes."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from stubserve.api.management import ServerFacts
from stubserve.errors import Code, ServeError, invalid, not_found
from stubserve.http.asgi_request import body_of, client_of, json_response, peer_of
from stubserve.http.body import too_long_json
from stubserve.http.fallback import REQUEST_ID
from stubserve.http.generate import EventStream, InPieces
from stubserve.http.infer_routes import cancel_when_gone, head_of
from stubserve.http.openai.body import Asked, read_body
from stubserve.http.openai.call import OpenAiCall
from stubserve.http.openai.objects import ObjectWriter
from stubserve.http.openai.questions import SAMPLING, STOP_WORDS, Question, no_such_route, questions
from stubserve.http.openai.texts import TextWriter
from stubserve.http.openai.vectors import VectorWriter
from stubserve.http.openai.writer import Form, Writer
from stubserve.inference.long_work import LARGE_BYTES
from stubserve.inference.served_model import ServedModel
from stubserve.model_config.openai_routes import (
    CHAT,
    COMPLETIONS,
    EMBEDDINGS,
    OBJECT_OUTPUT,
    OpenAiUse,
    openai_use,
)

# The key of a model's use in the memo of its signature
_USE = "openai"


class ModelRoutes:
    """`/v1/models`: the models that are ready, and that one of the routes can serve."""

    def __init__(self, server: ServerFacts) -> None:
        self._server = server
        # OpenAI's models have a time; that of ours is when the server started.
        self._created = int(time.time())

    async def all(self, request: Request) -> Response:
        return json_response({"object": "list", "data": [self._row(name) for name in self._names()]})

    async def one(self, request: Request) -> Response:
        name = request.path_params["model"]
        if name not in self._names():
            raise not_found(f"there is no model '{name}' that these routes serve and that is ready").at("model")
        return json_response(self._row(name))

    def _names(self) -> list[str]:
        ready = (model for model in self._server.registry.serving() if not model.down())
        served = (model.name for model in ready if any(map(_use(model).input_of, (CHAT, COMPLETIONS, EMBEDDINGS))))
        return list(dict.fromkeys(served))

    def _row(self, name: str) -> dict[str, Any]:
        return {"id": name, "object": "model", "created": self._created, "owned_by": "stubserve"}


class AskRoute:
    """One of the routes that ask a model."""

    def __init__(self, server: ServerFacts, route: str) -> None:
        self._server = server
        self._route = route

    async def __call__(self, request: Request) -> Response:
        if request.headers.get("content-encoding", "identity") not in ("identity", ""):
            raise invalid("Unsupported content-encoding, only 'identity' is supported.")
        async with body_of(request, self._server) as body:
            asked = await self._read(body)
            model = self._find(asked.model)
            request.scope["path_params"] = {"model": model.name}  # for the access log
            use = _use(model)
            if not use.input_of(self._route):
                raise no_such_route(model.name, self._route, use)
            if asked.n > 1 and asked.n * len(body) > self._server.max_input_size:
                # Each choice has its own copy of the text.
                raise too_long_json(asked.n * len(body), self._server.max_input_size).at("n")
            call, asking = self._call(request, body, asked, model, use)
            watching = asyncio.ensure_future(cancel_when_gone(request, call))
            await self._unless_refused(call.ask(asking), call, watching)
            is_stream = asked.stream
            del body, asked, asking  # what is asked may be large
        request.scope[REQUEST_ID] = call.id
        await self._unless_refused(call.answered(), call, watching)
        if is_stream:
            return EventStream(call, watching)
        watching.cancel()
        return InPieces([] if call.gone else call.body(), 200)

    async def _unless_refused(self, waiting: Awaitable[None], call: OpenAiCall, watching: asyncio.Task[None]) -> None:
        """Waits; if the request is refused or fails meanwhile, nothing of it is left."""
        try:
            await waiting
        except BaseException:
            watching.cancel()
            call.cancel()
            raise

    def _find(self, name: str) -> ServedModel:
        try:
            return self._server.find_model(name, "")
        except ServeError as error:
            raise error.at("model") if error.code is Code.NOT_FOUND else error from None

    async def _read(self, body: bytes) -> Asked:
        if len(body) <= LARGE_BYTES:
            return read_body(body, self._route)
        asked: Asked = await self._server.large_json.read_openai(body, self._route, self._server.store)
        return asked

    def _call(
        self, request: Request, body: bytes, asked: Asked, model: ServedModel, use: OpenAiUse
    ) -> tuple[OpenAiCall, list[Question]]:
        """The call that leads, and what it asks. Raises ServeError."""
        has_objects = use.output == OBJECT_OUTPUT and self._route != EMBEDDINGS
        asking = list(questions(asked, self._route, body, use, model.signature, has_objects))
        form = Form(self._route, asked.model, asked.stream, asked.include_usage)
        inputs, tokens = model.signature.inputs, model.statistics.tokens
        assert tokens is not None, "models that these routes serve have it"
        stops = asked.stops if inputs.keys().isdisjoint(("stop", STOP_WORDS, SAMPLING)) else []
        logprobs = bool(asked.members.get("logprobs"))
        client, head = client_of(self._server, request), head_of(request)
        lead: OpenAiCall | None = None
        for question in asking:
            writer: Writer
            if self._route == EMBEDDINGS:
                size = asked.members.get("dimensions", 0)
                writer = VectorWriter(tokens, form, question.index, question.rows, use.vector, size, asked.base64)
            elif has_objects:
                writer = ObjectWriter(tokens, form)
            else:
                writer = TextWriter(tokens, form, question.text, question.index, stops, question.echoed, logprobs)
            call = OpenAiCall(model, self._server, form, writer, lead, head)
            call.client, call.peer = client, partial(peer_of, request)
            lead = lead or call
        assert lead is not None
        return lead, asking


def table(server: ServerFacts) -> list[tuple[str, dict[str, Callable[[Request], Awaitable[Response]]]]]:
    """Path and methods of each route, and of any other path at the same place."""
    models = ModelRoutes(server)
    return [
        ("/v1/models", {"GET": models.all}),
        ("/v1/models/{model}", {"GET": models.one}),
        ("/v1/chat/completions", {"POST": AskRoute(server, CHAT)}),
        ("/v1/completions", {"POST": AskRoute(server, COMPLETIONS)}),
        ("/v1/embeddings", {"POST": AskRoute(server, EMBEDDINGS)}),
        ("/v1/{path:path}", {"GET": _no_route, "POST": _no_route}),
    ]


async def _no_route(request: Request) -> Response:
    raise not_found(f"there is no route {request.url.path}")


def _use(model: ServedModel) -> OpenAiUse:
    """How the routes use a model, found once."""
    memo = model.signature.memo
    if _USE not in memo:
        memo[_USE] = openai_use(model.config)
    use: OpenAiUse = memo[_USE]
    return use
