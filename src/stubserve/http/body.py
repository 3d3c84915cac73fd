"""Large inference bodies: received into the arena, or not received at all."""

from __future__ import annotations

from collections.abc import Hashable

from stubserve_stub.wire.layout import ALIGNMENT

from stubserve.api.inference_server import InferenceServer
from stubserve.connections.arrival import ArenaArrival
from stubserve.connections.slow_clients import Owner
from stubserve.errors import ServeError, invalid
from stubserve.http.head import RequestHead
from stubserve.http.limits import LIMIT_HINT

# Content-Length is parsed as a 32-bit number upstream.
MAX_BODY_BYTES = 2**31 - 1


def place(server: InferenceServer, head: RequestHead, connection: Hashable, owner: Owner) -> ArenaArrival:
    """Where a body of known length is received in the arena.

    Raises ServeError (503) when there is no memory for it.
    """
    return server.arrivals.into_arena(connection, owner, head.content_length, start(head))


def start(head: RequestHead) -> int:
    """Where in its block a body begins.

    The JSON header's length is known before the first byte, so the body is placed such that what follows the header,
    the first tensor, begins at a multiple of ALIGNMENT.
    """
    text = head.header_length or b""
    json_length = int(text) if text.isdigit() and len(text) < 20 else 0
    return -json_length % ALIGNMENT


def refusal(head: RequestHead, server: InferenceServer) -> ServeError | None:
    """Whether a body that is still to come can only end in an error; then there is no reason to collect it."""
    assert head.infer is not None
    if head.content_length > MAX_BODY_BYTES:
        return invalid(
            "Unable to parse Content-Length, value is out of range "
            f"[ {-MAX_BODY_BYTES - 1}, {MAX_BODY_BYTES} ], got: {head.content_length}"
        )
    try:
        server.find_model(*head.infer)
    except ServeError as error:
        return error.with_traceback(None)  # for that knows who asks
    limit = server.max_input_size
    if head.header_length is None and head.content_length > limit:
        return invalid(
            f"request JSON size of {head.content_length} bytes exceeds the maximum allowed input size of {limit} "
            f"bytes. {LIMIT_HINT}"
        )
    return None
