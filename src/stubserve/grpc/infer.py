"""One inference request over gRPC, from its message to its responses; and ModelInfer, which has one of each."""

from __future__ import annotations

import functools
import logging
import time
from collections.abc import Callable, Hashable, Mapping

from stubserve.api import region_strings
from stubserve.api.access import AUTHORIZATION
from stubserve.api.fair_queues import FairQueues
from stubserve.api.inference_server import InferenceServer
from stubserve.api.reply_format import ReplyFormat
from stubserve.connections.offload import LARGE_BYTES
from stubserve.errors import ServeError, internal, unsupported
from stubserve.grpc.envelope import Envelope, split
from stubserve.grpc.infer_decode import decode, takes_long
from stubserve.grpc.infer_encode import Encoder, Parts, encode, encode_steps
from stubserve.grpc.infer_encode import takes_long as takes_long_to_encode
from stubserve.grpc.jobs import OrderedJobs
from stubserve.grpc.transport import Keep, Metadata, Rpc, values_of
from stubserve.grpc.wire import Malformed
from stubserve.inference import call as inference
from stubserve.inference.admission import admit_steps
from stubserve.inference.long_work import LongWork
from stubserve.inference.request import Request, Response, kept_by
from stubserve.inference.served_model import ServedModel
from stubserve.memory.blocks import Block
from stubserve.memory.heap_account import FREE_BYTES, HeapShare

log = logging.getLogger("stubserve.grpc")

# Makes a message, in steps
Work = Callable[[Keep], LongWork[Parts]]


class GrpcInferCall(inference.Call):
    """One request, under way to its model and back. `on_response(call, response)` is called once per response.

    It is decoded and entered; what takes long to look at is looked at in between. A handler does that in the order of
    its messages. One that is not to be entered has to be forgotten.
    """

    __slots__ = ("_decoded", "_metadata", "_on_response", "_share", "envelope", "reply_format")

    protocol = "GRPC"

    def __init__(
        self,
        envelope: Envelope,
        model: ServedModel,
        on_response: Callable[[GrpcInferCall, Response], None],
        metadata: Callable[[], Metadata],
    ) -> None:
        super().__init__(model)
        self._metadata = metadata
        self.envelope = envelope
        self.reply_format: ReplyFormat
        self._on_response = on_response
        # The request until it is entered; and what it keeps in the heap, where that is more than a little
        self._decoded: Request | None = None
        self._share: HeapShare | None = None

    def decode(
        self,
        data: bytes | memoryview,
        server: InferenceServer,
        forwarded: Mapping[str, str] | None,
        block: Block | None,
        offset: int,
    ) -> LongWork[None] | None:
        """Decodes the message. Raises ServeError or Malformed, and then nothing is held.

        Gives what is to be done before `enter`, where it takes long to look at the request.
        """
        start_ns = time.monotonic_ns()
        signature = self.model.signature
        request, self.reply_format = decode(data, self.envelope, signature, server.store, block, offset, server.regions)
        self.envelope.forget_description()
        request.on_response = self.on_response
        request.request_start_ns = start_ns
        if forwarded:
            request.parameters = {**(request.parameters or {}), **forwarded}
        self._decoded = request
        if len(data) > FREE_BYTES:
            self._share = server.heap.share()
            try:
                self._share.add(kept_by(request))
            except ServeError:
                self.forget()
                raise
        if region_strings.are_left(request) or (len(data) > LARGE_BYTES and takes_long(data, signature)):
            return self._look_at(request, server)
        return None

    def enter(self, at_once: bool = False) -> None:
        """Submits the request. Raises ServeError. With `at_once` the response may come before this returns."""
        request, self._decoded = self._decoded, None
        assert request is not None
        try:
            self.submit(request, at_once=at_once)
        except ServeError:
            self._drop_share()
            raise

    def forget(self) -> None:
        """Lets go of a request that is not to be entered."""
        request, self._decoded = self._decoded, None
        if request is not None:
            self.give_up(request)
        self._drop_share()

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

    def in_steps(self, response: Response, encoder: Encoder) -> Work | None:
        """The work that makes the response's message, where that takes long. It raises ServeError."""
        if self.reply_format.slots is None or not takes_long_to_encode(response, self.reply_format):
            return None
        return lambda keep: self._encode_in_steps(response, encoder, keep)

    def encoded(self, response: Response, encoder: Encoder) -> Parts:
        """The response's message. Raises ServeError, also where encoding went wrong in an unexpected way."""
        try:
            return encoder(self.envelope.id, response, self.model.signature, self.reply_format)
        except Exception as error:
            raise self.as_answer(error, "encoding an answer of") from None

    def _encode_in_steps(self, response: Response, encoder: Encoder, keep: Keep) -> LongWork[Parts]:
        try:
            return (
                yield from encode_steps(
                    encoder, self.envelope.id, response, self.model.signature, self.reply_format, keep
                )
            )
        except Exception as error:
            raise self.as_answer(error, "encoding an answer of") from None

    def as_answer(self, error: BaseException, what: str) -> ServeError:
        """What a client is told of an error; what is a fault of ours is logged."""
        if isinstance(error, ServeError):
            return error
        log.error("%s model '%s' failed inside the server", what, self.model.signature.model, exc_info=error)
        return internal("unexpected error while the request was handled; see the server's log")

    def _look_at(self, request: Request, server: InferenceServer) -> LongWork[None]:
        yield from region_strings.read(request, server.block)
        yield from admit_steps(request, self.model.signature)

    def _drop_share(self) -> None:
        share, self._share = self._share, None
        if share is not None:
            share.drop()

    def respond(self, request: Request, response: Response) -> None:
        if response.final and self._share is not None:
            self._drop_share()
        self._on_response(self, response)


def held_blocks(response: Response) -> list[Block]:
    """The blocks that a response's outputs lie in."""
    return [tensor.span.block for tensor in response.outputs if tensor.span is not None]


def client_of(call: Rpc, ways: FairQueues) -> Hashable:
    """Who asks, where clients are told apart."""
    return ways.client_of(call.peer, lambda: values_of(call.metadata(), AUTHORIZATION))


class ModelInfer:
    """The handler of a ModelInfer RPC."""

    __slots__ = ("_call", "_forwarded", "_infer", "_jobs", "_server")

    def __init__(self, server: InferenceServer, call: Rpc, forwarded: Mapping[str, str] | None) -> None:
        self._server = server
        self._call = call
        self._forwarded = forwarded
        self._infer: GrpcInferCall | None = None
        self._jobs: OrderedJobs | None = None

    def on_message(self, data: bytes | memoryview, block: Block | None = None, offset: int = 0) -> None:
        try:
            envelope = split(data)
            model = self._server.find_model(envelope.model_name, envelope.model_version)
            if model.signature.decoupled:
                raise unsupported("ModelInfer RPC doesn't support models with decoupled transaction policy")
            infer = self._infer = GrpcInferCall(envelope, model, self._on_response, self._call.metadata)
            if self._server.fair_queues is not None:
                infer.client = client_of(self._call, self._server.fair_queues)
            work = infer.decode(data, self._server, self._forwarded, block, offset)
            if work is None:
                infer.enter(at_once=True)
            else:
                self._jobs = OrderedJobs(self._server.offload)
                self._jobs.add(work, functools.partial(self._looked_at, infer))
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
        if self._jobs is not None:
            self._jobs.drop()
        if infer is not None:
            infer.cancel()

    def _looked_at(self, infer: GrpcInferCall, error: BaseException | None) -> None:
        """What took long about the request is done, or its client is gone."""
        self._jobs = None
        if self._infer is not infer:
            infer.forget()
            return
        try:
            if error is None:
                infer.enter()
                return
            infer.forget()
            refusal = infer.as_answer(error, "a request to")
        except ServeError as refused:
            refusal = refused.with_traceback(None)  # for that knows this frame
        self._fail(refusal)

    def _on_response(self, infer: GrpcInferCall, response: Response) -> None:
        self._infer = None
        if response.error is not None:
            # Not raised: with its traceback it would hold this frame, and so the response that holds it.
            self._fail(response.error)
            return
        try:
            if response.empty:
                raise internal("expected a single response, got 0")
            work = infer.in_steps(response, encode)
            if work is not None:
                self._call.reply_in_steps(work, held_blocks(response))
                return
            parts = infer.encoded(response, encode)
        except ServeError as error:
            self._fail(error)
        else:
            self._call.reply(parts, held_blocks(response))

    def _fail(self, error: ServeError) -> None:
        self._infer = None
        self._call.finish(error.code.grpc_status, error.message)
