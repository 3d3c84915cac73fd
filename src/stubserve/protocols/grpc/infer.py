"""One inference request over gRPC, from its message to its responses; and ModelInfer, which has one of each."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping

from stubserve.errors import ServeError, internal, unsupported
from stubserve.inference import call as inference
from stubserve.inference.memory import Block
from stubserve.inference.request import Request, Response
from stubserve.inference.served_model import ServedModel
from stubserve.protocols.grpc.envelope import Envelope, split
from stubserve.protocols.grpc.infer_decode import decode
from stubserve.protocols.grpc.infer_encode import Parts, encode
from stubserve.protocols.grpc.transport import INTERNAL, Rpc
from stubserve.protocols.grpc.wire import Malformed
from stubserve.protocols.reply_format import ReplyFormat
from stubserve.protocols.serving import Ingress

log = logging.getLogger("stubserve.grpc")

MALFORMED_TEXT = "Unable to parse request"


class GrpcInferCall(inference.Call):
    """One request, under way to its model and back. `on_response(call, response)` is called once per response."""

    __slots__ = ("_on_response", "envelope", "reply_format")

    def __init__(self, envelope: Envelope, model: ServedModel, on_response: Callable[[GrpcInferCall, Response], None]):
        super().__init__(model)
        self.envelope = envelope
        self.reply_format: ReplyFormat
        self._on_response = on_response

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
        request, self.reply_format = decode(data, self.envelope, self.model.signature, ingress.store, block, offset)
        request.on_response = self.on_response
        request.request_start_ns = start_ns
        if forwarded:
            request.parameters = {**(request.parameters or {}), **forwarded}
        self.submit(request)

    def pause(self) -> None:
        """The client does not read: a decoupled model is to wait."""
        if self.request is not None and self.model.signature.decoupled:
            self.request.pause()

    def resume(self) -> None:
        """The client has caught up."""
        if self.request is not None:
            self.request.resume()

    def encoded(self, response: Response, encoder: Callable[..., Parts]) -> Parts:
        """The response's message. Raises ServeError, also where encoding went wrong in an unexpected way."""
        try:
            return encoder(self.envelope.id, response, self.model.signature, self.reply_format)
        except ServeError:
            raise
        except Exception:
            log.exception("the answer of model '%s' could not be encoded", self.model.signature.model)
            raise internal("unexpected error while the answer was encoded; see the server's log") from None

    def respond(self, request: Request, response: Response) -> None:
        self._on_response(self, response)


def held_blocks(response: Response) -> list[Block]:
    """The blocks that a response's outputs lie in."""
    return [tensor.span.block for tensor in response.outputs if tensor.span is not None]


class ModelInfer:
    """The handler of a ModelInfer RPC."""

    __slots__ = ("_call", "_forwarded", "_infer", "_ingress")

    def __init__(self, ingress: Ingress, call: Rpc, forwarded: Mapping[str, str] | None) -> None:
        self._ingress = ingress
        self._call = call
        self._forwarded = forwarded
        self._infer: GrpcInferCall | None = None

    def on_message(self, data: bytes | memoryview, block: Block | None = None, offset: int = 0) -> None:
        try:
            envelope = split(data)
            model = self._ingress.find_model(envelope.model_name, envelope.model_version)
            if model.signature.decoupled:
                raise unsupported("ModelInfer RPC doesn't support models with decoupled transaction policy")
            self._infer = GrpcInferCall(envelope, model, self._on_response)
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

    def _on_response(self, infer: GrpcInferCall, response: Response) -> None:
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
