"""Business logic scripting: a model's own requests to other models.

Who owns the memory of a tensor above INLINE_BYTES, on its way there and back:

- There. An array of the model's is copied once, into this stub's segment. The copy belongs to that request alone, so
  the called model gets it as its own. A tensor that this stub has received, as input or as answer, is passed on without
  a copy if the model has not looked at it. Several models then share its memory: a model that looks at it later, here
  or there, gets a copy of its own (`Tensor._pass_on`). A tensor that the model has looked at is copied like any other
  array, because the model may have written to it.
- Back. An output lies where it was made: in the segment of the called model or, if that returned its input, in this
  stub's own. The server holds it for this stub until the last view of it is gone (`Lease`). Only this model has it, and
  may write to it, unless the server says that others read it, too.
- On GPUs. The same holds for tensors in memory of a GPU. Outputs stay where they are made, unless the request prefers
  other memory: the called model copies them to the host, the caller to its GPU.
- Onwards. An answer's output that the model returns is sent on from where it lies (`batch`).

Errors are answers (`has_error()`), as in upstream; only a request at the wrong time raises.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Callable, Collection, List, Optional, Sequence, Tuple

from stubserve_stub.api import parameters as params
from stubserve_stub.api.constants import ErrorCode
from stubserve_stub.api.exceptions import TritonError, TritonModelException
from stubserve_stub.api.responses import InferenceResponse
from stubserve_stub.api.tensors import Tensor
from stubserve_stub.runtime.outputs import Lease, own_offsets
from stubserve_stub.wire import places
from stubserve_stub.wire.arena import ArenaFull
from stubserve_stub.wire.datatypes import BYTES
from stubserve_stub.wire.layout import INLINE_BYTES
from stubserve_stub.wire.options import RequestOptions
from stubserve_stub.wire.places import AsList, InArena, Lent, OnDevice, Shared

if TYPE_CHECKING:
    import asyncio

    # These import msgpack, which is missing where only the public module is wanted.
    from stubserve_stub.runtime.calls import Calls, OpenCall
    from stubserve_stub.runtime.channel import Channel
    from stubserve_stub.wire.messages import Requested, WireResponse, WireTensor, WireTrace

Target = Tuple[str, int]
Names = Collection[str]
# (id, options, trace, requested outputs, inputs, preferred memory)
Request = Tuple[str, RequestOptions, "WireTrace", Names, List[Tensor], Optional[int]]

# Preferred memory beside the numbers of GPUs; None for wherever the called model has it
ON_HOST = -1


# The server is told after an iterator has taken so many responses, or so many bytes of them. When several times as many
# wait, it holds back the model that makes them (`stubserve.instances.bls`).
TELL_RESPONSES = 16
TELL_BYTES = 2 << 20

_NOT_NOW = "BLS is only supported during the 'execute' function."

# The stub's calls while its model may make any
_calls: Optional[Calls] = None
# In a process that the model has forked: the function in place of `execute`
_relay: Optional[Callable[[Target, Request, bool], Any]] = None


def connect(calls: Optional[Calls]) -> None:
    """From now on the model may make requests; with None they raise."""
    global _calls
    _calls = calls


def relay(through: Callable[[Target, Request, bool], Any]) -> None:
    """From now on requests go through the process that has forked this one, by a function like `execute`."""
    global _relay
    _relay = through


def execute(target: Target, request: Request, decoupled: bool) -> Any:
    """The answer to a request, or an iterator over its answers; blocks until there is one.

    Raises TritonModelException outside of the time between `initialize` and `finalize`.
    """
    if _relay is not None:
        refusal = _refusal(target, request)
        return _refused(refusal, decoupled) if refusal else _relay(target, request, decoupled)
    calls = _calls
    if calls is None:
        raise TritonModelException(_NOT_NOW)
    call, refused = _open(calls, target, request, decoupled)
    if call is None:
        return refused
    try:
        response, final = calls.wait(call)
    except BaseException:  # a signal handler of the model's has raised
        calls.discard(call)
        raise
    return ResponseIterator._of([response], calls, None if final else call) if decoupled else response


def async_execute(target: Target, request: Request, decoupled: bool) -> "asyncio.Future[Any]":
    """As `execute`, as a future of the event loop that runs here. Raises RuntimeError if there is none."""
    import asyncio  # not at the top: see stubserve_stub.backends.python.model

    loop = asyncio.get_running_loop()
    if _relay is not None:
        return loop.run_in_executor(None, execute, target, request, decoupled)
    future: "asyncio.Future[Any]" = loop.create_future()
    calls, call = _calls, None
    if calls is None:
        future.set_exception(TritonModelException(_NOT_NOW))
        return future

    def done() -> None:
        assert calls is not None
        assert call is not None
        calls.expect_no_more(loop)
        if future.cancelled():
            calls.discard(call)
            return
        response, final = call.answers.popleft()
        answer = ResponseIterator._of([response], calls, None if final else call) if decoupled else response
        future.set_result(answer)

    def answered() -> None:
        try:
            loop.call_soon_threadsafe(done)
        except RuntimeError:  # the loop has been closed: nobody can wait for this any more
            assert calls is not None
            assert call is not None
            calls.forget(loop)
            calls.discard(call)

    calls.expect(loop)
    call, refused = _open(calls, target, request, decoupled, answered)
    if call is None:
        calls.expect_no_more(loop)
        future.set_result(refused)
    return future


class ReceivedResponse(InferenceResponse):
    """A response that another model has given. Its parameters are printed as the server prints them."""

    __slots__ = ()

    def parameters(self) -> str:
        """The parameters as JSON text; the empty text for an error and for a response that only says it is the last."""
        if self._error is not None or (self._parameters is None and not self._output_tensors):
            return ""
        return params.received_json(self._parameters)


# Models print the type, and compare it by name.
ReceivedResponse.__name__ = ReceivedResponse.__qualname__ = "InferenceResponse"


class ResponseIterator:
    """The responses to one request. The iterator waits for each when it is asked for it.

    It remembers the responses. When all have come, a new `for` begins with the first again; before that, it goes on
    where the last `for` stopped. An iterator that is dropped early gives up the rest.
    """

    _calls: Any
    # None once the last response has come
    _call: Optional[OpenCall]
    _responses: List[InferenceResponse]
    _next: int
    # Taken since the server was told last
    _taken: int
    _taken_bytes: int

    __slots__ = ("__weakref__", *__annotations__)

    def __init__(self) -> None:
        raise TypeError("ResponseIterator: No constructor defined!")

    @staticmethod
    def _of(
        responses: List[InferenceResponse], calls: Optional[Calls] = None, call: Optional[OpenCall] = None
    ) -> ResponseIterator:
        """An iterator over responses that are there, and those that are still to come for a call."""
        self = object.__new__(ResponseIterator)
        self._calls = calls
        self._call = call
        self._responses = responses
        self._next = self._taken = self._taken_bytes = 0
        if call is not None:
            self._took(responses[0])
        return self

    def __iter__(self) -> ResponseIterator:
        if self._call is None and self._next >= len(self._responses):
            self._next = 0
        return self

    def __next__(self) -> InferenceResponse:
        if self._next >= len(self._responses):
            if self._call is None:
                raise StopIteration("Iteration is done for the responses.")
            response, final = self._calls.wait(self._call)
            self._responses.append(response)
            if final:
                self._call = None
            self._took(response)
        self._next += 1
        return self._responses[self._next - 1]

    def _took(self, response: InferenceResponse) -> None:
        if self._call is not None:
            self._taken += 1
            self._taken_bytes += sum(tensor._nbytes() for tensor in response._output_tensors)
            if self._taken >= TELL_RESPONSES or self._taken_bytes >= TELL_BYTES:
                self._calls.taken(self._call, self._taken, self._taken_bytes)
                self._taken = self._taken_bytes = 0

    def cancel(self) -> None:
        """Asks the model that was called to stop; does nothing once its last response has come."""
        if self._call is not None:
            self._calls.cancel(self._call)

    def __del__(self) -> None:
        call = getattr(self, "_call", None)
        if call is not None:
            self._calls.discard(call)


def _open(
    calls: Calls, target: Target, request: Request, decoupled: bool, on_answer: Optional[Callable[[], None]] = None
) -> Tuple[Optional[OpenCall], Any]:
    """Sends a request: (its call, None), or (None, the answer) for one that cannot be sent, which keeps no memory."""
    refusal = _refusal(target, request)
    if refusal:
        return None, _refused(refusal, decoupled)
    id, options, trace, names, tensors, preferred = request
    wanted: Requested = list(names) or None
    if calls.channel.devices is not None and preferred != ON_HOST:
        wanted = dict.fromkeys(names, True)
    inputs: List[WireTensor] = []
    try:
        inputs.extend(_input(calls.channel, tensor) for tensor in tensors)
        return calls.open(target, decoupled, (id, options, trace, wanted, inputs), on_answer, preferred), None
    except ArenaFull as full:
        calls.channel.free(own_offsets(inputs))
        return None, _refused(str(full), decoupled, ErrorCode.UNAVAILABLE)


def _input(channel: Channel, tensor: Tensor) -> WireTensor:
    if tensor._on_device:
        return tensor._outgoing(channel)
    datatype, shape, buffer = tensor._payload()
    nbytes = len(buffer) if isinstance(buffer, bytes) else buffer.nbytes
    memory = tensor._pass_on() if nbytes > INLINE_BYTES else None
    if memory is None:
        return (tensor._name, datatype, shape, channel.place(buffer))
    offset = channel.arena.offset(memory)
    return (tensor._name, datatype, shape, Lent(offset, nbytes, offset))


def _refusal(target: Target, request: Request) -> str:
    """Why the parameters of a request cannot be sent, empty if they can."""
    refusal = params.refusal(request[1].parameters)
    return f"Model {target[0]} - Error when running inference: {refusal}" if refusal else ""


def _refused(text: str, decoupled: bool, code: ErrorCode = ErrorCode.INTERNAL) -> Any:
    failed = ReceivedResponse(error=TritonError(text, code))
    return ResponseIterator._of([failed]) if decoupled else failed


def received(channel: Channel, wire: Optional[WireResponse], preferred: Optional[int] = None) -> InferenceResponse:
    """A response out of an answer; None stands for the empty response that only says that no other follows.

    Its outputs are on the GPU that is `preferred`, if one is.
    """
    if wire is None:
        return ReceivedResponse()
    error, outputs, parameters = wire
    if error is not None:
        return ReceivedResponse(error=TritonError(error[0], ErrorCode(error[1])))
    try:
        response = ReceivedResponse([_output(channel, preferred, *output) for output in outputs])
    except TritonModelException as refused:
        return ReceivedResponse(error=TritonError(str(refused), ErrorCode.UNSUPPORTED))
    response._parameters = parameters
    return response


def _output(
    channel: Channel, preferred: Optional[int], name: str, datatype: int, shape: Sequence[int], wire: Any
) -> Tensor:
    place = places.unpack(wire)
    if isinstance(place, OnDevice) or (preferred is not None and preferred != ON_HOST and datatype != BYTES):
        return _output_on_device(channel, preferred, name, datatype, shape, wire)
    if isinstance(place, bytes):
        return Tensor._received(name, datatype, shape, place, None)
    if isinstance(place, AsList):
        return Tensor._listed(name, shape, place.elements)
    if not isinstance(place, (InArena, Shared)):
        why = places.refusal(place) or "lies in memory that was never this stub's to read"
        raise TritonModelException(f"Output '{name}' of another model {why}.")
    view = Lease(channel.arena, place.offset, place.nbytes, channel.drop).view()
    if isinstance(place, Shared):
        view = view.toreadonly()
    else:
        channel.arena.make_writable(place.offset, place.nbytes)
    return Tensor._received(name, datatype, shape, None, view)


def _output_on_device(
    channel: Channel, preferred: Optional[int], name: str, datatype: int, shape: Sequence[int], wire: Any
) -> Tensor:
    """An output that lies in memory of a GPU, or is to lie there."""
    from stubserve_stub.api import device_tensors  # not at the top: only servers with GPUs need it

    devices, place = channel.devices, places.unpack(wire)
    if isinstance(place, OnDevice) and devices is not None:
        return device_tensors.answer(devices, name, datatype, shape, place, preferred, channel.drop)
    there = _output(channel, None, name, datatype, shape, wire)
    if devices is None or preferred is None:
        return there
    return device_tensors.uploaded(devices, there, preferred)
