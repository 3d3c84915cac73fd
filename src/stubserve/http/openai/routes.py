"""The handlers of OpenAI's routes."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from functools import partial

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from stubserve.api.access import Access
from stubserve.api.inference_server import InferenceServer
from stubserve.api.management import ServerFacts
from stubserve.errors import Code, ServeError, internal, invalid, not_found
from stubserve.http.access import INFERENCE
from stubserve.http.app import route
from stubserve.http.asgi_request import body_of, client_of, peer_of
from stubserve.http.body import too_long_json
from stubserve.http.fallback import REQUEST_ID
from stubserve.http.generate import EventStream, InPieces
from stubserve.http.infer_routes import cancel_when_gone, head_of
from stubserve.http.management_routes import ManagementRoutes
from stubserve.http.openai.body import Asked, read_body, unpack_asked
from stubserve.http.openai.call import OpenAiCall
from stubserve.http.openai.errors import openai_error, upstream_error
from stubserve.http.openai.model_requests import SAMPLING, STOP_WORDS, ModelRequest, model_requests, no_such_route
from stubserve.http.openai.model_template import ChatTemplate
from stubserve.http.openai.models import ModelRoutes, use_of
from stubserve.http.openai.objects import ObjectWriter
from stubserve.http.openai.texts import TextWriter
from stubserve.http.openai.use import (
    CHAT,
    CHAT_TEMPLATE,
    COMPLETIONS,
    EMBEDDINGS,
    OBJECT_OUTPUT,
    TEXT,
    OpenAiUse,
)
from stubserve.http.openai.vectors import VectorWriter
from stubserve.http.openai.writer import Form, Writer
from stubserve.inference.long_work import LARGE_BYTES
from stubserve.inference.served_model import ServedModel
from stubserve.inference.tensor import drop_blocks
from stubserve.observability.exposition import CONTENT_TYPE

# What the rendering of a chat template may take
CHAT_S = 10.0
# What the process that reads large JSON does for these routes
_READ = "stubserve.http.openai.body:read_packed"
_RENDER = "stubserve.http.openai.chat_template:render_packed"

# Path, kind of API, and methods
_Row = tuple[str, str, dict[str, Callable[[Request], Awaitable[Response]]]]


class AskRoute:
    """One of the routes that ask a model."""

    def __init__(self, server: ServerFacts, route: str, as_upstream: bool) -> None:
        self._server = server
        self._route = route
        self._as_upstream = as_upstream

    async def __call__(self, request: Request) -> Response:
        if request.headers.get("content-encoding", "identity") not in ("identity", ""):
            raise invalid("Unsupported content-encoding, only 'identity' is supported.")
        async with body_of(request, self._server, what="Request size") as body:
            asked = await self._read(body)
            model = self._find(asked.model)
            request.scope["path_params"] = {"model": model.name}  # for the access log
            use = use_of(model)
            if not use.input_of(self._route):
                raise no_such_route(model.name, self._route, use)
            template = model.signature.memo.get(CHAT_TEMPLATE) if use.input_of(self._route) == TEXT else None
            if template is not None and self._route == CHAT:
                asked = await self._rendered(asked, model.name, template)
                model = self._find(asked.model)  # the model may have been loaded anew meanwhile
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
            if error.code is not Code.NOT_FOUND:
                raise
            raise (invalid(error.message) if self._as_upstream else error).at("model") from None

    async def _read(self, body: bytes) -> Asked:
        if len(body) <= LARGE_BYTES:
            return read_body(body, self._route)
        server = self._server
        return unpack_asked(await server.large_json.ask(_READ, self._route, 0, body, server.store))

    async def _rendered(self, asked: Asked, model: str, template: ChatTemplate) -> Asked:
        """A chat whose text is what the model's template makes of it. Raises ServeError."""
        tools = asked.documents.get("tools", "")
        text = await chat_text(self._server, (model, *template), asked.texts[0], tools)
        return asked._replace(texts=[asked.texts[0], text], not_plain="")

    def _call(
        self, request: Request, body: bytes, asked: Asked, model: ServedModel, use: OpenAiUse
    ) -> tuple[OpenAiCall, list[ModelRequest]]:
        """The call that leads, and what it asks. Raises ServeError."""
        has_objects = use.output == OBJECT_OUTPUT and self._route != EMBEDDINGS
        asking = list(model_requests(asked, self._route, body, use, model.signature, has_objects))
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


async def chat_text(
    server: InferenceServer, template: tuple[str, str, dict[str, str]], messages: str, tools: str
) -> str:
    """As `chat_template.render`, in the process that reads large JSON; one that takes too long ends that process.

    Raises ServeError.
    """
    chat = f"{messages}\0{tools}".encode()
    try:
        rendered = await server.large_json.ask(_RENDER, template, server.max_input_size, chat, server.store, CHAT_S)
    except TimeoutError:
        raise internal(f"the chat template of model '{template[0]}' took longer than {CHAT_S:g} s") from None
    (tensor,) = rendered.inputs
    try:
        return bytes(tensor.buffer).decode()
    finally:
        drop_blocks(rendered.inputs)


def routes(
    server: ServerFacts,
    as_upstream: bool,
    metrics: Callable[[], Awaitable[str]] | None,
    access: Access | None = None,
) -> Iterator[Route]:
    """The routes. `as_upstream` as Triton's own front end answers them; `metrics()` gives the current metrics.

    `access` are other rules of access than the server's for HTTP.
    """
    answer = upstream_error if as_upstream else openai_error
    for path, kind, handlers in _table(server, as_upstream, metrics):
        yield route(server, path, kind, handlers, answer, access)


def _table(server: ServerFacts, as_upstream: bool, metrics: Callable[[], Awaitable[str]] | None) -> Iterator[_Row]:
    models, management = ModelRoutes(server, as_upstream), ManagementRoutes(server)

    async def show_metrics(request: Request) -> Response:
        assert metrics is not None
        return Response(await metrics(), headers={"Content-Type": CONTENT_TYPE})

    yield "/v1/models", "model-repository", {"GET": models.all}
    yield "/v1/models/{model}", "model-repository", {"GET": models.one}
    yield "/v1/models/{model}/load", "model-repository", {"POST": models.load}
    yield "/v1/models/{model}/unload", "model-repository", {"POST": models.unload}
    yield "/v1/chat/completions", INFERENCE, {"POST": AskRoute(server, CHAT, as_upstream)}
    yield "/v1/completions", INFERENCE, {"POST": AskRoute(server, COMPLETIONS, as_upstream)}
    yield "/v1/embeddings", INFERENCE, {"POST": AskRoute(server, EMBEDDINGS, as_upstream)}
    yield "/v1/{path:path}", INFERENCE, {"GET": _no_route, "POST": _no_route}
    yield "/health/ready", "health", {"GET": management.ready}
    if metrics is not None:
        yield "/metrics", "metrics", {"GET": show_metrics}


async def _no_route(request: Request) -> Response:
    raise not_found(f"there is no route {request.url.path}")
