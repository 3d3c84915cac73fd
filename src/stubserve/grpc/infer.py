"""One inference request over gRPC, from its message to its responses; and ModelInfer, which has one of each."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping
from functools import partial

from stubserve.api.access import AUTHORIZATION
from stubserve.api.forwarded_headers import HeaderForwarding
from stubserve.api.inference_server import InferenceServer
from stubserve.api.placement import ReplyFormat
from stubserve.errors import ServeError, internal, unsupported
from stubserve.grpc.infer_decode import Envelope, decode, split
from stubserve.grpc.infer_encode import Parts, encode, encode_steps, takes_long
from stubserve.grpc.transport import Keep, Rpc, values_of
from stubserve.grpc.wire import Malformed
from stubserve.inference.call import Call
from stubserve.inference.long_work import LARGE_BYTES, LongWork, OrderedJobs
from stubserve.inference.request import Request, Response
from stubserve.inference.served_model import ServedModel
from stubserve.memory.blocks import Block
from stubserve.memory.heap_account import FREE_BYTES

log = logging.getLogger("stubserve.grpc")

# Makes a message, in steps
Work = Callable[[Keep], LongWork[Parts]]


class GrpcInferCall(Call):
    """One request, under way to its model and back.

    `on_response(call, response)` is called once per response, or `on_refused(call, error)` where the request is refused
    after `start` has returned. Those of one stream share its `jobs`, so that they begin in the order of their messages.
    """

    __slots__ = ("_metadata", "_on_refused", "_on_response", "_server", "envelope", "reply_format")

    protocol = "GRPC"

    def __init__(
        self,
        envelope: Envelope,
        model: ServedModel,
        server: InferenceServer,
        rpc: Rpc,
        on_response: Callable[[GrpcInferCall, Response], None],
        on_refused: Callable[[GrpcInferCall, ServeError], None],
        jobs: OrderedJobs | None = None,
    ) -> None:
        super().__init__(model)
        self.jobs = jobs
        self.envelope = envelope
        self.reply_format: ReplyFormat
        self._server = server
        self._metadata = rpc.metadata
        self._on_response = on_response
        self._on_refused = on_refused
        if server.fair_queues is not None:
            self.client = server.fair_queues.client_of(rpc.peer, partial(_credentials, rpc))

    def start(
        self,
        data: bytes | memoryview,
        forwarded: Mapping[str, str] | None,
        block: Block | None,
        offset: int,
    ) -> None:
        """Decodes the message, checks and submits. Raises ServeError or Malformed, and then nothing is held."""
        start_ns = time.monotonic_ns()
        signature = self.model.signature
        server = self._server
        request, self.reply_format = decode(data, self.envelope, signature, server.store, block, offset, server.regions)
        self.envelope.forget_description()
        if forwarded:
            request = request.with_parameters(forwarded)
        request.request_start_ns = start_ns
        if len(data) > FREE_BYTES:
            self.share()
        self.begin(request, len(data) > LARGE_BYTES and signature.has_strings)

    def of_server(self) -> InferenceServer:
        return self._server

    def trace_context(self) -> str | None:
        for key, value in self._metadata():
            if key == "traceparent" and isinstance(value, str):
                return value
        return None

    def pause(self) -> None:
        """The client does not read: a decoupled model is to wait."""
        if self.request is not None and self.model.signature.decoupled:
            self.request.pause()

    def resume(self) -> None:
        """The client has caught up."""
        if self.request is not None:
            self.request.resume()

    def respond(self, request: Request, response: Response) -> None:
        self._on_response(self, response)

    def refused(self, error: ServeError) -> None:
        self._on_refused(self, error)

    def message(self, response: Response, in_stream: bool) -> Parts | Work:
        """The response's message, or the work that makes it, where that takes long. Both raise ServeError."""
        if takes_long(response, self.reply_format):
            return partial(self._message_steps, response, in_stream)
        try:
            return encode(self.envelope.id, response, self.model.signature, self.reply_format, in_stream)
        except Exception as error:
            raise self.as_answer(error) from None

    def _message_steps(self, response: Response, in_stream: bool, keep: Keep) -> LongWork[Parts]:
        id, signature = self.envelope.id, self.model.signature
        try:
            return (yield from encode_steps(id, response, signature, self.reply_format, in_stream, keep))
        except Exception as error:
            raise self.as_answer(error) from None


def _credentials(rpc: Rpc) -> list[bytes]:
    return values_of(rpc.metadata(), AUTHORIZATION)


def held_blocks(response: Response) -> list[Block]:
    """The blocks that a response's outputs lie in."""
    return [tensor.span.block for tensor in response.outputs if tensor.span is not None]


class ModelInfer:
    """The handler of a ModelInfer RPC. `forwarding` says which of its metadata become parameters, None: none."""

    __slots__ = ("_call", "_forwarding", "_infer", "_server")

    def __init__(self, server: InferenceServer, forwarding: HeaderForwarding | None, call: Rpc) -> None:
        self._server = server
        self._call = call
        self._forwarding = forwarding
        self._infer: GrpcInferCall | None = None

    def on_message(self, data: bytes | memoryview, block: Block | None = None, offset: int = 0) -> None:
        server = self._server
        forwarding = self._forwarding
        try:
            forwarded = None if forwarding is None else forwarding.parameters(self._call.metadata())
            envelope = split(data)
            model = server.find_model(envelope.model_name, envelope.model_version)
            if model.signature.decoupled:
                raise unsupported("ModelInfer RPC doesn't support models with decoupled transaction policy")
            infer = self._infer = GrpcInferCall(
                envelope, model, server, self._call, self._on_response, self._on_refused
            )
            infer.start(data, forwarded, block, offset)
        except ServeError as error:
            self._fail(error)
        except Malformed as malformed:
            self._infer = None
            self._call.finish(malformed.status, malformed.text)
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

    def _on_refused(self, infer: GrpcInferCall, error: ServeError) -> None:
        self._fail(error)

    def _on_response(self, infer: GrpcInferCall, response: Response) -> None:
        self._infer = None
        if response.error is not None:
            # Not raised: with its traceback it would hold this frame, and so the response that holds it.
            self._fail(response.error)
            return
        try:
            if response.empty:
                raise internal("expected a single response, got 0")
            message = infer.message(response, False)
        except ServeError as error:
            self._fail(error)
            return
        if callable(message):
            self._call.reply_in_steps(message, held_blocks(response))
        else:
            self._call.reply(message, held_blocks(response))

    def _fail(self, error: ServeError) -> None:
        self._infer = None
        self._call.finish(error.code.grpc_status, error.message)
