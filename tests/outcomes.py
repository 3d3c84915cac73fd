"""What becomes of a request that is read: one value, to be compared."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from stubserve.api.placement import ReplyFormat
from stubserve.errors import ServeError
from stubserve.inference.admission import admit
from stubserve.inference.request import Request
from stubserve.inference.signature import Signature
from stubserve.inference.tensor import drop_blocks


def outcome(read: Callable[[], tuple[Request, ReplyFormat]], model: Signature) -> Any:
    """All that a client or the model could tell requests apart by, or how the request is refused."""
    try:
        request, reply_format = read()
    except ServeError as error:
        return error.code, error.message
    try:
        admit(request, model)
        inputs = [(made.name, made.datatype, tuple(made.shape), bytes(made.buffer)) for made in request.inputs]
    except ServeError as error:
        return error.code, error.message
    finally:
        drop_blocks(request.inputs)
    *said, parameters = request.options
    others = (request.id, *said)
    # Where a parameter is no number it equals nothing, so they are compared as text.
    return inputs, others, repr(parameters), request.requested_outputs, request.batch_size, reply_format
