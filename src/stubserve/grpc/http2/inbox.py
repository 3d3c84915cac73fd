"""The bytes that a client sends on one stream, put together to messages.

A short message is bytes, and takes memory as it comes; all that are unfinished share one small room in the heap. Any
other is received into the arena by the rules of `protocols.arrival`: what its prefix claims takes no memory from
anybody, and it is placed so that its first raw tensor is aligned.
"""

from __future__ import annotations

import logging
from collections.abc import Hashable, Iterator
from typing import NamedTuple, Protocol

from stubserve_stub.wire.layout import ALIGNMENT

from stubserve.api.inference_server import InferenceServer
from stubserve.connections.arrival import ArenaArrival
from stubserve.connections.slow_clients import Owner
from stubserve.connections.stall import StallWatch
from stubserve.errors import ServeError
from stubserve.grpc.http2.frames import MAX_WINDOW
from stubserve.grpc.infer_decode import first_raw
from stubserve.grpc.transport import INTERNAL, MAX_MESSAGE_BYTES, RESOURCE_EXHAUSTED, UNIMPLEMENTED
from stubserve.memory.blocks import Block

log = logging.getLogger("stubserve.grpc")

PREFIX_BYTES = 5
# How much a client may send on a stream before the server has taken it.
RECEIVE_WINDOW = 2 << 20
# Longer messages go to the arena, and so do all when unfinished ones may already have this much of the heap.
SMALL_BYTES = 64 * 1024
ROOM_BYTES = 16 << 20
# An arrival is told of what has come in such steps: a frame brings 16 KiB, and looking at the clock for each costs more
# than copying it.
_REPORTED_BYTES = 128 * 1024


class MessageRefusal(Exception):
    """The stream's messages cannot be taken; ends the RPC with `status`."""

    def __init__(self, status: int, text: str) -> None:
        super().__init__(text)
        self.status = status


class Message(NamedTuple):
    """One message. Where it lies in the arena, `block` is held once for whoever takes the message."""

    data: bytes | memoryview
    block: Block | None = None
    offset: int = 0
    compressed: bool = False

    def drop(self) -> None:
        """Drops the hold of its block."""
        if self.block is not None:
            self.block.drop()


class SmallRoom:
    """The heap that the unfinished short messages of a server share: `left` is what they do not claim."""

    __slots__ = ("left",)

    def __init__(self) -> None:
        self.left = ROOM_BYTES


class InboxOwner(Owner, Protocol):
    """What an inbox tells its stream."""

    def stalled(self) -> None:
        """The client has begun a message and does not send the rest of it, or too slowly."""
        ...


class Inbox:
    """The inbox of one stream. `encoding` is what its compressed messages are compressed with; no message may be longer
    than `max_bytes`. `connection` and `owner` are whose the messages are while they arrive."""

    __slots__ = (
        "_arrival",
        "_compressed",
        "_connection",
        "_encoding",
        "_filled",
        "_length",
        "_max_bytes",
        "_owner",
        "_prefix",
        "_ready",
        "_room",
        "_server",
        "_small",
        "_watch",
        "bytes_received",
        "watched",
    )

    def __init__(
        self,
        server: InferenceServer,
        room: SmallRoom,
        connection: Hashable,
        owner: InboxOwner,
        encoding: str = "identity",
        max_bytes: int = MAX_MESSAGE_BYTES,
    ) -> None:
        self._server = server
        self._room = room
        self._connection = connection
        self._owner: InboxOwner | None = owner
        self._encoding = encoding
        self._max_bytes = max_bytes
        self._prefix = b""
        # The message at hand: its length, -1 between messages, what has come of it, and where that is
        self._length = -1
        self._filled = 0
        self._small: bytearray | None = None
        self._arrival: ArenaArrival | None = None
        self._ready = 0
        self._compressed = False
        # All bytes so far, and the watch that they go on
        self.bytes_received = 0
        self._watch: StallWatch | None = None
        self.watched = False

    @property
    def partial(self) -> bool:
        """Whether a message has begun to arrive."""
        return self._length >= 0 or bool(self._prefix)

    @property
    def missing(self) -> int:
        """What is still to come of the large message at hand; 0 without one."""
        return 0 if self._arrival is None else self._length - self._filled

    def feed(self, data: memoryview) -> Iterator[Message]:
        """Takes the payload of a DATA frame; gives the messages that it completes. Raises MessageRefusal."""
        self.bytes_received += len(data)
        at, end = 0, len(data)
        while at < end:
            if self._length < 0:
                if self._prefix or end - at < PREFIX_BYTES:
                    missing = PREFIX_BYTES - len(self._prefix)
                    self._prefix += bytes(data[at : at + missing])
                    at += missing
                    if len(self._prefix) < PREFIX_BYTES:
                        return
                    prefix: bytes | memoryview = self._prefix
                    self._prefix = b""
                else:
                    prefix = data[at : at + PREFIX_BYTES]
                    at += PREFIX_BYTES
                length = int.from_bytes(prefix[1:], "big")
                self._compressed = prefix[0] != 0 and self._is_compressed(prefix[0])
                if length > self._max_bytes:
                    raise MessageRefusal(
                        RESOURCE_EXHAUSTED, f"Received message larger than max ({length} vs. {self._max_bytes})"
                    )
                if length <= end - at:
                    # All of it is here; the usual case.
                    content = bytes(data[at : at + length])
                    at += length
                    yield Message(content, None, 0, self._compressed)
                    continue
                self._begin(length, data[at:end])
            take = min(self._length - self._filled, end - at)
            if self._small is not None:
                self._small += data[at : at + take]
            else:
                self._place(data[at : at + take])
            self._filled += take
            at += take
            if self._filled == self._length:
                yield self._finish()

    def may_go_on(self, window: int) -> int:
        """How much more the client may send on a stream whose window has so much left, once it has used half of it.

        It may send the whole of a large message at once: there is a place for that already.
        """
        more = min(RECEIVE_WINDOW + self.missing, MAX_WINDOW) - window
        return more if more >= RECEIVE_WINDOW // 2 else 0

    def has_to_go_on(self, watch: StallWatch | None) -> None:
        """Has somebody watch that the message at hand goes on, if there is one; or nobody, where the client may not."""
        if not self.partial:
            watch = None
        before, self._watch = self._watch, watch
        if before is watch:
            return
        if before is not None:
            before.unwatch(self)
        self.watched = watch is not None
        if watch is not None:
            watch.watch(self)

    def stalled(self) -> None:
        assert self._watch is not None
        log.info(
            "ending an RPC whose message did not arrive completely: it fell behind --request-min-rate=%d or took "
            "longer than --request-timeout-secs=%d",
            *self._watch.pace,
        )
        assert self._owner is not None
        self._owner.stalled()

    def drop(self) -> None:
        """Nothing more comes."""
        arrival = self._arrival
        self._forget()
        if arrival is not None:
            arrival.drop()

    def close(self) -> None:
        """The stream is closed, and not known here any more."""
        if self._length >= 0:
            self.drop()
        if self.watched:
            self.has_to_go_on(None)
        self._owner = None

    def _forget(self) -> None:
        """The message at hand is somebody else's now, or nobody's."""
        if self._small is not None:
            self._room.left += self._length
        self._length = -1
        self._small = self._arrival = None

    def _is_compressed(self, flag: int) -> bool:
        if flag > 1:
            raise MessageRefusal(
                INTERNAL, f"a message begins with the byte {flag}, where 0 means plain and 1 compressed"
            )
        if flag and self._encoding == "identity":
            raise MessageRefusal(INTERNAL, "a message is marked as compressed, but the call has no grpc-encoding")
        if flag and self._encoding not in ("gzip", "deflate"):
            raise MessageRefusal(UNIMPLEMENTED, f"Unsupported grpc-encoding: {self._encoding}")
        return flag == 1

    def _begin(self, length: int, beginning: memoryview) -> None:
        if length <= SMALL_BYTES and length <= self._room.left:
            self._room.left -= length
            self._small = bytearray()
        else:
            start = 0 if self._compressed else -first_raw(beginning) % ALIGNMENT
            try:
                assert self._owner is not None
                self._arrival = self._server.arrivals.into_arena(self._connection, self._owner, length, start)
            except ServeError as error:
                raise _refused(error) from None
            self._ready = self._arrival.ready
        self._length = length
        self._filled = 0

    def _place(self, data: memoryview) -> None:
        """Writes a part of the message at hand into the arena."""
        arrival = self._arrival
        assert arrival is not None
        end = self._filled + len(data)
        try:
            if end > self._ready:
                arrival.advance(self._filled - arrival.moved)
                arrival.add(data)
            else:
                arrival.view[self._filled : end] = data
                if end - arrival.moved < _REPORTED_BYTES and end < self._length:
                    return
                arrival.advance(end - arrival.moved)
        except ServeError as error:
            raise _refused(error) from None
        self._ready = arrival.ready

    def _finish(self) -> Message:
        arrival = self._arrival
        if arrival is None:
            assert self._small is not None
            message = Message(bytes(self._small), None, 0, self._compressed)
        else:
            message = Message(arrival.view, arrival.block, arrival.offset, self._compressed)
        self._forget()
        return message


def _refused(error: ServeError) -> MessageRefusal:
    return MessageRefusal(error.code.grpc_status, error.message)
