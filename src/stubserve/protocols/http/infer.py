"""One inference call over HTTP, from the body to the reply; the same for the connection class and for plain ASGI."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

from stubserve.errors import ServeError, internal, unsupported
from stubserve.inference.call import Call
from stubserve.inference.memory import Block
from stubserve.inference.request import Request, Response
from stubserve.inference.served_model import ServedModel
from stubserve.protocols.forwarding import HeaderForwarding
from stubserve.protocols.http import compression
from stubserve.protocols.http.head import Head
from stubserve.protocols.http.infer_decode import KnownForm, decode, parse_header_length
from stubserve.protocols.http.infer_encode import encode, encode_error
from stubserve.protocols.http.reply import Reply
from stubserve.protocols.reply_format import ReplyFormat
from stubserve.protocols.serving import Ingress

log = logging.getLogger("stubserve.http")


class InferCall(Call):
    """One call. `start` raises ServeError or ends, then or later, in one `on_reply(reply)`.

    The reply's blocks are only promised until `on_reply` returns.
    """

    __slots__ = ("_head", "_ingress", "_on_reply", "_reply_format", "_start_ns", "form")

    def __init__(self, model: ServedModel, head: Head, ingress: Ingress, on_reply: Callable[[Reply], None]) -> None:
        super().__init__(model)
        self._head = head
        self._ingress = ingress
        self._on_reply = on_reply
        self._start_ns = time.monotonic_ns()
        # How the body is made, for who wants to recognise it the next time
        self.form: KnownForm | None = None

    def start(self, body: bytes | memoryview, block: Block | None, offset: int) -> None:
        """Decodes, checks and submits. `body` is complete; if it lies in the arena, in `block` at arena `offset`."""
        head = self._head
        signature = self.model.signature
        if signature.decoupled:
            raise unsupported("HTTP end point doesn't support models with decoupled transaction policy")
        if head.content_encoding is not None:
            content = compression.decompress(body, head.content_encoding, self._ingress.max_input_size)
            if content is not body:
                body, block, offset = content, None, 0
        json_length = parse_header_length(head.header_length, len(body))
        decoded = decode(body, json_length, signature, block, offset, self._ingress.store, self._ingress.max_input_size)
        request = decoded.request(self.on_response)
        request.request_start_ns = self._start_ns
        self._reply_format = decoded.reply_format
        self.form = decoded.form
        if self._ingress.http_forwarding is not None:
            self._forward_headers(request, self._ingress.http_forwarding)
        self.submit(request)

    def _forward_headers(self, request: Request, forwarding: HeaderForwarding) -> None:
        headers = [(name.decode("latin-1"), value) for name, value in self._head.headers]
        request.parameters = {**(request.parameters or {}), **forwarding.parameters(headers)}
        self.form = None  # a known form does not know of them

    def respond(self, request: Request, response: Response) -> None:
        self._on_reply(reply_to(request, response, self.model, self._head, self._reply_format))


def reply_to(request: Request, response: Response, model: ServedModel, head: Head, reply_format: ReplyFormat) -> Reply:
    """The reply that carries a model's response, or says why it cannot."""
    if response.error is not None:
        return encode_error(response.error)
    try:
        reply = encode(request, response, model.signature, reply_format)
        reply.blocks = [tensor.span.block for tensor in response.outputs if tensor.span is not None]
        if head.accept_encoding is not None:
            coding = compression.choose(head.accept_encoding)
            if coding is not None:
                reply.parts = compression.compress(reply.parts, coding)
                reply.headers = (("Content-Encoding", coding),)
                reply.blocks = ()
    except ServeError as error:
        return encode_error(error)
    except Exception:
        log.exception("the answer of model '%s' could not be encoded", model.signature.model)
        return encode_error(internal("unexpected error while the answer was encoded; see the server's log"))
    return reply
