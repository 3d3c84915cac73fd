"""One inference call over HTTP, from the body to the reply; the same for the connection class and for plain ASGI."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

from stubserve.errors import ServeError, internal, unsupported
from stubserve.inference.admission import admit
from stubserve.inference.memory import Block
from stubserve.inference.request import Request, Response
from stubserve.protocols.http import compression
from stubserve.protocols.http.head import Head
from stubserve.protocols.http.infer_decode import decode, parse_header_length
from stubserve.protocols.http.infer_encode import encode, encode_error
from stubserve.protocols.http.reply import Reply
from stubserve.protocols.serving import Ingress, ServingModel

log = logging.getLogger("stubserve.http")


class InferCall:
    """One call. `start` raises ServeError or ends, then or later, in one `on_reply(reply)`.

    The reply's blocks are only promised until `on_reply` returns.
    """

    __slots__ = ("_head", "_ingress", "_model", "_on_reply", "_reply_format", "_request", "_start_ns")

    def __init__(self, model: ServingModel, head: Head, ingress: Ingress, on_reply: Callable[[Reply], None]) -> None:
        self._model = model
        self._head = head
        self._ingress = ingress
        self._on_reply = on_reply
        self._start_ns = time.monotonic_ns()
        self._request: Request | None = None

    def start(self, body: bytes | memoryview, block: Block | None, offset: int) -> None:
        """Decodes, checks and submits. `body` is complete; if it lies in the arena, in `block` at arena `offset`."""
        head = self._head
        model = self._model
        signature = model.signature
        if signature.decoupled:
            raise unsupported("HTTP end point doesn't support models with decoupled transaction policy")
        if head.content_encoding is not None:
            content = compression.decompress(body, head.content_encoding, self._ingress.max_input_size)
            if content is not body:
                body, block, offset = content, None, 0
        json_length = parse_header_length(head.header_length, len(body))
        decoded = decode(body, json_length, signature, block, offset, self._ingress.store, self._ingress.max_input_size)
        request = decoded.request(self._on_response)
        request.request_start_ns = self._start_ns
        self._reply_format = decoded.reply_format
        try:
            admit(request, signature)
            self._request = request
            model.submit(request)
        except ServeError:
            for tensor in request.inputs:
                if tensor.block is not None:
                    tensor.block.drop()
            raise

    def cancel(self) -> None:
        """The client is gone."""
        if self._request is not None:
            self._model.cancel(self._request)

    def _on_response(self, request: Request, response: Response) -> None:
        # Request and call know each other; cut here, or only the garbage collector could free them.
        self._request = None
        try:
            reply = self._encode(request, response)
        except ServeError as error:
            reply = encode_error(error)
        except Exception:
            log.exception("the answer of model '%s' could not be encoded", self._model.signature.model)
            reply = encode_error(internal("unexpected error while the answer was encoded; see the server's log"))
        self._on_reply(reply)

    def _encode(self, request: Request, response: Response) -> Reply:
        if response.error is not None:
            raise response.error
        reply = encode(request, response, self._model.signature, self._reply_format)
        reply.blocks = [tensor.block for tensor in response.outputs if tensor.block is not None]
        if self._head.accept_encoding is not None:
            coding = compression.choose(self._head.accept_encoding)
            if coding is not None:
                reply.parts = compression.compress(reply.parts, coding)
                reply.headers = (("Content-Encoding", coding),)
                reply.blocks = ()
        return reply
