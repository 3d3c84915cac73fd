"""`generate` and `generate_stream`: one JSON answer, or any number of server-sent events.

A response's memory is only promised while it is delivered, so each response is encoded at once and collected. One write
to the client takes all that is collected, so a fast model costs a wake-up and a system call per handful of responses.
When more than PENDING_BYTES wait for a client that reads too slowly, the model has to wait (`Request.pause`).
"""

# Compiled by mypyc.
from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

from starlette.responses import Response as HttpResponse
from starlette.types import Receive, Scope, Send

from stubserve.api.inference_server import InferenceServer
from stubserve.api.placement import BodyPlacer
from stubserve.errors import Code, ServeError, Statuses
from stubserve.http.generate_decode import decode_generate
from stubserve.http.generate_encode import document_steps, encode_document, is_large
from stubserve.http.infer_encode import encode_error
from stubserve.http.json import text as json_text
from stubserve.http.json.values import ODD_BYTES, OddJson
from stubserve.http.message import JSON, Reply, RequestHead
from stubserve.inference.call import Call
from stubserve.inference.long_work import LARGE_BYTES, LongWork
from stubserve.inference.request import Request, Response
from stubserve.inference.served_model import ServedModel
from stubserve.memory.heap_account import FREE_BYTES

PENDING_BYTES = 64 << 10
PIECE_BYTES = 256 << 10

_NOT_ONE = (
    b'{"error":"generate expects model to produce exactly 1 response, use generate stream for model that generates '
    b'various number of responses"}'
)


class GenerateCall(Call):
    """One call. `start` raises ServeError; otherwise responses come in until `complete`, and each sets `news`.

    A request that is large, or odd JSON, may also be refused later: `begun` raises that error. `on_complete` is called
    at the end, unless the client has gone; with it there is no `news`, and `reply` has that error, too.
    """

    protocol = "HTTP"

    def __init__(
        self,
        model: ServedModel,
        head: RequestHead,
        server: InferenceServer,
        streamed: bool,
        on_complete: Callable[[GenerateCall], None] | None = None,
    ) -> None:
        super().__init__(model)
        self._head = head
        # Tells the client's address
        self.peer: Callable[[], str] = str
        self._on_complete = on_complete
        self._server = server
        self._streamed = streamed
        # The heap share of answers that have not been taken
        self._texts = server.heap.share()
        self._pending: list[bytes] = []
        self._pending_bytes = 0
        self._responses = 0
        # Whether the request has reached its model, or why it has not
        self._is_submitted = False
        self._refusal: ServeError | None = None
        # HTTP status, set by the first response; 0 before
        self.status = 0
        self.complete = False
        self.gone = False
        self.news: asyncio.Event | None = None if on_complete is not None else asyncio.Event()

    def asker(self) -> str:
        return self.peer()

    def trace_context(self) -> str | None:
        return self._head.trace_context()

    def server(self) -> InferenceServer:
        return self._server

    def start(self, body: bytes | dict[str, Any]) -> None:
        """Decodes, checks and submits: a body, or the members of one that has been read."""
        if len(body) > FREE_BYTES:
            self.share()
        if isinstance(body, bytes) and len(body) > LARGE_BYTES:
            self.begin_later(self._read_later(body))
        else:
            placer = BodyPlacer(b"", None, 0, self._server.store)
            try:
                request = self._as_headers_say(decode_generate(body, self.model.signature, placer, ODD_BYTES))
            except OddJson:
                assert isinstance(body, bytes)
                self.begin_later(self._read_later(body))
                return
            except BaseException as error:
                self._let_go()
                if isinstance(error, ServeError):
                    self.model.statistics.record_error(error)
                raise
            self.begin(request)

    def _read_later(self, body: bytes) -> LongWork[Request]:
        server = self._server
        request: Request = yield server.large_json.read_generate(body, self.model.signature, server.store)
        return self._as_headers_say(request)

    def _as_headers_say(self, request: Request) -> Request:
        """A request that has been read, with the parameters from its headers. Raises ServeError."""
        forwarding = self._server.http_forwarding
        if forwarding is not None:
            request = forwarding.forward(request, self._head.headers)
        request.request_start_ns = time.monotonic_ns()
        return request

    def submit(self, request: Request, together: bool = False) -> None:
        super().submit(request, together)
        self._is_submitted = True
        if self.news is not None:
            self.news.set()

    def refused(self, error: ServeError) -> None:
        self._refusal = error
        if self.news is not None:
            self.news.set()
        elif self._on_complete is not None:
            self._on_complete(self)

    async def begun(self) -> None:
        """Waits until the request has reached its model. Raises ServeError if it is refused."""
        await self.until(lambda: self._is_submitted or self._refusal is not None)
        refusal, self._refusal = self._refusal, None
        if refusal is not None:
            try:
                raise refusal
            finally:
                del refusal  # the error refers to this frame

    async def until(self, come: Callable[[], object]) -> None:
        """Waits until `come` returns true, or the client has gone."""
        news = self.news
        assert news is not None
        while not come() and not self.gone:
            news.clear()
            await news.wait()

    def cancel(self) -> None:
        """The client has gone."""
        self.gone = True
        self._pending.clear()
        self._texts.drop()
        if self.news is not None:
            self.news.set()
        super().cancel()

    def take(self) -> list[bytes]:
        """All events that have come since the last call, in pieces."""
        if self.news is not None:
            self.news.clear()
        pieces = self._pending
        self._pending = []
        self._pending_bytes = 0
        self._texts.drop()
        return pieces

    def caught_up(self) -> None:
        """All that was taken has been written."""
        if self.request is not None and (self.jobs is None or not self.jobs.busy):
            self.request.resume()

    def answer(self) -> list[bytes]:
        """The body of `generate`, once the call is complete, in pieces."""
        self._texts.drop()
        if self._responses == 1:
            return self._pending
        if Statuses.are_standard:
            self.status = Code.INVALID_ARG.http_status
        return [_NOT_ONE]

    def reply(self) -> Reply:
        """The reply of `generate`, once the call is complete: in chunks, as upstream."""
        if self._refusal is not None:
            return encode_error(self._refusal)
        body = self.answer()
        size = sum(map(len, body))
        reply = Reply(self.status or 200, JSON, None, [b"%x\r\n" % size, *body, b"\r\n0\r\n\r\n"])
        reply.chunked = True
        return reply

    def respond(self, request: Request, response: Response) -> None:
        if response.error is not None and response.outputs and self._streamed:
            # A response that the model sent with its failure is an event of its own.
            self.respond(request, Response(response.outputs, response.parameters, final=False))
        # `generate` needs only the first response, and whether there were more.
        is_wanted = not response.empty and (self._streamed or not self._responses)
        if not response.empty:
            self._responses += 1
        made: bytes | list[bytes] | ServeError | None = response.error
        if is_wanted and made is None and not self.gone:
            if is_large(response):
                request.pause()
                steps = document_steps(request, response, self.model.signature, self._counted)
                self.make_later(steps, response, partial(self._take_made, request, response))
                return
            try:
                made = encode_document(request, response, self.model.signature)
            except Exception as raised:
                made = self.as_answer(raised, encoding=True)
        if self.jobs is not None and self.jobs.busy:
            self.jobs.add(None, partial(self._take_response, request, response, is_wanted, made))
        else:
            self._take_response(request, response, is_wanted, made)

    def _counted(self, text: bytes) -> bytes:
        self._texts.add(len(text))
        return text

    def _take_made(self, request: Request, response: Response, made: list[bytes] | ServeError) -> None:
        """A large response is encoded: takes the responses that have come meanwhile."""
        self._take_response(request, response, True, made)
        if self._pending_bytes <= PENDING_BYTES:
            self.caught_up()

    def _take_response(
        self,
        request: Request,
        response: Response,
        is_wanted: bool,
        made: bytes | list[bytes] | ServeError | None,
        nothing: None = None,
    ) -> None:
        """A response has come; `made` is its JSON, or the error in making it."""
        if response.final:
            self.complete = True
        if self.gone:
            pass
        elif not response.empty:
            self.status = self.status or (made.code.generate_status if isinstance(made, ServeError) else 200)
            if is_wanted:
                text = b'{"error":%b}' % json_text.string(made.message) if isinstance(made, ServeError) else made
                assert text is not None
                self._add(request, text if isinstance(text, list) else [text])
        elif response.final:
            self.status = self.status or 200
        if self.news is not None:
            self.news.set()
        if self.complete and self._on_complete is not None and not self.gone:
            self._on_complete(self)

    def _add(self, request: Request, document: list[bytes]) -> None:
        if not self._streamed:
            self._pending = document
            return
        self._pending += (b"data: ", *document, b"\n\n")
        self._pending_bytes += sum(map(len, document))
        if self._pending_bytes > PENDING_BYTES:
            request.pause()


async def generate(call: GenerateCall) -> HttpResponse:
    """The one answer of a started call."""
    await call.until(lambda: call.complete)
    pieces = [] if call.gone else call.answer()
    response = InPieces(pieces, call.status or 200)
    # In chunks, as upstream.
    del response.headers["content-length"]
    return response


async def send_pieces(send: Send, pieces: Iterable[bytes], is_last: bool) -> None:
    """Sends a part of a body, `is_last` for its end; little at a time, because the server below copies it."""
    gathered: list[bytes] = []
    size = 0
    for piece in pieces:
        for at in range(0, len(piece), PIECE_BYTES):
            if size + len(piece) - at > PIECE_BYTES and gathered:
                await send({"type": "http.response.body", "body": b"".join(gathered), "more_body": True})
                await asyncio.sleep(0)
                gathered, size = [], 0
            gathered.append(piece[at : at + PIECE_BYTES])
            size += len(gathered[-1])
    await send({"type": "http.response.body", "body": b"".join(gathered), "more_body": not is_last})


class InPieces(HttpResponse):
    """An answer in JSON of which the server below never has to copy all at once."""

    def __init__(self, pieces: list[bytes], status: int) -> None:
        super().__init__(b"", status, media_type=JSON)
        self.headers["content-length"] = str(sum(map(len, pieces)))
        self.pieces = pieces

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        await send_pieces(send, self.pieces, True)


class EventStream(HttpResponse):
    """The events of a started call; the first event sets the status."""

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
            await call.until(lambda: call.status)
            await send({"type": "http.response.start", "status": call.status or 200, "headers": self.raw_headers})
            complete = False
            while not complete and not call.gone:
                complete = call.complete
                pieces = call.take()
                if pieces or complete:
                    await send_pieces(send, pieces, complete)
                    call.caught_up()
                else:
                    await news.wait()
        finally:
            self._watching.cancel()
