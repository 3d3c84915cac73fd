"""One inference call over HTTP, from the body to the reply; the same for the connection class and for plain ASGI.

A body is JSON, JSON with binary tensors behind it, or raw bytes. The checks have upstream's order, so that a client
with several faults gets the same error: JSON, id, parameters, inputs in turn, what is left over, outputs.
`admission.admit` makes the checks that need only the signature. Nearly all requests are valid and written in the usual
way: `infer_document` reads those. `infer_json` reads the others again, for their values or their error.

Ownership: a decoded request holds the block of each tensor that lies in one. When decoding fails nothing is held.
"""

# Compiled by mypyc.
from __future__ import annotations

import re
import time
from collections.abc import Callable
from functools import partial
from math import inf

from stubserve.api.inference_server import InferenceServer
from stubserve.api.placement import BodyPlacer, ReplyFormat
from stubserve.connections.receive_buffers import ContentBuffer
from stubserve.connections.sent_memory import stored
from stubserve.errors import ServeError, invalid, unsupported
from stubserve.http import infer_document
from stubserve.http.body import DEFAULT_MAX_INPUT_SIZE, body_start, too_long_json
from stubserve.http.compression import Keep, Place, RestOfContent, choose, compress, decompress
from stubserve.http.infer_encode import encode, encode_error, encode_steps, in_heap, is_large
from stubserve.http.infer_json import decode_json
from stubserve.http.infer_raw import decode_raw
from stubserve.http.json.values import ODD_BYTES, OddJson
from stubserve.http.message import Reply, RequestHead
from stubserve.inference.call import Call
from stubserve.inference.long_work import LARGE_BYTES, LongWork, finish, uncounted
from stubserve.inference.request import Request, Response, kept_by
from stubserve.inference.served_model import ServedModel
from stubserve.inference.signature import Signature
from stubserve.inference.tensor import drop_blocks
from stubserve.memory.blocks import Block
from stubserve.memory.heap_account import FREE_BYTES, HeapShare

_LEADING_INTEGER = re.compile(rb"[ \t\r\n\v\f]*([+-]?[0-9]+)").match
_FEW_DIGITS = 10


class HttpInferCall(Call):
    """One call: `start` raises ServeError, or `on_reply(reply)` follows.

    The blocks of the reply live until `on_reply` returns.
    """

    __slots__ = ("_head", "_on_reply", "_server", "_start_ns", "peer", "reply_format")

    protocol = "HTTP"

    def __init__(
        self, model: ServedModel, head: RequestHead, server: InferenceServer, on_reply: Callable[[Reply], None]
    ) -> None:
        super().__init__(model)
        self._head = head
        self._server = server
        self._on_reply = on_reply
        # Tells the client's address
        self.peer: Callable[[], str] = str
        self._start_ns = time.monotonic_ns()

    def start(
        self,
        body: bytes | memoryview,
        block: Block | None,
        offset: int,
        share: HeapShare | None = None,
    ) -> None:
        """Decodes, checks and submits a complete `body`.

        A body in the arena lies in `block`, at arena `offset`. A body in the heap's account is counted in `share`; the
        call owns that share from now on.
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
            json_length = None if head.header_length is None else parse_header_length(head.header_length, size)
            text_size = size if json_length is None else json_length
            if size > LARGE_BYTES and (text_size > LARGE_BYTES or signature.has_strings):
                self.begin_later(self._read_later(body, block, offset, None), block)
                return
            if text_size > FREE_BYTES:
                self.share()
            placer = BodyPlacer(body, block, offset, server.store, server.regions)
            request, self.reply_format = decode(body, json_length, signature, placer, server.max_input_size, ODD_BYTES)
            if server.http_forwarding is not None:
                request = server.http_forwarding.forward(request, head.headers)
        except OddJson:
            self.begin_later(self._read_later(body, block, offset, None), block)
            return
        except BaseException as error:
            self._let_go()
            if isinstance(error, ServeError):
                self.model.statistics.record_error(error)
            raise
        request.request_start_ns = self._start_ns
        self.begin(request)

    def asker(self) -> str:
        return self.peer()

    def trace_context(self) -> str | None:
        return self._head.trace_context()

    def server(self) -> InferenceServer:
        return self._server

    def refused(self, error: ServeError) -> None:
        self._on_reply(encode_error(error))

    def _read_later(
        self, body: bytes | memoryview, block: Block | None, offset: int, rest: RestOfContent | None
    ) -> LongWork[Request]:
        """The request of a long body; `rest` decompresses what is left of a compressed body."""
        server = self._server
        signature = self.model.signature
        request: Request
        if rest is not None:
            content = ContentBuffer(server.receive_buffers.memory, server.max_input_size, body_start(self._head))
            try:
                yield from rest(content.add)
                return (yield from self._read_later(content.finish(), content.block, content.offset, None))
            finally:
                content.drop()
        length = self._head.header_length
        json_length = None if length is None else parse_header_length(length, len(body))
        text_size = len(body) if json_length is None else json_length
        if text_size > FREE_BYTES:
            self.share()
        most = server.max_input_size
        placer = BodyPlacer(body, block, offset, server.store, server.regions)
        takes_long = LARGE_BYTES < text_size <= most
        if not takes_long:
            try:
                request, self.reply_format = decode(body, json_length, signature, placer, most, ODD_BYTES)
            except OddJson:
                takes_long = True
        if takes_long:
            text = memoryview(body)[:text_size]
            request, self.reply_format = yield server.large_json.read_infer(text, signature, placer, most, block)
        try:
            if self._head.infer is not None:
                self.model = server.find_model(*self._head.infer)  # the model may have been loaded anew meanwhile
        except BaseException:
            drop_blocks(request.inputs)
            raise
        if server.http_forwarding is not None:
            request = server.http_forwarding.forward(request, self._head.headers)
        request.request_start_ns = self._start_ns
        return request

    def respond(self, request: Request, response: Response) -> None:
        accept_encoding = self._head.accept_encoding
        if response.error is not None:
            self._on_reply(encode_error(response.error))
        elif is_large(request, response, self.reply_format, accept_encoding):
            keep, place = self.share().add, partial(stored, self._server.store)
            self.make_later(self._reply(request, response, keep, place), response, self._send)
        else:
            try:
                if accept_encoding is None:
                    reply = encode(request, response, self.model.signature, self.reply_format)
                else:
                    reply = finish(self._reply(request, response, uncounted, in_heap))
            except Exception as error:
                reply = encode_error(self.as_answer(error, encoding=True))
            self._on_reply(reply)

    def _reply(self, request: Request, response: Response, keep: Keep, place: Place) -> LongWork[Reply]:
        """The reply that carries a model's response; new memory for it lies where `place` puts it.

        Calls `keep(nbytes)` with the bytes that it keeps in the heap. Raises ServeError.
        """
        keep(kept_by(request))
        reply = yield from encode_steps(request, response, self.model.signature, self.reply_format, keep, place)
        accept_encoding = self._head.accept_encoding
        coding = None if accept_encoding is None else choose(accept_encoding)
        if coding is not None:
            reply.parts = yield from compress(reply.parts, coding, place)
            reply.headers = (("Content-Encoding", coding),)
            reply.blocks = []
        return reply

    def _send(self, made: Reply | ServeError) -> None:
        self._on_reply(encode_error(made) if isinstance(made, ServeError) else made)


def decode(
    body: bytes | memoryview,
    json_length: int | None,
    signature: Signature,
    placer: BodyPlacer,
    max_input_size: int = DEFAULT_MAX_INPUT_SIZE,
    most_odd: float = inf,
) -> tuple[Request, ReplyFormat]:
    """Reads one inference request, and the form that its reply is to have.

    Raises ServeError; OddJson as `parse_json`, for more than `most_odd` bytes.

    `body` is the whole, decompressed body, and `placer` is for it. Its first `json_length` bytes are JSON (None: all of
    it; 0: raw mode). `max_input_size` (bytes) bounds JSON and the values made of it, and raw bodies, but not binary
    tensors.
    """
    size = len(body)
    end = size if json_length is None else json_length
    try:
        if not end:
            return decode_raw(body, signature, placer, max_input_size)
        if end > size:
            raise invalid(f"unexpected size for request JSON, expecting {end - size} more bytes")
        if end > max_input_size:
            raise too_long_json(end, max_input_size)
        header = bytes(body[:end])
        found = infer_document.read(body, header, signature, placer, max_input_size)
        if found is not None:
            return found
        placer.undo()
        return decode_json(header, signature, placer, max_input_size, most_odd)
    except BaseException:
        placer.undo()
        raise


def parse_header_length(value: bytes, content_length: int) -> int:
    """The length of the JSON part by its Inference-Header-Content-Length header; 0 for raw mode.

    Read as C's stoi reads: spaces and a sign before the digits, anything after them. Raises ServeError (INVALID_ARG).
    """
    if value.isdigit() and len(value) < _FEW_DIGITS:
        length = int(value)
        if length <= content_length:
            return length
    found = _LEADING_INTEGER(value)
    text = value.decode("latin-1")
    if found is None:
        raise invalid(f"Unable to parse Inference-Header-Content-Length, got: {text}")
    # Twenty digits are out of range already. Reading a long line of digits would take long.
    length = int(found[1][:20])
    if not -(1 << 31) <= length < 1 << 31:
        raise invalid(
            "Unable to parse Inference-Header-Content-Length, value is out of range "
            f"[ -2147483648, 2147483647 ], got: {text}"
        )
    if not 0 <= length <= content_length:
        raise invalid(f"inference header size should be in range (0, {content_length}), got: {length}")
    return length
