"""What a worker and the owner say to each other over the worker's rings: tuples in msgpack, as between server and stub.

::

    worker ▶ owner   (CALL, call, model, version, request, released)
    worker ▶ owner   (CANCEL, call)
    worker ▶ owner   (RELEASED, offsets)
    worker ▶ owner   (DESCRIBE, model, version)
    owner ▶ worker   (call, final, response, frees)

    request      (id, correlation_id, flags, priority, timeout_us, parameters, requested_outputs, inputs, start_ns,
                 trace_context, description, batch_size, client, regions)
    description, batch_size  of the request are 0 where nothing has been checked
    client       who asks, where clients are told apart (`protocols.fair_queues`), or None
    regions      None, or for a request that refers to clients' shared memory where outputs are to go: (output, region,
                 offset, nbytes) of each
    response     (error, outputs, parameters); of call 0 a description, or None for nothing but the frees
    error        (message, code, retry_after_s, refused), or None; `refused` says that the model has not had the request
    description  (model, version, state, number, config, version_number, labels); `version` as requests have it
    tensor, place, frees, released: as in `stubserve_stub.wire.messages`

Over the control socket go dicts, as with a stub; over a third socket, descriptors: connections of clients to the
worker, and the owner's end of the socket pair for a request that is passed on.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from typing import Any, Protocol

from stubserve_stub.wire.messages import WireTensor, pack

CALL = 1
CANCEL = 2
RELEASED = 3
DESCRIBE = 4

# So many models a worker knows at most; others it passes on. A number can be written in any number of ways.
MOST_DESCRIBED = 4096

WireRequest = tuple[
    str, "int | str", int, int, int, "dict[str, Any] | None", "Sequence[str] | None", Sequence[WireTensor], int,
    "str | None", int, int, Hashable, "Sequence[tuple[str, int, int, int]] | None",
]  # fmt: skip
WireError = tuple[str, int, int, bool]
Description = tuple[str, str, int, int, bytes, int, "dict[str, list[str]]"]


class WorkerListener(Protocol):
    """Who hears what a worker says."""

    def on_call(self, call: int, model: str, version: str, request: WireRequest, released: Sequence[int]) -> None:
        """A request of a client."""

    def on_cancel(self, call: int) -> None:
        """Its client has gone."""

    def on_released(self, offsets: Sequence[int]) -> None:
        """These outputs have been sent."""

    def on_describe(self, model: str, version: str) -> None:
        """The worker wants to know of a model."""


def handlers_of_owner(listener: WorkerListener) -> dict[int, Callable[..., None]]:
    """The methods that `deliver` calls."""
    return {
        CALL: listener.on_call,
        CANCEL: listener.on_cancel,
        RELEASED: listener.on_released,
        DESCRIBE: listener.on_describe,
    }


def pack_call(call: int, model: str, version: str, request: WireRequest, released: Sequence[int]) -> bytes:
    return pack((CALL, call, model, version, request, released))


def pack_cancel(call: int) -> bytes:
    return pack((CANCEL, call))


def pack_released(offsets: Sequence[int]) -> bytes:
    return pack((RELEASED, offsets))


def pack_describe(model: str, version: str) -> bytes:
    return pack((DESCRIBE, model, version))
