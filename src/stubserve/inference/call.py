"""A request's way to its model and back: submitted once, answered once.

Every way in (HTTP, gRPC, `generate`, a model that calls another) makes a call. Guarantees:

- `submit` returns, and then responses come until one is final. Or `submit` raises, and then nothing of the request is
  left: the memory of its inputs is dropped, the call has forgotten it, and no response will come;
- `begin` and `begin_later` are for calls of clients. They submit at once, or after the long work: reading the request,
  reading strings and memory of GPUs that the client shares, and checking many strings. A refusal after they have
  returned goes to `refused`, and nothing of the request is left;
- only ServeError is raised. Any other exception is a fault of the server: it is logged, and becomes INTERNAL;
- `respond` is not called after the final response, nor after the call was given up, so no client is answered twice.
  Neither `refused` nor the receiver of a response that was made later is called after `cancel`;
- call and request refer to each other only while the request is under way. Otherwise only the garbage collector could
  free them.

A protocol defines how a body becomes a request, and how a response becomes bytes. All the rest is here, once.
"""

# Compiled by mypyc.
from __future__ import annotations

import logging
from collections.abc import Callable, Hashable
from functools import partial
from typing import Any, Protocol

from stubserve_stub.wire.datatypes import BYTES

from stubserve.errors import ServeError, internal
from stubserve.inference.admission import admit, admit_steps
from stubserve.inference.long_work import LongWork, Offload, OrderedJobs
from stubserve.inference.request import Request, Response, kept_by
from stubserve.inference.served_model import ServedModel
from stubserve.inference.tensor import Tensor, drop_blocks
from stubserve.inference.trace import QUEUE_INPUT
from stubserve.memory.blocks import Block
from stubserve.memory.heap_account import HeapAccount, HeapShare
from stubserve.memory.regions import RegionSpan

log = logging.getLogger("stubserve.inference")


class CallServer(Protocol):
    """The server, as far as a client's call needs it: the heap's account, memory of the arena, and long work."""

    heap: HeapAccount
    offload: Offload

    def block(self, nbytes: int) -> Block:
        """Memory of the arena. Raises ServeError."""


class Call:
    """A call to `model`. `request` is the request under way, None before and after; `id` is its id, also after.

    `client` is the client, where clients are told apart. Calls that must begin in an order share their `jobs`.
    """

    __slots__ = ("_read", "_share", "client", "id", "jobs", "model", "request")

    # For traces, the source of the requests: "HTTP" or "GRPC" for clients, empty for the server itself
    protocol = ""

    def __init__(self, model: ServedModel) -> None:
        self.model = model
        self.request: Request | None = None
        self.id = ""
        self.client: Hashable = None
        # The long work, the request that is not submitted yet, and the bytes that the call keeps in the heap
        self.jobs: OrderedJobs | None = None
        self._read: Request | None = None
        self._share: HeapShare | None = None

    # A request on its way to the model

    def begin(self, request: Request, takes_long: bool = False) -> None:
        """Submits a client's request: later if others come first, or if reading it takes long.

        Raises ServeError as `submit`.
        """
        if takes_long or (request.regions is not None and any(map(_is_left, request.inputs))):
            self._read = request
            self.begin_later(None)
        elif self.jobs is not None and self.jobs.busy:
            self._read = request
            self.jobs.add(None, partial(self._begun, None))
        else:
            self.submit(request)

    def begin_later(self, reading: LongWork[Request] | None, block: Block | None = None) -> None:
        """As `begin`, for a request that is still to be read in steps. The steps may read from a `block`."""
        if block is not None:
            block.hold()
        self._ordered().add(self._admitted(reading), partial(self._begun, block))

    def admit(self, request: Request) -> None:
        """Checks a request against the model, before `submit`. Raises ServeError as `submit` does."""
        try:
            admit(request, self.model.signature)
        except Exception as raised:
            raise self._refused(request, raised) from None

    def submit(self, request: Request, together: bool = False) -> None:
        """Checks a request if that has not been done, and queues it; this call gets its responses.

        `together`: the caller polls the model once all its requests are queued. Raises ServeError.
        """
        self.request = request
        self.id = request.id
        request.on_response = self.on_response
        if self.client is not None:
            request.client = self.client
        sampler = self.model.tracing.sampler
        if sampler is not None and self.protocol:
            model = self.model
            request.trace = sampler.sample(model.name, model.version, self.protocol, self.trace_context)
        try:
            if self._share is not None:
                # From here on the request keeps its own parts, and no longer the bytes that it was read from.
                self._share.drop()
                self._share.add(kept_by(request))
            if request.trace is not None:
                request.trace.capture(QUEUE_INPUT, request.inputs)
            if not request.admitted:
                admit(request, self.model.signature)
            if together:
                self.model.enqueue(request)
            else:
                self.model.submit(request)
        except Exception as raised:
            raise self._refused(request, raised) from None

    def give_up(self, request: Request) -> None:
        """Forgets a request that has not been submitted."""
        self.request = None
        drop_blocks(request.inputs)
        request.end_trace()
        self._let_go()

    def cancel(self) -> None:
        """The client no longer waits for the answer."""
        if self.jobs is not None:
            self.jobs.drop()
        if self.request is not None:
            self.model.cancel(self.request)

    # Its responses

    def on_response(self, request: Request, response: Response) -> None:
        if request is not self.request:
            return
        if response.error is not None and not request.cancelled:
            self.model.statistics.record_error(response.error)
        if response.final:
            self.request = None
            if self._share is not None:
                self._share.drop()
            if request.stream is not None:
                # Nothing else ends the pause of a request that is over, and the owed work refers to the request.
                request.resume()
        self.respond(request, response)

    def make_later(self, making: LongWork[Any], response: Response, then: Callable[[Any], None]) -> None:
        """Makes in steps what a client gets of a response. `then` gets the result, or the ServeError."""
        blocks = [tensor.span.block.hold() for tensor in response.outputs if tensor.span is not None]
        self._ordered().add(making, partial(self._made, blocks, then))

    def share(self) -> HeapShare:
        """The account of the bytes that the call keeps in the heap."""
        if self._share is None:
            self._share = self.server().heap.share()
        return self._share

    def as_answer(self, error: BaseException, encoding: bool = False) -> ServeError:
        """The error as the client gets it, counted. A fault of the server, such as while `encoding`, is logged."""
        model = self.model.signature.model
        if isinstance(error, ServeError):
            answer = error.with_traceback(None)  # the traceback knows the frames that keep the error
        elif encoding:
            log.error("the answer of model '%s' could not be encoded", model, exc_info=error)
            answer = internal("unexpected error while the answer was encoded; see the server's log")
        else:
            log.error("a request to model '%s' failed inside the server", model, exc_info=error)
            answer = internal("unexpected error while the request was handled; see the server's log")
        self.model.statistics.record_error(answer)
        return answer

    # What is different from one kind of call to the next

    def respond(self, request: Request, response: Response) -> None:
        """Passes a response on. The request is forgotten already if it is the final one."""
        raise NotImplementedError

    def refused(self, error: ServeError) -> None:
        """The request was refused after `begin` or `begin_later` had returned."""
        raise NotImplementedError

    def server(self) -> CallServer:
        """The server; only for calls of clients."""
        raise NotImplementedError

    def asker(self) -> str:
        """Who asks, for the log: the address of a client, or a model. Empty if that is not known."""
        return ""

    def trace_context(self) -> str | None:
        """The value of `traceparent` that the client sent."""
        return None

    # Long work

    def _ordered(self) -> OrderedJobs:
        if self.jobs is None:
            self.jobs = OrderedJobs(self.server().offload)
        return self.jobs

    def _admitted(self, reading: LongWork[Request] | None) -> LongWork[None]:
        if reading is not None:
            self._read = yield from reading
        request = self._read
        assert request is not None
        yield from _read_regions(request, self.server().block)
        yield from admit_steps(request, self.model.signature)

    def _begun(self, block: Block | None, error: BaseException | None) -> None:
        """All work before the submission is done, or the client is gone."""
        request, self._read = self._read, None
        gone = self._ordered().dropped
        if request is None:
            self._let_go()
        elif gone or error is not None:
            self.give_up(request)
        else:
            try:
                self.submit(request)
            except ServeError as refusal:
                self.refused(refusal)
        if error is not None and not gone:
            self.refused(self.as_answer(error))
        if block is not None:
            block.drop()

    def _made(self, blocks: list[Block], then: Callable[[Any], None], made: Any) -> None:
        if self.request is None:
            self._let_go()
        if not self._ordered().dropped:
            then(self.as_answer(made) if isinstance(made, BaseException) else made)
        for block in blocks:
            block.drop()

    def _let_go(self) -> None:
        """The call keeps nothing in the heap any longer."""
        if self._share is not None:
            self._share.drop()

    def _refused(self, request: Request, raised: Exception) -> ServeError:
        self.give_up(request)
        if isinstance(raised, ServeError):
            refusal = raised
        else:
            log.error("a request to model '%s' could not be submitted", self.model.signature.model, exc_info=raised)
            refusal = internal("unexpected error while the request was handled; see the server's log")
        self.model.statistics.record_error(refusal)
        return refusal


def asker_of(request: Request) -> str:
    """Who waits for the answer to a submitted request, as `Call.asker`."""
    reader = getattr(request.on_response, "__self__", None)
    if not isinstance(reader, Call):
        # A cache may get the answer first.
        reader = getattr(getattr(reader, "reader", None), "__self__", None)
    return reader.asker() if isinstance(reader, Call) else ""


def _is_left(tensor: Tensor) -> bool:
    """Whether the tensor is still to be read from its client's shared memory."""
    span = tensor.span
    return isinstance(span, RegionSpan) and (tensor.datatype == BYTES or span.place.region.on_device)


def _read_regions(request: Request, allocate: Callable[[int], Block]) -> LongWork[None]:
    """Copies strings, and what is on a GPU, from the client's shared memory into the arena, in a thread.

    The client must not be able to change strings after their check. Small ones are read at once (`placement`); the
    stubs read tensors of numbers. Raises ServeError if the client has removed its memory, or if the arena has none.
    """
    for tensor in request.inputs:
        span = tensor.span
        if isinstance(span, RegionSpan) and _is_left(tensor):
            block = allocate(tensor.nbytes)
            tensor.lie_in(block)
            yield partial(span.place.region.read, span.place.offset, block.view)
            span.drop()
