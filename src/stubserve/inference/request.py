"""One inference request, from the door to the reply, and the response to it."""

from __future__ import annotations

import sys
from collections.abc import Callable, Hashable, Mapping
from typing import Any, Final

from stubserve_stub.wire.options import NO_OPTIONS, RequestOptions

from stubserve.errors import ServeError, invalid
from stubserve.inference.tensor import Tensor
from stubserve.inference.trace import Trace
from stubserve.memory.regions import RegionPlace

SEQUENCE_START = 1
SEQUENCE_END = 2

# What happened to a request in the end; `Request.outcome`, the key under which statistics count it.
SUCCESS = "success"
REJECTED = "rejected"
CANCELLED = "cancelled"
BACKEND_FAILURE = "backend"
OTHER_FAILURE = "other"


class Response:
    """A model's answer to one request: outputs in the order the model gave them, or an error.

    A decoupled model gives any number of them; `final` says that no further one follows. One that is `empty` brings
    nothing but that news, as upstream's final flag without a response.

    No cache keeps one that is `transient`. It comes from an ensemble whose members were not those that it was loaded
    with, as for a moment while they are loaded anew, or from a stub that was restarted on changed files.

    An error may come with outputs: the response that a model which is not decoupled had sent before it failed. Clients
    of streams get those, all others the error.
    """

    __slots__ = ("empty", "error", "final", "outputs", "parameters", "transient")

    def __init__(
        self,
        outputs: list[Tensor] | None = None,
        parameters: dict[str, Any] | None = None,
        error: ServeError | None = None,
        final: bool = True,
        empty: bool = False,
    ) -> None:
        self.outputs = outputs if outputs is not None else []
        self.parameters = parameters
        self.error = error
        self.final = final
        self.empty = empty
        self.transient = False

    def __repr__(self) -> str:
        return f"<Response {self.error or self.outputs}>"


class ResponseStream:
    """What is known of a request that is answered by more than one response, or slowly read.

    `responses` that have been counted, and when the model sent the last of them; `owed` is what to do when the reader
    goes on.
    """

    __slots__ = ("last_ns", "owed", "paused", "responses")

    def __init__(self) -> None:
        self.responses = 0
        self.last_ns = 0
        self.paused = False
        self.owed: list[Callable[[], None]] = []


class Request:
    """One request to one version of one model: what was asked, and what becomes of it.

    **What was asked** is given to the constructor, and never changes. (`admission.admit` gives inputs the shapes that
    the model sees.) Whatever a scheduler, a cache or an instance has to say of a request is written elsewhere: into the
    work that it is executed in, or into one of the fields behind, which have one owner each.

    `requested_outputs` is None for all. `regions` is None but for a request that refers to shared memory of its client:
    then it says which outputs are to be written there.

    **What becomes of it.** `admitted` is set once `admission.admit` has found nothing wrong, and `batch_size` then: the
    leading dimension, at least 1, for statistics and batching; for models without batching it is 1. `client` is the
    client, where clients are told apart (`--fair-queues`); None otherwise, and for requests that models make.
    `cancelled` says that nobody waits for it.

    Times are CLOCK_MONOTONIC nanoseconds, 0 until they happen; statistics, metrics and traces derive from them.

    `on_response` is called with (request, response): once, or, for a decoupled model, once per response until one is
    `final`. The blocks behind inputs (until the final response) and outputs are only promised until it returns: whoever
    needs them longer holds them.

    A reader that cannot keep up says `pause()`, from within `on_response` or at any time, and `resume()` when it has
    caught up. The model's `send` then waits as soon as its credit is used up (see `stubserve_stub.api.sender`): at most
    two groups of responses, of 128 responses or 2 MiB each, still arrive and are the reader's to keep. Other requests
    go on. Cancelling a request resumes it for good.
    """

    __slots__ = (
        "admitted",
        "batch_size",
        "cancelled",
        "client",
        "compute_end_ns",
        "compute_infer_end_ns",
        "compute_input_end_ns",
        "compute_start_ns",
        "grouping_key",
        "id",
        "inputs",
        "on_response",
        "options",
        "outcome",
        "queue_start_ns",
        "regions",
        "request_start_ns",
        "requested_outputs",
        "stream",
        "trace",
    )

    def __init__(
        self,
        inputs: list[Tensor],
        id: str = "",
        options: RequestOptions = NO_OPTIONS,
        requested_outputs: list[str] | None = None,
        regions: Mapping[str, RegionPlace] | None = None,
        on_response: Callable[[Request, Response], None] | None = None,
    ) -> None:
        # What was asked
        self.inputs: Final = inputs
        self.id: Final = id
        self.options: Final = options
        self.requested_outputs: Final = requested_outputs
        self.regions: Final = regions
        # What becomes of it
        self.on_response: Callable[[Request, Response], None] = on_response or unanswered
        self.admitted = False
        self.batch_size = 1
        self.client: Hashable = None
        self.cancelled = False
        self.outcome: str | None = None
        self.stream: ResponseStream | None = None
        self.trace: Trace | None = None
        # What a batcher compares it by, made when it is first asked for (`work.Grouping`)
        self.grouping_key: dict[str, object] | None = None
        # When what happened
        self.request_start_ns = 0
        self.queue_start_ns = 0
        self.compute_start_ns = 0
        self.compute_input_end_ns = 0
        self.compute_infer_end_ns = 0
        self.compute_end_ns = 0

    def pause(self) -> None:
        """The reader is behind: no further credit for the model."""
        if not self.cancelled:
            self.streamed().paused = True

    def resume(self) -> None:
        """The reader has caught up."""
        stream = self.stream
        if stream is not None and stream.paused:
            stream.paused = False
            owed, stream.owed = stream.owed, []
            for act in owed:
                act()

    def when_read(self, act: Callable[[], None]) -> None:
        """Does what is to be done once the reader keeps up: now, or when it says so."""
        stream = self.stream
        if stream is not None and stream.paused:
            stream.owed.append(act)
        else:
            act()

    def streamed(self) -> ResponseStream:
        """Its state as a stream, made when it is first asked for."""
        if self.stream is None:
            self.stream = ResponseStream()
        return self.stream

    def with_parameters(self, more: Mapping[str, Any]) -> Request:
        """A request that asks for the same, with more parameters for the model; in place of this one."""
        options = self.options._replace(parameters={**(self.options.parameters or {}), **more} or None)
        return Request(self.inputs, self.id, options, self.requested_outputs, self.regions)

    def end_trace(self) -> None:
        """Nothing more is told of it to its trace, if it has one."""
        if self.trace is not None:
            computed = (
                self.compute_start_ns,
                self.compute_input_end_ns,
                self.compute_infer_end_ns,
                self.compute_end_ns,
            )
            self.trace.end(self.id, self.request_start_ns, self.queue_start_ns, computed)

    @property
    def id_prefix(self) -> str:
        """How upstream marks a text with the request it is about."""
        return prefix_of(self.id)

    def refuse(self, text: str) -> ServeError:
        """An INVALID_ARG about this request, with its id in front as upstream puts it."""
        return invalid(self.id_prefix + text)

    def __repr__(self) -> str:
        return f"<Request {self.id!r} batch {self.batch_size} inputs {self.inputs}>"


def unanswered(request: Request, response: Response) -> None:
    """The `on_response` of a request until a call sets it."""
    raise AssertionError(f"{request} was answered before anybody asked: {response}")


def prefix_of(id: str) -> str:
    """The mark of a request with this id, in front of a text about it."""
    return f"[request id: {id or '<id_unknown>'}] "


def refusal(id: str, text: str) -> ServeError:
    """As `Request.refuse`, about a request that is only being read."""
    return invalid(prefix_of(id) + text)


def kept_by(request: Request) -> int:
    """About how many bytes a request keeps until it is answered, beside its tensors: ids and parameters."""
    kept = sys.getsizeof(request.id) + sys.getsizeof(request.options.correlation_id)
    for name, value in (request.options.parameters or {}).items():
        kept += sys.getsizeof(name) + sys.getsizeof(value)
    return kept
