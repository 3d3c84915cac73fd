"""`InferenceRequest`: what `execute` receives, and what a model makes to call another model."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any, Callable, List, Literal, Optional, Sequence, Set, Tuple, Union, overload

from stubserve_stub.api import bls, sender
from stubserve_stub.api import parameters as params
from stubserve_stub.api.arguments import (
    INT64_MAX,
    INT64_MIN,
    REQUIRED,
    UINT32_MAX,
    UINT64_MAX,
    as_integer,
    as_list,
    as_text,
    as_text_list,
    incompatible,
)
from stubserve_stub.api.constants import MemoryType
from stubserve_stub.api.exceptions import TritonModelException
from stubserve_stub.api.sender import InferenceResponseSender
from stubserve_stub.api.tensors import Tensor
from stubserve_stub.wire.options import RequestOptions

if TYPE_CHECKING:
    import asyncio

    from stubserve_stub.api.responses import InferenceResponse
    from stubserve_stub.wire.messages import WireTrace

_SIGNATURE = (
    "InferenceRequest(request_id: str = '', correlation_id: object = 0, inputs: List[Tensor], "
    "requested_output_names: List[str], model_name: str, model_version: int = -1, flags: int = 0, timeout: int = 0, "
    "preferred_memory: PreferredMemory, trace: InferenceTrace, parameters: object = None)"
)


class PreferredMemory:
    """Where a model would like the outputs of a request: a memory type and, for GPU memory, the device."""

    __slots__ = ("__weakref__", "_device_id", "_memory_type")

    def __init__(self, preferred_memory_type: MemoryType, preferred_device_id: int = 0) -> None:
        device_id = as_integer(preferred_device_id, INT64_MIN, INT64_MAX)
        if not isinstance(preferred_memory_type, MemoryType) or device_id is None:
            raise incompatible(
                "__init__",
                "PreferredMemory(preferred_memory_type: MemoryType, preferred_device_id: int = 0)",
                (preferred_memory_type, preferred_device_id),
            )
        self._memory_type = preferred_memory_type
        self._device_id = device_id

    def _wanted(self) -> int:
        return self._device_id if self._memory_type == MemoryType.TRITONSERVER_MEMORY_GPU else bls.ON_HOST


class InferenceTrace:
    """The trace of a request, to be handed on to requests that a model makes."""

    __slots__ = ("__weakref__", "_wire")

    def __init__(self) -> None:
        # (the server's number for it, its context); None where the request is not traced
        self._wire: WireTrace = None

    def get_context(self) -> Optional[str]:
        """The context for other programs: JSON text with a `traceparent`; None without OpenTelemetry."""
        return None if self._wire is None else self._wire[1]


_ANYWHERE = PreferredMemory(MemoryType.TRITONSERVER_MEMORY_CPU)
_NO_TRACE = InferenceTrace()


class InferenceRequest:
    """One request. `timeout` is in microseconds, `correlation_id` an integer or a text, 0 for none.

    The constructor raises TypeError for arguments of the wrong types, TritonModelException for values that do not fit.
    """

    _id: str
    # A plain tuple of the same fields where the request was received
    _options: RequestOptions
    _requested_output_names: bls.Names
    _inputs: List[Tensor]
    # The model that a request of a model asks, and the memory that it prefers, as `bls` has it
    _target: Optional[bls.Target]
    _preferred: Optional[int]
    # Of a received request: makes its sender; set from another thread; for its release
    _create_sender: Optional[Callable[[InferenceRequest], InferenceResponseSender]]
    _cancelled: bool
    _sender: Optional[InferenceResponseSender]
    _release_flags: int
    _trace: WireTrace

    __slots__ = ("__weakref__", *__annotations__)

    # What type checkers see: upstream requires three arguments that follow optional ones.
    @overload
    def __init__(
        self,
        request_id: str = "",
        correlation_id: Union[int, str] = 0,
        *,
        inputs: Sequence[Tensor],
        requested_output_names: Sequence[str],
        model_name: str,
        model_version: int = -1,
        flags: int = 0,
        timeout: int = 0,
        preferred_memory: PreferredMemory = ...,
        trace: InferenceTrace = ...,
        parameters: Optional[params.Parameters] = None,
    ) -> None: ...

    @overload
    def __init__(
        self,
        request_id: str,
        correlation_id: Union[int, str],
        inputs: Sequence[Tensor],
        requested_output_names: Sequence[str],
        model_name: str,
        model_version: int = -1,
        flags: int = 0,
        timeout: int = 0,
        preferred_memory: PreferredMemory = ...,
        trace: InferenceTrace = ...,
        parameters: Optional[params.Parameters] = None,
    ) -> None: ...

    def __init__(
        self,
        request_id: str = "",
        correlation_id: Union[int, str] = 0,
        inputs: Sequence[Tensor] = REQUIRED,
        requested_output_names: Sequence[str] = REQUIRED,
        model_name: str = REQUIRED,
        model_version: int = -1,
        flags: int = 0,
        timeout: int = 0,
        preferred_memory: PreferredMemory = _ANYWHERE,
        trace: InferenceTrace = _NO_TRACE,
        parameters: Optional[params.Parameters] = None,
    ) -> None:
        identifier, model = as_text(request_id), as_text(model_name)
        tensors, names = as_list(inputs), as_text_list(requested_output_names)
        version = as_integer(model_version, INT64_MIN, INT64_MAX)
        bits, timeout_us = as_integer(flags, 0, UINT32_MAX), as_integer(timeout, 0, UINT64_MAX)
        if (
            identifier is None
            or model is None
            or tensors is None
            or names is None
            or version is None
            or bits is None
            or timeout_us is None
            or correlation_id is None
            or not isinstance(preferred_memory, PreferredMemory)
            or not isinstance(trace, InferenceTrace)
            or not all(tensor is None or isinstance(tensor, Tensor) for tensor in tensors)
        ):
            given = {
                "request_id": request_id,
                "correlation_id": correlation_id,
                "inputs": inputs,
                "requested_output_names": requested_output_names,
                "model_name": model_name,
                "model_version": model_version,
                "flags": flags,
                "timeout": timeout,
                "preferred_memory": preferred_memory,
                "trace": trace,
                "parameters": parameters,
            }
            raise incompatible("__init__", _SIGNATURE, (), given)
        if None in tensors or "" in names:
            raise TritonModelException(
                f"{'Input tensor' if None in tensors else 'Requested output name'} for request with id '{identifier}' "
                f"and model name '{model}' should not be empty."
            )
        self._set(
            identifier,
            RequestOptions(
                _correlation_id(correlation_id), bits, timeout_us=timeout_us, parameters=params.checked(parameters)
            ),
            trace._wire,
            names,
            tensors,
            (model, version),
            None,
        )
        self._preferred = None if preferred_memory is _ANYWHERE else preferred_memory._wanted()

    def _set(
        self,
        id: str,
        options: RequestOptions,
        trace: WireTrace,
        requested_output_names: bls.Names,
        inputs: List[Tensor],
        target: Optional[bls.Target],
        create_sender: Optional[Callable[[InferenceRequest], InferenceResponseSender]],
    ) -> None:
        """Makes it a request to `target`, or a received one that `create_sender` gives a sender."""
        self._id = id
        self._options = options
        self._requested_output_names = requested_output_names
        self._inputs = inputs
        self._target = target
        self._create_sender = create_sender
        self._cancelled = False
        self._sender = None
        self._release_flags = 0
        self._trace = trace

    def inputs(self) -> List[Tensor]:
        return list(self._inputs)

    def request_id(self) -> str:
        return self._id

    def _said(self) -> RequestOptions:
        return RequestOptions._make(self._options)

    def correlation_id(self) -> Union[int, str]:
        return self._said().correlation_id

    def flags(self) -> int:
        return self._said().flags

    def set_flags(self, flags: int, /) -> None:
        bits = as_integer(flags, 0, UINT32_MAX)
        if bits is None:
            raise incompatible("set_flags", "(self: InferenceRequest, arg0: int) -> None", (self, flags))
        self._options = self._said()._replace(flags=bits)

    def timeout(self) -> int:
        """Microseconds, 0 for none."""
        return self._said().timeout_us

    def parameters(self) -> str:
        """The parameters as JSON text, `{}` if there are none."""
        if self._target is None:
            return params.received_json(self._said().parameters)
        return params.given_json(self._said().parameters)

    def requested_output_names(self) -> Set[str]:
        return set(self._requested_output_names)

    def trace(self) -> InferenceTrace:
        trace = InferenceTrace()
        trace._wire = self._trace
        return trace

    def is_cancelled(self) -> bool:
        """Whether the client has gone. Does not ask the server."""
        return self._cancelled or (self._sender is not None and self._sender.is_cancelled())

    def set_release_flags(self, flags: int, /) -> None:
        bits = as_integer(flags, 0, UINT32_MAX)
        if bits is None:
            raise incompatible("set_release_flags", "(self: InferenceRequest, arg0: int) -> None", (self, flags))
        self._release_flags = bits

    def get_response_sender(self) -> InferenceResponseSender:
        """The same object on every call, from any thread."""
        if self._sender is None:
            with _creating:
                if self._sender is None:
                    made = sender.blank(None) if self._create_sender is None else self._create_sender(self)
                    # Another thread sets it, and looks for the sender only after that.
                    if self._cancelled:
                        made._cancelled = True
                    self._sender = made
        return self._sender

    @overload
    def exec(self, decoupled: Literal[False] = False) -> InferenceResponse: ...
    @overload
    def exec(self, decoupled: Literal[True]) -> bls.ResponseIterator: ...
    @overload
    def exec(self, decoupled: bool) -> Union[InferenceResponse, bls.ResponseIterator]: ...
    def exec(self, decoupled: bool = False) -> Any:
        """Sends the request to its model and waits: the InferenceResponse or, with `decoupled`, a ResponseIterator.

        Failures are responses with an error. Raises TritonModelException in `initialize` and in `finalize`.
        """
        return bls.execute(*self._outgoing(), _truth("exec", self, decoupled))

    @overload
    def async_exec(self, decoupled: Literal[False] = False) -> asyncio.Future[InferenceResponse]: ...
    @overload
    def async_exec(self, decoupled: Literal[True]) -> asyncio.Future[bls.ResponseIterator]: ...
    @overload
    def async_exec(self, decoupled: bool) -> asyncio.Future[Union[InferenceResponse, bls.ResponseIterator]]: ...
    def async_exec(self, decoupled: bool = False) -> Any:
        """As `exec`, to be awaited. Raises RuntimeError where no event loop runs."""
        return bls.async_execute(*self._outgoing(), _truth("async_exec", self, decoupled))

    def _outgoing(self) -> Tuple[bls.Target, bls.Request]:
        return self._target or ("", -1), (
            self._id,
            self._options,
            self._trace,
            self._requested_output_names,
            self._inputs,
            None if self._target is None else self._preferred,
        )


def get_input_tensor_by_name(inference_request: InferenceRequest, name: str) -> Optional[Tensor]:
    """The request's input of that name, or None."""
    for tensor in inference_request.inputs():
        if tensor.name() == name:
            return tensor
    return None


def _truth(function: str, request: InferenceRequest, given: Any) -> bool:
    """The truth of an argument of a type that has one (text has none), or of None. Raises TypeError."""
    if given is not None and not hasattr(type(given), "__bool__"):
        raise incompatible(function, "(self: InferenceRequest, decoupled: bool = False) -> object", (request, given))
    return bool(given)


def _correlation_id(given: Any) -> Union[int, str]:
    if isinstance(given, str):
        if as_text(given) is None:
            raise TritonModelException(f"Correlation ID has characters that UTF-8 cannot encode: {given!r}")
        return given
    if not isinstance(given, int):
        raise TritonModelException("Correlation ID must be integer or string")
    if not 0 <= given <= UINT64_MAX:
        raise TritonModelException(f"Correlation ID must be from 0 to 2**64 - 1, got {given}")
    return int(given)


_creating = threading.Lock()
