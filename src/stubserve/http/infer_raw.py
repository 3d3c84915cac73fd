"""Raw mode: a body without JSON is the bytes of the model's only input."""

# Compiled by mypyc.
from __future__ import annotations

from math import prod

from stubserve_stub.wire.datatypes import BYTES

from stubserve.api.placement import BodyPlacer, ReplyFormat
from stubserve.http.body import too_large
from stubserve.inference.admission import size_mismatch
from stubserve.inference.request import Request, refusal
from stubserve.inference.signature import Signature

# Upstream's name for the input in errors about its size
RAW_INPUT = "raw_input"
_NO_ID = ""


def decode_raw(
    body: bytes | memoryview, signature: Signature, placer: BodyPlacer, max_input_size: int
) -> tuple[Request, ReplyFormat]:
    """The request that a raw body makes; the input's shape follows from the body's size."""
    if len(signature.inputs) != 1:
        raise refusal(
            _NO_ID,
            f"Raw request must only have 1 input (found 1) to be deduced but got {len(signature.inputs)} inputs in "
            f"'{signature.model}' model configuration",
        )
    if placer.size > max_input_size:
        raise too_large("Raw input", placer.size, max_input_size)
    (known,) = signature.inputs.values()
    if known.dims.count(-1) > 1:
        raise refusal(
            _NO_ID,
            f"The shape of the raw input '{known.name}' can not be deduced because there are more than one "
            "variable-sized dimension",
        )
    dims = known.dims
    if known.is_bytes:
        if known.elements != 1:
            raise refusal(_NO_ID, f"For BYTE datatype raw input '{known.name}', the model must have input shape [1]")
        content = placer.put(known.name, BYTES, dims, b"".join((placer.size.to_bytes(4, "little"), body)))
    else:
        fixed = prod(dim for dim in dims if dim != -1) * known.itemsize
        if known.elements is None:
            dims = tuple([placer.size // fixed if dim == -1 and fixed else dim for dim in dims])
        expected = prod(dims) * known.itemsize
        if placer.size != expected:
            raise size_mismatch(_NO_ID, RAW_INPUT, signature, expected, placer.size)
        content = placer.slice(known.name, known.datatype, dims, 0, placer.size)
    if signature.max_batch_size:
        content.shape = (1, *dims)
    return Request([content]), ReplyFormat(None, True)
