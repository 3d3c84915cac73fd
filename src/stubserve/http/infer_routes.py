"""The inference routes as plain ASGI: `generate` always, `infer` where our connection class does not serve it."""

from __future__ import annotations

import asyncio
from functools import partial

from starlette.requests import Request
from starlette.responses import Response

from stubserve.api.management import ServerFacts
from stubserve.errors import ServeError, invalid
from stubserve.http.asgi_request import body_of, client_of, find_model, peer_of, response_of
from stubserve.http.body import body_buffer, refusal
from stubserve.http.fallback import HEADERS, REQUEST_ID
from stubserve.http.generate import EventStream, GenerateCall, generate
from stubserve.http.infer import HttpInferCall
from stubserve.http.message import RequestHead
from stubserve.http.reader import SCRATCH_BYTES
from stubserve.memory.blocks import Block


class _ArenaBody:
    """A body that is received into the arena while another server reads the socket."""

    def __init__(self, server: ServerFacts, head: RequestHead, request: Request) -> None:
        self._given_up: ServeError | None = None
        self.buffer = body_buffer(server, head, request, self)

    def add(self, piece: bytes) -> None:
        """Raises ServeError."""
        if self._given_up is not None:
            raise self._given_up
        self.buffer.add(memoryview(piece))

    def give_up(self, error: ServeError) -> None:
        self.drop()
        self._given_up = error

    def drop(self) -> None:
        if self._given_up is None:
            self.buffer.drop()


class InferRoute:
    """Inference as plain ASGI: the same call as on our own connection class, with the body copied once.

    A body of known length goes to the arena, which bounds the memory of bodies. The limit on JSON bounds the others.
    """

    def __init__(self, server: ServerFacts) -> None:
        self._server = server

    async def __call__(self, request: Request) -> Response:
        head = head_of(request)
        head.infer = (request.path_params["model"], request.path_params.get("version", ""))
        declared = request.headers.get("content-length", "")
        head.content_length = int(declared) if declared.isdecimal() else 0
        refused = refusal(head, self._server)
        if refused is not None:
            raise refused
        answer: asyncio.Future[Response] = asyncio.get_running_loop().create_future()

        def start(body: bytes | memoryview, block: Block | None, offset: int) -> HttpInferCall:
            model = find_model(self._server, request)  # the model may have been loaded anew meanwhile
            call = HttpInferCall(model, head, self._server, lambda reply: answer.set_result(response_of(reply)))
            call.client, call.peer = client_of(self._server, request), partial(peer_of, request)
            call.start(body, block, offset)
            request.scope[REQUEST_ID] = call.id
            return call

        if head.content_length > SCRATCH_BYTES:
            arena_body = _ArenaBody(self._server, head, request)
            try:
                async for piece in request.stream():
                    arena_body.add(piece)
                buffer = arena_body.buffer
                call = start(buffer.view, buffer.block, buffer.offset)
            finally:
                arena_body.drop()
        else:
            async with body_of(request, self._server, max(self._server.max_input_size, SCRATCH_BYTES)) as body:
                call = start(body, None, 0)
        watching = asyncio.ensure_future(cancel_when_gone(request, call))
        try:
            return await answer
        finally:
            watching.cancel()


class GenerateRoute:
    """`generate`, or `generate_stream` where `streamed`."""

    def __init__(self, server: ServerFacts, streamed: bool) -> None:
        self._server = server
        self._streamed = streamed

    async def __call__(self, request: Request) -> Response:
        find_model(self._server, request)
        if request.headers.get("content-encoding", "identity") not in ("identity", ""):
            raise invalid("Unsupported content-encoding, only 'identity' is supported.")
        async with body_of(request, self._server) as body:
            model = find_model(self._server, request)  # the model may have been loaded anew meanwhile
            call = GenerateCall(model, head_of(request), self._server, self._streamed)
            call.client, call.peer = client_of(self._server, request), partial(peer_of, request)
            call.start(body)
            del body
            watching = asyncio.ensure_future(cancel_when_gone(request, call))
            try:
                await call.begun()
            except BaseException:
                watching.cancel()
                raise
        request.scope[REQUEST_ID] = call.id
        if self._streamed:
            return EventStream(call, watching)
        try:
            return await generate(call)
        finally:
            watching.cancel()


def head_of(request: Request) -> RequestHead:
    """The head of a request in plain ASGI, as far as inference needs it."""
    head = RequestHead()
    head.headers = request.scope.get(HEADERS, request.headers.raw)
    head.accept_encoding = _header(request, "accept-encoding")
    head.content_encoding = _header(request, "content-encoding")
    head.header_length = _header(request, "inference-header-content-length")
    head.trace_parent = _header(request, "traceparent")
    return head


async def cancel_when_gone(request: Request, call: HttpInferCall | GenerateCall) -> None:
    """Cancels a call when its client has closed the connection."""
    while (await request.receive())["type"] != "http.disconnect":
        pass
    call.cancel()


def _header(request: Request, name: str) -> bytes | None:
    value = request.headers.get(name)
    return None if value is None else value.encode("latin-1")
