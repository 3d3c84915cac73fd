"""`generate` and `generate_stream`: one JSON answer, or any number of server-sent events.

Responses are encoded as they come, for their memory is only promised that long, and collected; whoever writes to the
client takes all that there is with one write. So a fast model costs a wake-up and a system call per handful of
responses. When more than PENDING_BYTES wait for a client that reads too slowly, the model is made to wait
(`Request.pause`).
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import Callable

from starlette.responses import Response as HttpResponse
from starlette.types import Receive, Scope, Send

from stubserve.api.inference_server import InferenceServer
from stubserve.api.placement import BodyPlacer
from stubserve.errors import ServeError, internal
from stubserve.http.generate_decode import decode_generate
from stubserve.http.generate_encode import document_steps, encode_document, is_large
from stubserve.http.json import text as json_text
from stubserve.http.message import JSON, Reply
from stubserve.inference.admission import admit_steps
from stubserve.inference.call import Call
from stubserve.inference.request import Request, Response, kept_by
from stubserve.inference.served_model import ServedModel
from stubserve.inference.tensor import drop_blocks
from stubserve.memory.blocks import Block
from stubserve.memory.heap_account import FREE_BYTES

log = logging.getLogger("stubserve.http")

PENDING_BYTES = 64 << 10
PIECE_BYTES = 256 << 10

_NOT_ONE = (
    b'{"error":"generate expects model to produce exactly 1 response, use generate stream for model that generates '
    b'various number of responses"}'
)


class GenerateCall(Call):
    """One call. `start` raises ServeError, or responses come in until `complete`; `news` is set with each.

    Or `on_complete` is called then, unless the client has gone; there is no `news` in that case. `context` gives the
    `traceparent` of its request.
    """

    protocol = "HTTP"

    def __init__(
        self,
        model: ServedModel,
        server: InferenceServer,
        streamed: bool,
        on_complete: Callable[[GenerateCall], None] | None = None,
        context: Callable[[], str | None] = lambda: None,
    ) -> None:
        super().__init__(model)
        self._context = context
        self._on_complete = on_complete
        self._server = server
        self._streamed = streamed
        # What is kept in the heap: of the request, and of its answers that have not been taken
        self._share = server.heap.share()
        self._texts = server.heap.share()
        self._pending: list[bytes] = []
        self._pending_bytes = 0
        self._responses = 0
        # Responses that wait for their turn to be encoded, because one of them is large
        self._waiting: deque[tuple[Request, Response, list[Block]]] = deque()
        self._encoding: asyncio.Task[None] | None = None
        # HTTP status by the first response, 0 before it
        self.status = 0
        self.complete = False
        self.gone = False
        self.news: asyncio.Event | None = None if on_complete is not None else asyncio.Event()

    def trace_context(self) -> str | None:
        return self._context()

    def start(self, body: bytes) -> None:
        """Decodes, checks and submits."""
        placer = BodyPlacer(b"", None, 0, self._server.store)
        self._submit(decode_generate(body, self.model.signature, placer), len(body))

    async def start_in_steps(self, body: bytes) -> None:
        """As `start`, for a large body."""
        server = self._server
        request = await server.large_json.read_generate(body, self.model.signature, server.store)
        try:
            await server.offload.run(admit_steps(request, self.model.signature))
        except BaseException:
            drop_blocks(request.inputs)
            raise
        self._submit(request, len(body))

    def _submit(self, request: Request, size: int) -> None:
        request.on_response = self.on_response
        request.request_start_ns = time.monotonic_ns()
        request.texts_as_json = True
        try:
            if size > FREE_BYTES:
                self._share.add(kept_by(request))
        except BaseException:
            self.give_up(request)
            raise
        try:
            self.submit(request)
        except BaseException:
            self._share.drop()
            raise

    def cancel(self) -> None:
        """The client is gone."""
        self.gone = True
        self._pending.clear()
        self._share.drop()
        self._texts.drop()
        if self._encoding is not None:
            self._encoding.cancel()
        if self.news is not None:
            self.news.set()
        super().cancel()

    def take(self) -> bytes:
        """All events that have come since the last call."""
        if self.news is not None:
            self.news.clear()
        data = b"".join(self._pending)
        self._pending.clear()
        self._pending_bytes = 0
        self._texts.drop()
        return data

    def caught_up(self) -> None:
        """What was taken has been written."""
        if self.request is not None and not self._waiting:
            self.request.resume()

    def answer(self) -> bytes:
        """The body of `generate`, once it is complete."""
        self._texts.drop()
        return self._pending[0] if self._responses == 1 else _NOT_ONE

    def reply(self) -> Reply:
        """The reply of `generate`, once it is complete: in chunks, as upstream."""
        body = self.answer()
        reply = Reply(self.status or 200, JSON, None, [b"%x\r\n" % len(body), body, b"\r\n0\r\n\r\n"])
        reply.chunked = True
        return reply

    def respond(self, request: Request, response: Response) -> None:
        if response.error is not None and response.outputs and self._streamed:
            # What the model had sent before it failed is an event of its own.
            self.respond(request, Response(response.outputs, response.parameters, final=False))
        if response.final:
            self._share.drop()
        if self._waiting or (is_large(response) and not self.gone):
            blocks = [tensor.block.hold() for tensor in response.outputs if tensor.block is not None]
            self._waiting.append((request, response, blocks))
            request.pause()
            if self._encoding is None:
                self._encoding = asyncio.ensure_future(self._encode_in_turn())
            return
        document = b""
        error = response.error
        if self._is_wanted(response):
            try:
                document = encode_document(request, response, self.model.signature)
            except Exception as raised:
                error = self._as_answer(raised)
        self._take_response(request, response, document, error)

    async def _encode_in_turn(self) -> None:
        """Encodes the responses that wait, and takes them, in their order."""
        offload = self._server.offload
        try:
            while self._waiting:
                request, response, blocks = self._waiting[0]
                document = b""
                error = response.error
                if self._is_wanted(response):
                    try:
                        steps = document_steps(request, response, self.model.signature, self._texts.add)
                        document = await offload.run(steps)
                    except Exception as raised:
                        error = self._as_answer(raised)
                self._waiting.popleft()
                self._take_response(request, response, document, error)
                for block in blocks:
                    block.drop()
            if self.request is not None and self._pending_bytes <= PENDING_BYTES:
                self.request.resume()
        finally:
            self._encoding = None
            while self._waiting:
                for block in self._waiting.popleft()[2]:
                    block.drop()

    def _is_wanted(self, response: Response) -> bool:
        # Of one answer only the first response is of interest, and whether there were more.
        return (
            response.error is None and not response.empty and not self.gone and (self._streamed or not self._responses)
        )

    def _take_response(self, request: Request, response: Response, document: bytes, error: ServeError | None) -> None:
        """A response has come, and this is what it is in JSON, or why there is nothing."""
        if response.final:
            self.complete = True
        if not response.empty and not self.gone:
            self._responses += 1
            if self._streamed or self._responses == 1:
                if error is not None:
                    document = b'{"error":%b}' % json_text.string(error.message)
                self._add(request, document)
            # Upstream has one status for all that goes wrong from here on.
            self.status = self.status or (200 if error is None else 400)
        elif response.final:
            self.status = self.status or 200
        if self.news is not None:
            self.news.set()
        if self.complete and self._on_complete is not None and not self.gone:
            self._on_complete(self)

    def _as_answer(self, error: Exception) -> ServeError:
        if isinstance(error, ServeError):
            return error.with_traceback(None)  # for that knows the frame that keeps it
        model = self.model.signature.model
        log.error("a response of model '%s' could not be encoded", model, exc_info=error)
        return internal("unexpected error while the answer was encoded; see the server's log")

    def _add(self, request: Request, document: bytes) -> None:
        if not self._streamed:
            self._pending.append(document)
            return
        self._pending.append(b"data: %b\n\n" % document)
        self._pending_bytes += len(document)
        if self._pending_bytes > PENDING_BYTES:
            request.pause()


async def generate(call: GenerateCall) -> HttpResponse:
    """The one answer of a started call."""
    news = call.news
    assert news is not None
    while not call.complete and not call.gone:
        news.clear()
        await news.wait()
    response = HttpResponse(b"" if call.gone else call.answer(), call.status or 200, media_type=JSON)
    # In chunks, as upstream.
    del response.headers["content-length"]
    return response


class EventStream(HttpResponse):
    """The events of a started call; the status is the first one's."""

    def __init__(self, call: GenerateCall, watching: asyncio.Task[None]) -> None:
        super().__init__(media_type="text/event-stream")
        del self.headers["content-length"]
        self._call = call
        self._watching = watching

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        call = self._call
        news = call.news
        assert news is not None
        try:
            while not call.status and not call.gone:
                news.clear()
                await news.wait()
            await send({"type": "http.response.start", "status": call.status or 200, "headers": self.raw_headers})
            complete = False
            while not complete and not call.gone:
                complete = call.complete
                data = call.take()
                if data or complete:
                    # In pieces, because the server below copies each as a whole.
                    for at in range(0, max(len(data), 1), PIECE_BYTES):
                        last = complete and at + PIECE_BYTES >= len(data)
                        piece = data[at : at + PIECE_BYTES]
                        await send({"type": "http.response.body", "body": piece, "more_body": not last})
                    call.caught_up()
                else:
                    await news.wait()
        finally:
            self._watching.cancel()
