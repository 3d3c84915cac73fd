"""One inference request, from its arrival to the reply, and the response to it."""

# Compiled by mypyc.
from __future__ import annotations

import sys
from collections.abc import Callable, Collection, Hashable, Mapping, Sequence
from typing import Any, Final

from stubserve_stub.wire.options import NO_OPTIONS, RequestOptions

from stubserve.errors import ServeError, invalid
from stubserve.inference.tensor import Tensor
from stubserve.inference.trace import Trace
from stubserve.memory.regions import RegionPlace

SEQUENCE_START = 1
SEQUENCE_END = 2

# The final result of a request (`Request.outcome`), the key under which statistics count it.
SUCCESS = "success"
REJECTED = "rejected"
CANCELLED = "cancelled"
BACKEND_FAILURE = "backend"
OTHER_FAILURE = "other"


class Response:
    """A model's answer to one request: outputs in the order the model gave them, or an error.

    A decoupled model gives any number of responses; the last one is `final`. An `empty` response is only upstream's
    final flag.

    No cache keeps a `transient` response. Such a response comes from an ensemble while members of it are loaded again,
    or from a stub that was restarted on changed files.

    An error may come with outputs, if a model that is not decoupled sends a response and then fails. Clients of streams
    get these outputs, all others get the error.
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
    """The state of a request that has more than one response, or a slow reader.

    `responses`: how many have been counted, with the time at which the model sent the last. `answered`: whether the
    first has been timed (`latencies`). `owed`: to be called when the reader continues. `behind`: called with the
    request, what the reader itself waits for, as `Waiter.waits_for` has it.
    """

    __slots__ = ("answered", "behind", "last_ns", "owed", "paused", "responses")

    def __init__(self) -> None:
        self.responses = 0
        self.answered = False
        self.last_ns = 0
        self.paused = False
        self.owed: list[Callable[[], None]] = []
        self.behind: Callable[[Request], Sequence[Any]] = _nothing


def _nothing(request: Request) -> Sequence[Any]:
    return ()


class Request:
    """One request to one version of one model: what the client asked, and the state of the request.

    **What was asked** is given to the constructor, and never changes. (`admission.admit` gives inputs the shapes that
    the model sees.) Schedulers, caches and instances write elsewhere: into the work that executes the request, or into
    one of the fields below, each of which has one owner.

    `requested_outputs` is None for all. It is a dict where outputs may stay in memory of a GPU or inputs lie there; its
    values say of each output whether it may. `regions` is None unless the request refers to its client's shared memory;
    then it names the outputs to be written there.

    **The state.** `admission.admit` sets `admitted` and `batch_size` once it has found no fault. `batch_size` is the
    leading dimension, at least 1, for statistics and batching; 1 for models without batching. `client` is the client,
    where clients are told apart (`--fair-queues`); None otherwise, and for requests that models make. `content` is a
    digest of what is asked, where requests are compared after a death (`serving.suspects`). `cancelled`: the client no
    longer waits for the answer.

    Times are CLOCK_MONOTONIC nanoseconds, 0 until they happen; statistics, metrics and traces derive from them.

    `on_response` is called with (request, response): once, or for a decoupled model once per response until one is
    `final`. The memory of inputs (until the final response) and of outputs is guaranteed only until `on_response`
    returns. A receiver that needs it longer must hold it.

    A reader that cannot keep up calls `pause()`, from within `on_response` or at any time, and `resume()` when it has
    caught up. The model's `send` then waits as soon as its credit is used up (see `stubserve_stub.api.sender`). At most
    two groups of responses, of 128 responses or 2 MiB each, still arrive, and the reader must keep them. Other requests
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
        "content",
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
        requested_outputs: Collection[str] | None = None,
        regions: Mapping[str, RegionPlace] | None = None,
        on_response: Callable[[Request, Response], None] | None = None,
    ) -> None:
        self.inputs: Final = inputs
        self.id: Final = id
        self.options: Final = options
        self.requested_outputs: Final = requested_outputs
        self.regions: Final = regions
        self.on_response: Callable[[Request, Response], None] = on_response or unanswered
        self.admitted = False
        self.batch_size = 1
        self.client: Hashable = None
        self.content: bytes | None = None
        self.cancelled = False
        self.outcome: str | None = None
        self.stream: ResponseStream | None = None
        self.trace: Trace | None = None
        # The batcher's key for comparison, made when first needed (`work.Grouping`)
        self.grouping_key: dict[str, object] | None = None
        self.request_start_ns = 0
        self.queue_start_ns = 0
        self.compute_start_ns = 0
        self.compute_input_end_ns = 0
        self.compute_infer_end_ns = 0
        self.compute_end_ns = 0

    def pause(self) -> None:
        """The reader is behind: the model gets no further credit."""
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
        """Calls `act` once the reader keeps up: now, or when the reader resumes."""
        stream = self.stream
        if stream is not None and stream.paused:
            stream.owed.append(act)
        else:
            act()

    def streamed(self) -> ResponseStream:
        """The request's state as a stream, made when first needed."""
        if self.stream is None:
            self.stream = ResponseStream()
        return self.stream

    def with_parameters(self, parameters: Mapping[str, Any]) -> Request:
        """A request that asks for the same, with these parameters for the model; it replaces this one."""
        options = self.options._replace(parameters=parameters)
        return Request(self.inputs, self.id, options, self.requested_outputs, self.regions)

    def with_headers(self, forwarded: Mapping[str, str]) -> Request:
        """As `with_parameters`, beside its own. They take the place of those of the same names, in whatever case those
        are: a model that trusts a header must not get what the body says instead.
        """
        if not forwarded:
            return self
        names = {name.lower() for name in forwarded}
        own = {name: value for name, value in (self.options.parameters or {}).items() if name.lower() not in names}
        return self.with_parameters({**own, **forwarded})

    def end_trace(self) -> None:
        """Completes the request's trace, if there is one."""
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
        """Upstream's mark of the request, in front of a text about it."""
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
    """As `Request.refuse`, for a request that is still being read."""
    return invalid(prefix_of(id) + text)


def kept_by(request: Request) -> int:
    """About how many bytes a request keeps until it is answered, without its tensors: ids and parameters."""
    kept = sys.getsizeof(request.id) + sys.getsizeof(request.options.correlation_id)
    for name, value in (request.options.parameters or {}).items():
        kept += sys.getsizeof(name) + sys.getsizeof(value)
    return kept
