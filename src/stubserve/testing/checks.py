"""What a model's responses must look like by its configuration. A server does not check it; a client may stumble."""

from __future__ import annotations

from typing import Any

from stubserve_stub.wire.datatypes import BY_NUMBER

from stubserve.inference.signature import Signature
from stubserve.testing.request import Prepared


def check_response(signature: Signature, request: Prepared, index: int, wire: Any) -> None:
    """Raises AssertionError, naming the model, the request and the output."""
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
        if len(shape) != len(dims) or any(dim not in (-1, size) for size, dim in zip(shape, dims, strict=True)):
            raise AssertionError(f"{where}: output '{name}' has shape {list(shape)}, expected {dims}")
    missing = [name for name in list(request.names) if name not in {output[0] for output in outputs}]
    if missing and not signature.decoupled:
        raise AssertionError(
            f"{where}: the response has no output '{missing[0]}', only {[output[0] for output in outputs]}"
        )
