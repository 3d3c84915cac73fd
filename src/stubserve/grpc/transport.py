"""What passes between the service and the transport. The transport speaks HTTP/2; the service never sees it.

For each RPC the transport asks the service for the method by its path, opens a handler with a call, and tells the
handler what the client sends. The handler answers through the call, at once or later. Everything happens on the event
loop. Messages are raw: bytes of protobuf.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol

from stubserve.errors import ServeError, internal
from stubserve.grpc.wire import Malformed
from stubserve.inference.long_work import LongWork
from stubserve.memory.blocks import Block

log = logging.getLogger("stubserve.grpc")

OK = 0
CANCELLED = 1
DEADLINE_EXCEEDED = 4
RESOURCE_EXHAUSTED = 8
UNIMPLEMENTED = 12
INTERNAL = 13
UNAVAILABLE = 14

MAX_MESSAGE_BYTES = 2**31 - 1

# Lines of a verbose log, with an RPC's path
REQUEST_LINE = "gRPC request: %s"
CANCELLATION_LINE = "Cancellation notification received for %s"

Parts = Sequence["bytes | memoryview"]
# Called with a number of bytes before they are kept in the heap; raises ServeError if memory is short.
Keep = Callable[[int], None]
# Makes a message, in steps.
Making = Callable[[Keep], LongWork[Parts]]
# A message, or the work that makes it
Answer = Parts | Making
Metadata = Sequence[tuple[str, "str | bytes"]]


def end_of(error: BaseException, doing: str = "request was handled") -> tuple[int, str]:
    """Status and text with which an error ends its RPC. Logs an error of our own."""
    if isinstance(error, Malformed):
        return error.status, error.text
    if not isinstance(error, ServeError):
        log.error("unexpected error while the %s", doing, exc_info=error)
        error = internal(f"unexpected error while the {doing}; see the server's log")
    return error.code.grpc_status, error.message


def values_of(metadata: Metadata, name: str) -> list[bytes]:
    """The values of a key; `name` is in lower case."""
    return [value if isinstance(value, bytes) else value.encode() for key, value in metadata if key == name]


class Rpc(Protocol):
    """One RPC, for the service. After `reply` or `finish` nothing may be sent; cancelled calls ignore everything."""

    @property
    def peer(self) -> str:
        """The client's `<address>:<port>`."""

    @property
    def ended(self) -> int | None:
        """The status with which the RPC has ended, from either side; None while it goes on."""

    def metadata(self) -> Metadata:
        """The client's metadata, keys in lower case."""

    def reply(self, answer: Answer, blocks: Sequence[Block]) -> None:
        """Sends the one message of a unary RPC, and success. The blocks are only promised until this returns.

        If making the message raises ServeError, the RPC ends with that error.
        """

    def send(self, answer: Answer, blocks: Sequence[Block]) -> bool:
        """Sends one message of several; later messages wait for a message that is still to be made.

        False if the client reads slowly: `on_writable` tells when to go on. Messages sent before that are kept, so a
        caller that does not wait makes the server grow.
        """

    def finish(self, status: int, message: str = "") -> None: ...

    def pause_reading(self) -> None:
        """Takes no further messages until `resume_reading`; those already on their way may still come."""

    def resume_reading(self) -> None: ...


class Handler(Protocol):
    """One RPC, for the transport. A handler that inherits this ignores the events that it does not override."""

    def on_message(self, data: bytes | memoryview, block: Block | None = None, offset: int = 0) -> None:
        """A message of the client. If it lies in the arena, `block` is promised until this returns."""
        return

    def on_half_close(self) -> None:
        """The client sends no more. Not called for unary RPCs: their one message implies it."""
        return

    def on_writable(self) -> None:
        """The client has caught up."""
        return

    def on_cancel(self) -> None:
        """The client is gone, or its deadline has passed."""
        return

    def stop(self) -> None:
        """The server stops: an RPC that goes on until its client ends it ends once its current work is done."""
        return


# Looks at a large message; if it has to be rewritten first, gives the work that does so, in pieces.
Rewrite = Callable[["bytes | memoryview"], "Making | None"]


class Method(NamedTuple):
    """One RPC of the service. A `unary` RPC gets one message; `infers` says that its replies may be compressed.

    The handler gets the result of `rewrite` in place of a large message. No message may be longer than `max_bytes`.
    """

    open: Callable[[Rpc], Handler]
    unary: bool
    infers: bool = False
    rewrite: Rewrite | None = None
    max_bytes: int = MAX_MESSAGE_BYTES
