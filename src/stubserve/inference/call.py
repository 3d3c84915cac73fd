"""A request's way to its model and back: submitted once, answered once.

Every way in (HTTP, gRPC, `generate`, a model that calls another) makes a call of it. Guarantees:

- `submit` returns, and then responses come until one is final; or it raises, and then nothing of the request is left:
  its inputs' memory is dropped, the call has forgotten it, and no response will come;
- `begin` and `begin_later` are for calls of clients. They submit as well, at once or after what takes long has been
  done: reading the request, its strings in the client's shared memory, and the checks of many strings. Where the
  request is refused after they have returned, `refused` hears it, and nothing of the request is left;
- what is raised is a ServeError. Anything else is a fault of the server's: it is logged, and refused as INTERNAL;
- `respond` hears nothing after the final response, and nothing after the call was given up, so nobody is answered
  twice. Neither `refused` nor the receiver of a response that was made later hears anything after `cancel`;
- call and request know each other only while the request is under way, for otherwise only the garbage collector could
  free them.

A protocol says how a body becomes a request, and how a response becomes bytes. All the rest is here, once.
"""

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
    """A call to `model`. `request` is the one that is under way, None before and after; `id` is its id, also after.

    `client` is the client, where clients are told apart. Calls that are to begin in an order share their `jobs`.
    """

    __slots__ = ("_read", "_share", "client", "id", "jobs", "model", "request")

    # Whose requests these are, for traces: "HTTP" or "GRPC" those of clients, empty the server's own
    protocol = ""

    def __init__(self, model: ServedModel) -> None:
        self.model = model
        self.request: Request | None = None
        self.id = ""
        self.client: Hashable = None
        # What takes long about it, the request that is not submitted yet, and what the call keeps in the heap
        self.jobs: OrderedJobs | None = None
        self._read: Request | None = None
        self._share: HeapShare | None = None

    # A request on its way to the model

    def begin(self, request: Request, takes_long: bool = False) -> None:
        """Submits a request of a client's: later where others come first, or where it takes long to look at it.

        Raises ServeError as `submit` does.
        """
        if takes_long or (request.regions is not None and any(map(_has_strings_left, request.inputs))):
            self._read = request
            self.begin_later(None)
        elif self.jobs is not None and self.jobs.busy:
            self._read = request
            self.jobs.add(None, partial(self._begun, None))
        else:
            self.submit(request)

    def begin_later(self, reading: LongWork[Request] | None, block: Block | None = None) -> None:
        """As `begin`, with a request that is still to be read in steps, out of a `block` or not."""
        if block is not None:
            block.hold()
        self._ordered().add(self._admitted(reading), partial(self._begun, block))

    def admit(self, request: Request) -> None:
        """Checks a request against the model; `submit` need not be called first. Raises ServeError as `submit` does."""
        try:
            admit(request, self.model.signature)
        except Exception as raised:
            raise self._refused(request, raised) from None

    def submit(self, request: Request, together: bool = False) -> None:
        """Checks a request if that has not been done, and queues it; this call hears its responses.

        `together` says that the caller polls the model when it has queued all that it has. Raises ServeError.
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
                # From here on it keeps what it is made of, and no longer what that was read from.
                self._share.drop()
                self._share.add(kept_by(request))
            if request.trace is not None:
                request.trace.keep(QUEUE_INPUT, request.inputs)
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
        """Nobody waits for the answer any more."""
        if self.jobs is not None:
            self.jobs.drop()
        if self.request is not None:
            self.model.cancel(self.request)

    # Its responses

    def on_response(self, request: Request, response: Response) -> None:
        """For the request's `on_response`."""
        if request is not self.request:
            return
        if response.final:
            self.request = None
            if self._share is not None:
                self._share.drop()
            if request.stream is not None:
                # Nobody else ends a pause of a request that is over, and what is owed to it knows it.
                request.resume()
        self.respond(request, response)

    def make_later(self, making: LongWork[Any], response: Response, then: Callable[[Any], None]) -> None:
        """Makes in steps what a client gets of a response; `then` hears what that is, or the ServeError that it is."""
        blocks = [tensor.span.block.hold() for tensor in response.outputs if tensor.span is not None]
        self._ordered().add(making, partial(self._made, blocks, then))

    def share(self) -> HeapShare:
        """What the call keeps in the heap is counted here."""
        if self._share is None:
            self._share = self.of_server().heap.share()
        return self._share

    def as_answer(self, error: BaseException, encoding: bool = False) -> ServeError:
        """What a client is told of an error; what is a fault of ours, as of `encoding` the answer, is logged."""
        if isinstance(error, ServeError):
            return error.with_traceback(None)  # for that knows the frames that keep it
        model = self.model.signature.model
        if encoding:
            log.error("the answer of model '%s' could not be encoded", model, exc_info=error)
            return internal("unexpected error while the answer was encoded; see the server's log")
        log.error("a request to model '%s' failed inside the server", model, exc_info=error)
        return internal("unexpected error while the request was handled; see the server's log")

    # What is different from one kind of call to the next

    def respond(self, request: Request, response: Response) -> None:
        """Passes a response on. The request is forgotten already if it is the final one."""
        raise NotImplementedError

    def refused(self, error: ServeError) -> None:
        """The request does not get to its model, which was found out later."""
        raise NotImplementedError

    def of_server(self) -> CallServer:
        """The server, of calls of clients."""
        raise NotImplementedError

    def trace_context(self) -> str | None:
        """The value of `traceparent` that the client sent along."""
        return None

    # The way of what takes long

    def _ordered(self) -> OrderedJobs:
        if self.jobs is None:
            self.jobs = OrderedJobs(self.of_server().offload)
        return self.jobs

    def _admitted(self, reading: LongWork[Request] | None) -> LongWork[None]:
        if reading is not None:
            self._read = yield from reading
        request = self._read
        assert request is not None
        yield from _read_strings(request, self.of_server().block)
        yield from admit_steps(request, self.model.signature)

    def _begun(self, block: Block | None, error: BaseException | None) -> None:
        """All that had to be done before the request's turn is done, or its client is gone."""
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
        """Nothing of it is kept in the heap any longer."""
        if self._share is not None:
            self._share.drop()

    def _refused(self, request: Request, raised: Exception) -> ServeError:
        self.give_up(request)
        if isinstance(raised, ServeError):
            return raised
        log.error("a request to model '%s' could not be submitted", self.model.signature.model, exc_info=raised)
        return internal("unexpected error while the request was handled; see the server's log")


def _has_strings_left(tensor: Tensor) -> bool:
    return tensor.datatype == BYTES and isinstance(tensor.span, RegionSpan)


def _read_strings(request: Request, allocate: Callable[[int], Block]) -> LongWork[None]:
    """Reads strings that lie in the client's shared memory into the arena, in a thread, before anybody looks at them.

    They are checked before a model gets them, and what has been checked must not change after that. Few of them are
    read at once (`placement`); tensors of numbers are the stubs' to read. Raises ServeError where the client has taken
    them away, or where there is no memory for them.
    """
    for tensor in request.inputs:
        span = tensor.span
        if isinstance(span, RegionSpan) and tensor.datatype == BYTES:
            block = allocate(tensor.nbytes)
            tensor.lie_in(block)
            yield partial(span.place.region.read, span.place.offset, block.view)
            span.drop()
