"""One inference request over gRPC, from its message to its responses; and ModelInfer, which has one of each."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping

from stubserve.errors import ServeError, internal, unsupported
from stubserve.inference.admission import admit
from stubserve.inference.memory import Block
from stubserve.inference.request import Request, Response
from stubserve.inference.tensor import drop_blocks
from stubserve.protocols.grpc.envelope import Envelope, split
from stubserve.protocols.grpc.infer_decode import decode
from stubserve.protocols.grpc.infer_encode import Parts, encode
from stubserve.protocols.grpc.transport import INTERNAL, Call
from stubserve.protocols.grpc.wire import Malformed
from stubserve.protocols.reply_format import ReplyFormat
from stubserve.protocols.serving import Ingress, ServingModel

log = logging.getLogger("stubserve.grpc")

MALFORMED_TEXT = "Unable to parse request"


class InferCall:
    """One request, under way to its model and back. `on_response(call, response)` is called once per response."""

    __slots__ = ("_on_response", "_request", "envelope", "model", "reply_format")

    def __init__(self, envelope: Envelope, model: ServingModel, on_response: Callable[[InferCall, Response], None]):
        self.envelope = envelope
        self.model = model
        self.reply_format: ReplyFormat
        self._on_response = on_response
        self._request: Request | None = None

    def start(
        self,
        data: bytes | memoryview,
        ingress: Ingress,
        forwarded: Mapping[str, str] | None,
        block: Block | None,
        offset: int,
    ) -> None:
        """Decodes, checks and submits. Raises ServeError or Malformed, or ends in responses."""
        start_ns = time.monotonic_ns()
        model = self.model
        signature = model.signature
        request, self.reply_format = decode(data, self.envelope, signature, ingress.store, block, offset)
        request.on_response = self._respond
        request.request_start_ns = start_ns
        if forwarded:
            request.parameters = {**(request.parameters or {}), **forwarded}
        try:
            admit(request, signature)
            self._request = request
            model.submit(request)
        except ServeError:
            self._request = None
            drop_blocks(request.inputs)
            raise

    def cancel(self) -> None:
        """The client is gone."""
        if self._request is not None:
            self.model.cancel(self._request)

    def pause(self) -> None:
        """The client does not read: a decoupled model is to wait."""
        if self._request is not None and self.model.signature.decoupled:
            self._request.pause()

    def resume(self) -> None:
        """The client has caught up."""
        if self._request is not None:
            self._request.resume()

    def encoded(self, response: Response, encoder: Callable[..., Parts]) -> Parts:
        """The response's message. Raises ServeError, also where encoding went wrong in an unexpected way."""
        try:
            return encoder(self.envelope.id, response, self.model.signature, self.reply_format)
        except ServeError:
            raise
        except Exception:
            log.exception("the answer of model '%s' could not be encoded", self.model.signature.model)
            raise internal("unexpected error while the answer was encoded; see the server's log") from None

    def _respond(self, request: Request, response: Response) -> None:
        if response.final:
            # Request and call know each other; cut here, or only the garbage collector could free them.
            self._request = None
        self._on_response(self, response)


def held_blocks(response: Response) -> list[Block]:
    """The blocks that a response's outputs lie in."""
    return [tensor.span.block for tensor in response.outputs if tensor.span is not None]


class ModelInfer:
    """The handler of a ModelInfer RPC."""

    __slots__ = ("_call", "_forwarded", "_infer", "_ingress")

    def __init__(self, ingress: Ingress, call: Call, forwarded: Mapping[str, str] | None) -> None:
        self._ingress = ingress
        self._call = call
        self._forwarded = forwarded
        self._infer: InferCall | None = None

    def on_message(self, data: bytes | memoryview, block: Block | None = None, offset: int = 0) -> None:
        try:
            envelope = split(data)
            model = self._ingress.find_model(envelope.model_name, envelope.model_version)
            if model.signature.decoupled:
                raise unsupported("ModelInfer RPC doesn't support models with decoupled transaction policy")
            self._infer = InferCall(envelope, model, self._on_response)
            self._infer.start(data, self._ingress, self._forwarded, block, offset)
        except ServeError as error:
            self._fail(error)
        except Malformed:
            self._infer = None
            self._call.finish(INTERNAL, MALFORMED_TEXT)
        except Exception:
            log.exception("a ModelInfer request failed inside the server")
            self._fail(internal("unexpected error while the request was handled; see the server's log"))

    def on_half_close(self) -> None:
        pass

    def on_writable(self) -> None:
        pass

    def on_cancel(self) -> None:
        infer, self._infer = self._infer, None
        if infer is not None:
            infer.cancel()

    def _on_response(self, infer: InferCall, response: Response) -> None:
        self._infer = None
        try:
            if response.error is not None:
                raise response.error
            if response.empty:
                raise internal("expected a single response, got 0")
            parts = infer.encoded(response, encode)
        except ServeError as error:
            self._fail(error)
        else:
            self._call.reply(parts, held_blocks(response))

    def _fail(self, error: ServeError) -> None:
        self._infer = None
        self._call.finish(error.code.grpc_status, error.message)
