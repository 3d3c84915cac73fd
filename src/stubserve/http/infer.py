"""One inference call over HTTP, from the body to the reply; the same for the connection class and for plain ASGI."""

from __future__ import annotations

import time
from collections.abc import Callable

from stubserve.api.inference_server import InferenceServer
from stubserve.api.placement import BodyPlacer
from stubserve.errors import ServeError, unsupported
from stubserve.http.compression import Keep, RestOfContent, choose, compress_steps, decompress
from stubserve.http.head import RequestHead
from stubserve.http.infer_decode import decode, parse_header_length
from stubserve.http.infer_encode import encode, encode_error, encode_steps, is_large, uncounted
from stubserve.http.reply import Reply
from stubserve.inference.call import Call
from stubserve.inference.long_work import LARGE_BYTES, LongWork, finish
from stubserve.inference.request import Request, Response, kept_by
from stubserve.inference.served_model import ServedModel
from stubserve.inference.tensor import drop_blocks
from stubserve.memory.blocks import Block
from stubserve.memory.heap_account import FREE_BYTES, HeapShare


class HttpInferCall(Call):
    """One call. `start` raises ServeError or ends, then or later, in one `on_reply(reply)`.

    The reply's blocks are only promised until `on_reply` returns.
    """

    __slots__ = ("_head", "_on_reply", "_server", "_start_ns", "reply_format")

    protocol = "HTTP"

    def __init__(
        self, model: ServedModel, head: RequestHead, server: InferenceServer, on_reply: Callable[[Reply], None]
    ) -> None:
        super().__init__(model)
        self._head = head
        self._server = server
        self._on_reply = on_reply
        self._start_ns = time.monotonic_ns()

    def start(
        self,
        body: bytes | memoryview,
        block: Block | None,
        offset: int,
        share: HeapShare | None = None,
        at_once: bool = False,
    ) -> None:
        """Decodes, checks and submits. `body` is complete; if it lies in the arena, in `block` at arena `offset`.

        If it is counted in the heap's account, in `share`, which belongs to the call from now on. With `at_once` the
        answer may come before this returns.
        """
        self._share = share
        head = self._head
        server = self._server
        signature = self.model.signature
        try:
            if signature.decoupled:
                raise unsupported("HTTP end point doesn't support models with decoupled transaction policy")
            if head.content_encoding is not None:
                content, rest = decompress(body, head.content_encoding, server.max_input_size, LARGE_BYTES)
                if rest is not None:
                    self.begin_later(self._read_later(content, block, offset, rest), block)
                    return
                if content is not body:
                    body, block, offset = content, None, 0
            size = len(body)
            json_length = parse_header_length(head.header_length, size)
            text_size = size if json_length is None else json_length
            if size > LARGE_BYTES and (text_size > LARGE_BYTES or signature.has_strings):
                self.begin_later(self._read_later(body, block, offset, None), block)
                return
            if text_size > FREE_BYTES:
                self.share()
            request, self.reply_format = decode(
                body, json_length, signature, block, offset, server.store, server.max_input_size, server.regions
            )
            request.request_start_ns = self._start_ns
            if server.http_forwarding is not None:
                self._forward_headers(request)
        except BaseException:
            self._let_go()
            raise
        self.begin(request, at_once=at_once)

    def trace_context(self) -> str | None:
        return self._head.trace_context()

    def of_server(self) -> InferenceServer:
        return self._server

    def refused(self, error: ServeError) -> None:
        self._on_reply(encode_error(error))

    def _read_later(
        self, body: bytes | memoryview, block: Block | None, offset: int, rest: RestOfContent | None
    ) -> LongWork[Request]:
        """The request of a long body, or of one whose content is long and has only been begun with."""
        server = self._server
        signature = self.model.signature
        request: Request
        if rest is not None:
            body, block, offset = memoryview((yield from rest(self.share().add))), None, 0
        json_length = parse_header_length(self._head.header_length, len(body))
        text_size = len(body) if json_length is None else json_length
        if text_size > FREE_BYTES:
            self.share()
        if LARGE_BYTES < text_size <= server.max_input_size:
            placer = BodyPlacer(body, block, offset, server.store, server.regions)
            text = memoryview(body)[:text_size]
            reading = server.large_json.read_infer(text, signature, placer, server.max_input_size, block)
            request, self.reply_format = yield reading
        else:
            request, self.reply_format = decode(
                body, json_length, signature, block, offset, server.store, server.max_input_size, server.regions
            )
        try:
            request.on_response = self.on_response
            request.request_start_ns = self._start_ns
            if self._head.infer is not None:
                self.model = server.find_model(*self._head.infer)  # it may have been loaded anew meanwhile
            self._forward_headers(request)
        except BaseException:
            drop_blocks(request.inputs)
            raise
        return request

    def _forward_headers(self, request: Request) -> None:
        forwarding = self._server.http_forwarding
        if forwarding is not None:
            headers = [(name.decode("latin-1"), value) for name, value in self._head.headers]
            request.parameters = {**(request.parameters or {}), **forwarding.parameters(headers)}

    def respond(self, request: Request, response: Response) -> None:
        accept_encoding = self._head.accept_encoding
        if response.error is not None:
            self._on_reply(encode_error(response.error))
        elif is_large(request, response, self.reply_format, accept_encoding):
            keep = self.share().add
            self.make_later(self._reply(request, response, keep), response, self._send)
        else:
            try:
                if accept_encoding is None:
                    reply = encode(request, response, self.model.signature, self.reply_format)
                else:
                    reply = finish(self._reply(request, response, uncounted))
            except Exception as error:
                reply = encode_error(self.as_answer(error, encoding=True))
            self._on_reply(reply)

    def _reply(self, request: Request, response: Response, keep: Keep) -> LongWork[Reply]:
        """The reply that carries a model's response; calls `keep(nbytes)` for what it makes. Raises ServeError."""
        keep(kept_by(request))
        reply = yield from encode_steps(request, response, self.model.signature, self.reply_format, keep)
        accept_encoding = self._head.accept_encoding
        coding = None if accept_encoding is None else choose(accept_encoding)
        if coding is not None:
            reply.parts = yield from compress_steps(reply.parts, coding, keep)
            reply.headers = (("Content-Encoding", coding),)
            reply.blocks = []
        return reply

    def _send(self, made: Reply | ServeError) -> None:
        self._on_reply(encode_error(made) if isinstance(made, ServeError) else made)
