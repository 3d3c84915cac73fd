"""The access log of gRPC: a line for each call when it ends.

The line has the model that the call's first message names, the time from the call's beginning to its end, and the bytes
of its messages. A `LoggedRpc` stands between the service and the transport: for each of the two it acts as the other.
So both transports log the same lines, and without an access log nothing stands between them.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from functools import partial
from itertools import islice

from stubserve.api.access_log import log_answer
from stubserve.errors import ServeError
from stubserve.grpc.transport import CANCELLED, OK, Answer, Handler, Keep, Making, Metadata, Method, Parts, Rpc
from stubserve.grpc.wire import LENGTH, Malformed, fields
from stubserve.inference.long_work import LongWork
from stubserve.memory.blocks import Block

_NAMES = (
    "OK", "CANCELLED", "UNKNOWN", "INVALID_ARGUMENT", "DEADLINE_EXCEEDED", "NOT_FOUND", "ALREADY_EXISTS",
    "PERMISSION_DENIED", "RESOURCE_EXHAUSTED", "FAILED_PRECONDITION", "ABORTED", "OUT_OF_RANGE", "UNIMPLEMENTED",
    "INTERNAL", "UNAVAILABLE", "DATA_LOSS", "UNAUTHENTICATED",
)  # fmt: skip
# Per message type, the fields that name something: number -> name
_MODEL_FIRST, _MODEL_SECOND = {1: "model", 2: "version"}, {2: "model"}
_NAMING = {
    "ModelInfer": {**_MODEL_FIRST, 3: "id"},
    "ModelStreamInfer": _MODEL_FIRST,
    "ModelReady": _MODEL_FIRST,
    "ModelMetadata": _MODEL_FIRST,
    "ModelConfig": _MODEL_FIRST,
    "ModelStatistics": _MODEL_FIRST,
    "RepositoryModelLoad": _MODEL_SECOND,
    "RepositoryModelUnload": _MODEL_SECOND,
    "TraceSetting": _MODEL_SECOND,
}
_MOST_FIELDS = 32
_LONGEST_NAME = 256


class LoggedRpc:
    """A call of the RPC at `path`: for its transport the handler that `method` opens, for that handler the call."""

    __slots__ = ("_began_ns", "_call", "_handler", "_names", "_over", "_path", "_received", "_sent", "peer")

    def __init__(self, method: Method, path: str, call: Rpc) -> None:
        self._path = path
        self._call = call
        # Read now: the C core forgets the peer when the call is over.
        self.peer = call.peer
        self._began_ns = time.monotonic_ns()
        self._names: dict[str, str] = {}
        self._received = self._sent = 0
        self._over = False
        # None when the call is over, because handler and call refer to each other
        self._handler: Handler | None = None
        handler = method.open(self)
        if not self._over:
            self._handler = handler

    # For the transport

    def on_message(self, data: bytes | memoryview, block: Block | None = None, offset: int = 0) -> None:
        self._received += len(data)
        if not self._names:
            self._names = names_in(self._path, data)
        if self._handler is not None:
            self._handler.on_message(data, block, offset)

    def on_half_close(self) -> None:
        if self._handler is not None:
            self._handler.on_half_close()

    def on_writable(self) -> None:
        if self._handler is not None:
            self._handler.on_writable()

    def on_cancel(self) -> None:
        handler = self._handler
        ended = self._call.ended
        self._end(CANCELLED if ended is None else ended)
        if handler is not None:
            handler.on_cancel()

    def stop(self) -> None:
        if self._handler is not None:
            self._handler.stop()

    # For the handler

    @property
    def ended(self) -> int | None:
        return self._call.ended

    def metadata(self) -> Metadata:
        return self._call.metadata()

    def reply(self, answer: Answer, blocks: Sequence[Block]) -> None:
        self._call.reply(self._counted(answer, True), blocks)
        if not callable(answer):
            self._end(OK)

    def send(self, answer: Answer, blocks: Sequence[Block]) -> bool:
        return self._call.send(self._counted(answer, False), blocks)

    def finish(self, status: int, message: str = "") -> None:
        self._call.finish(status, message)
        self._end(status)

    def pause_reading(self) -> None:
        self._call.pause_reading()

    def resume_reading(self) -> None:
        self._call.resume_reading()

    # The line

    def _counted(self, answer: Answer, ends: bool) -> Answer:
        """Counts a message's bytes, now or when the message is made; `ends` says whether the call ends with it."""
        if callable(answer):
            return partial(self._made, answer, ends)
        self._sent += sum(map(len, answer))
        return answer

    def _made(self, making: Making, ends: bool, keep: Keep) -> LongWork[Parts]:
        status = CANCELLED
        try:
            parts = yield from making(keep)
            self._sent += sum(map(len, parts))
            status = OK
            return parts
        except ServeError as error:
            status = error.code.grpc_status
            raise
        finally:
            if ends:
                self._end(status)

    def _end(self, status: int) -> None:
        if self._over:
            return
        self._over = True
        self._handler = None
        log_answer(
            self.peer,
            f"{self._path} HTTP/2",
            _NAMES[status] if 0 <= status < len(_NAMES) else status,
            self._names,
            self._began_ns,
            self._received,
            self._sent,
        )


def names_in(path: str, message: bytes | memoryview) -> dict[str, str]:
    """The model, version and id in a message to an RPC; only those that the message has in valid form."""
    names: dict[str, str] = {}
    naming = _NAMING.get(path.rpartition("/")[2])
    if naming is None:
        return names
    try:
        for tag, _, content, end in islice(fields(message), _MOST_FIELDS):
            name = naming.get(tag >> 3) if tag & 7 == LENGTH else None
            if name is not None:
                names[name] = str(message[content : min(end, content + _LONGEST_NAME)], "utf-8", "replace")
    except Malformed:
        pass
    return names
