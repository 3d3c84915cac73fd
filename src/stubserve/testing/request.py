"""Requests as a test writes them, their translation to the form that a stub receives, and the check of responses."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from stubserve_stub.api import tensors as stub
from stubserve_stub.wire.datatypes import BY_NUMBER, fits
from stubserve_stub.wire.options import RequestOptions

from stubserve.inference.admission import admit
from stubserve.inference.request import Request as Admitted
from stubserve.inference.signature import Signature, TensorSignature
from stubserve.inference.tensor import Tensor


@dataclass(frozen=True)
class Request:
    """One request.

    `inputs` are arrays by name (lists become arrays of the configured type, text becomes BYTES) or pb_utils.Tensor.
    `outputs` are the names of the requested outputs, None for all. `timeout_us` is in microseconds. `cancelled` is the
    answer when the model asks whether the request is cancelled.
    """

    inputs: Mapping[str, Any]
    outputs: Sequence[str] | None = None
    id: str = ""
    correlation_id: int | str = 0
    flags: int = 0
    timeout_us: int = 0
    parameters: Mapping[str, bool | int | float | str] | None = None
    cancelled: bool = False


class OutputNames(list[str]):
    """The outputs that a request asks for. Collects unknown names of outputs, which a server drops silently."""

    def __init__(self, names: Sequence[str], configured: Collection[str]) -> None:
        super().__init__(names)
        self._configured = configured
        self.unknown: list[str] = []

    def __contains__(self, name: object) -> bool:
        if name not in self._configured:
            self.unknown.append(str(name))
        return super().__contains__(name)


@dataclass(frozen=True)
class Prepared:
    """An admitted request: in the form of the stub's messages, and with what its responses are checked against."""

    wire: tuple[Any, ...]
    names: OutputNames
    rows: int
    cancelled: bool


def prepare(request: Request | Mapping[str, Any], signature: Signature, states: Collection[str] = ()) -> Prepared:
    """Makes the server's checks; `states` are outputs kept for the sequence. Raises ServeError with a client's text."""
    if not isinstance(request, Request):
        request = Request(request)
    inputs = [_tensor(name, value, signature.inputs.get(name)) for name, value in request.inputs.items()]
    admitted = Admitted(
        inputs,
        request.id,
        RequestOptions(
            request.correlation_id,
            request.flags,
            timeout_us=request.timeout_us,
            parameters=dict(request.parameters) if request.parameters else None,
        ),
        None if request.outputs is None else list(request.outputs),
    )
    admit(admitted, signature)
    names = OutputNames(request.outputs or list(signature.outputs), {*signature.outputs, *states})
    wire = (
        admitted.id,
        admitted.options,
        None,  # nothing is traced
        names,
        [(tensor.name, tensor.datatype, tensor.shape, tensor.data) for tensor in inputs],
    )
    return Prepared(wire, names, admitted.batch_size, request.cancelled)


def _tensor(name: str, value: Any, known: TensorSignature | None) -> Tensor:
    if not isinstance(value, stub.Tensor):
        array = value if isinstance(value, np.ndarray) else np.asarray(value, _dtype(value, known))
        value = stub.Tensor(name, array.astype(np.object_) if array.dtype.kind == "U" else array)
    datatype, shape, buffer = value._payload()
    return Tensor(name, datatype, shape, buffer.tobytes() if isinstance(buffer, np.ndarray) else bytes(buffer))


def _dtype(value: Any, known: TensorSignature | None) -> Any:
    # Objects with a type of their own, torch's tensors for instance, keep it.
    if known is None or known.datatype not in BY_NUMBER or hasattr(value, "dtype"):
        return None
    return BY_NUMBER[known.datatype].numpy


def check_response(signature: Signature, request: Prepared, index: int, wire: Any) -> None:
    """Checks that a response fits the configuration: a server does not, and a client may fail on it.

    Raises AssertionError that names the model, the request and the output.
    """
    error, outputs, _ = wire
    if error is not None:
        return
    where = f"model '{signature.model}', request {index}"
    if request.names.unknown:
        raise AssertionError(
            f"{where}: the response has an output '{request.names.unknown[0]}', but the configuration only has "
            f"{list(signature.outputs)}. A server drops it."
        )
    for name, datatype, shape, _ in outputs:
        known = signature.outputs[name]
        if datatype != known.datatype:
            raise AssertionError(
                f"{where}: output '{name}' is of type {BY_NUMBER[datatype].name}, "
                f"its configuration says {BY_NUMBER[known.datatype].name}"
            )
        dims = list(known.dims if known.reshape is None else known.reshape)
        if signature.max_batch_size:
            # A decoupled model may answer a batch in pieces.
            dims.insert(0, -1 if signature.decoupled else request.rows)
        if not fits(shape, dims):
            raise AssertionError(f"{where}: output '{name}' has shape {list(shape)}, expected {dims}")
    missing = [name for name in list(request.names) if name not in {output[0] for output in outputs}]
    if missing and not signature.decoupled:
        raise AssertionError(
            f"{where}: the response has no output '{missing[0]}', only {[output[0] for output in outputs]}"
        )
