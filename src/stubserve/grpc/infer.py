"""One inference request over gRPC, alone or in a stream, from its message to its responses; and ModelInfer."""

# Compiled by mypyc.
from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING

from stubserve.api.access import AUTHORIZATION
from stubserve.api.inference_server import InferenceServer
from stubserve.api.placement import ReplyFormat
from stubserve.errors import ServeError, internal, unsupported
from stubserve.grpc.infer_decode import Envelope, decode, split
from stubserve.grpc.infer_encode import encode, encode_steps, takes_long
from stubserve.grpc.transport import Answer, Keep, Parts, Rpc, end_of, values_of
from stubserve.inference.call import Call
from stubserve.inference.long_work import LARGE_BYTES, LongWork, OrderedJobs
from stubserve.inference.request import Request, Response
from stubserve.inference.served_model import ServedModel
from stubserve.memory.blocks import Block
from stubserve.memory.heap_account import FREE_BYTES

if TYPE_CHECKING:
    from stubserve.api.forwarded_headers import HeaderForwarding


class GrpcInferCall(Call):
    """One request, on its way to its model and back. `asked_for` is the model as named by its client, with version."""

    __slots__ = ("_rpc", "_server", "asked_for", "reply_format", "request_id")

    protocol = "GRPC"

    def __init__(self, envelope: Envelope, model: ServedModel, server: InferenceServer, rpc: Rpc) -> None:
        super().__init__(model)
        self.asked_for = envelope.model_name, envelope.model_version
        self.request_id = envelope.id
        self.reply_format: ReplyFormat
        self._server = server
        self._rpc = rpc
        if server.fair_queues is not None:
            self.client = server.fair_queues.client_of(rpc.peer, lambda: values_of(rpc.metadata(), AUTHORIZATION))

    def start(
        self,
        envelope: Envelope,
        data: bytes | memoryview,
        forwarded: Mapping[str, str] | None,
        block: Block | None,
        offset: int,
    ) -> None:
        """Decodes the message, checks and submits. If it raises ServeError or Malformed, nothing is held."""
        start_ns = time.monotonic_ns()
        signature = self.model.signature
        server = self._server
        try:
            request, self.reply_format = decode(data, envelope, signature, server.store, block, offset, server.regions)
        except ServeError as error:
            self.model.statistics.record_error(error)
            raise
        if forwarded:
            request = request.with_headers(forwarded)
        request.request_start_ns = start_ns
        if len(data) > FREE_BYTES:
            self.share()
        self.begin(request, len(data) > LARGE_BYTES and signature.has_strings)

    def server(self) -> InferenceServer:
        return self._server

    def asker(self) -> str:
        return self._rpc.peer

    def trace_context(self) -> str | None:
        for key, value in self._rpc.metadata():
            if key == "traceparent" and isinstance(value, str):
                return value
        return None

    def message(self, response: Response, in_stream: bool) -> Answer:
        """The response's message, or the work that makes it if that takes long. Both raise ServeError."""
        reply_format = self.reply_format
        if reply_format.slots is not None and takes_long(response, reply_format.slots):
            return partial(self._message_steps, response, in_stream)
        try:
            return encode(self.request_id, response, self.model.signature, reply_format, in_stream)
        except Exception as error:
            raise self.as_answer(error) from None

    def _message_steps(self, response: Response, in_stream: bool, keep: Keep) -> LongWork[Parts]:
        id, signature = self.request_id, self.model.signature
        try:
            return (yield from encode_steps(id, response, signature, self.reply_format, in_stream, keep))
        except Exception as error:
            raise self.as_answer(error) from None


def held_blocks(response: Response) -> list[Block]:
    blocks = []
    for tensor in response.outputs:
        if tensor.span is not None:
            blocks.append(tensor.span.block)  # noqa: PERF401 - a hot path: each response comes here
    return blocks


class UnaryInferCall(GrpcInferCall):
    """The request of a ModelInfer RPC, which its response ends."""

    __slots__ = ()

    def respond(self, request: Request, response: Response) -> None:
        if response.error is not None:
            # Not raised: its traceback would hold this frame, and so the response that holds the error.
            self.refused(response.error)
            return
        try:
            if response.empty:
                raise internal("expected a single response, got 0")
            message = self.message(response, False)
        except ServeError as error:
            self.refused(error)
            return
        self._rpc.reply(message, held_blocks(response))

    def refused(self, error: ServeError) -> None:
        self._rpc.finish(error.code.grpc_status, error.message)


class Position:
    """The position of one request in the order of responses; `answer` is its message, once made."""

    __slots__ = ("answer", "blocks")

    def __init__(self) -> None:
        self.answer: Answer | None = None
        self.blocks: list[Block] = []

    def drop(self) -> None:
        for block in self.blocks:
            block.drop()
        self.blocks = []


class StreamedInferCall(GrpcInferCall):
    """One request of a stream. The requests of a stream share its jobs, so they begin in the order of their messages.

    `on_response(call, response)` is called once per response, or `on_refused(call, error)` if the request is refused
    after `start` has returned. `position` is None if its responses keep no order with other requests.
    """

    __slots__ = ("_on_refused", "_on_response", "position")

    def __init__(
        self,
        envelope: Envelope,
        model: ServedModel,
        server: InferenceServer,
        rpc: Rpc,
        jobs: OrderedJobs,
        on_response: Callable[[StreamedInferCall, Response], None],
        on_refused: Callable[[StreamedInferCall, ServeError], None],
    ) -> None:
        super().__init__(envelope, model, server, rpc)
        self.jobs = jobs
        self.position = None if model.signature.decoupled else Position()
        self._on_response = on_response
        self._on_refused = on_refused

    def respond(self, request: Request, response: Response) -> None:
        self._on_response(self, response)

    def refused(self, error: ServeError) -> None:
        self._on_refused(self, error)

    def pause(self) -> None:
        """The client does not read: a decoupled model has to wait."""
        if self.request is not None and self.position is None:
            self.request.pause()

    def resume(self) -> None:
        if self.request is not None:
            self.request.resume()


class ModelInfer:
    """The handler of a ModelInfer RPC. `forwarding` says which metadata become parameters; None for no metadata."""

    __slots__ = ("_call", "_forwarding", "_rpc", "_server")

    def __init__(self, server: InferenceServer, forwarding: HeaderForwarding | None, rpc: Rpc) -> None:
        self._server = server
        self._rpc = rpc
        self._forwarding = forwarding
        self._call: UnaryInferCall | None = None

    def on_message(self, data: bytes | memoryview, block: Block | None = None, offset: int = 0) -> None:
        server, forwarding, rpc = self._server, self._forwarding, self._rpc
        try:
            forwarded = None if forwarding is None else forwarding.parameters(rpc.metadata())
            envelope = split(data)
            model = server.find_model(envelope.model_name, envelope.model_version)
            if model.signature.decoupled:
                raise unsupported("ModelInfer RPC doesn't support models with decoupled transaction policy")
            call = self._call = UnaryInferCall(envelope, model, server, rpc)
            call.start(envelope, data, forwarded, block, offset)
        except Exception as error:
            rpc.finish(*end_of(error))

    def on_half_close(self) -> None:
        pass

    def on_writable(self) -> None:
        pass

    def stop(self) -> None:
        pass

    def on_cancel(self) -> None:
        if self._call is not None:
            self._call.cancel()
