"""Messages that are arriving: the memory that they may hold, and the time that they may take.

A client that announces a large message has sent none of it yet. With these rules it takes no memory away from clients
that send, whatever it announces and however slowly it sends:

- Memory is committed as bytes arrive: a little at first, and then ahead of the arrived bytes by as many again, at most
  by MOST_AHEAD. Announced bytes take only address space.
- A slow message yields when memory is short (`slow_clients`).
- A message that arrives at less than a minimum rate, or not within a deadline, is given up in any case.
- A share of --shm-limit bounds what one connection holds for unfinished messages beside its first.

Costs: one clock reading per read if the message's block is warm (see the stub's `wire.allocator`); for other messages
two microseconds per step of growth, of which a message of 4 MiB takes eight.
"""

# Compiled by mypyc.
from __future__ import annotations

from collections.abc import Hashable

from stubserve.connections.slow_clients import Owner, SlowClients, Transfer
from stubserve.errors import ServeError, overloaded, unavailable
from stubserve.memory.heap_account import HeapShare
from stubserve.memory.server_memory import Memory

FIRST_AHEAD = 64 * 1024
MOST_AHEAD = 1024 * 1024


class ReceiveBuffers:
    """All messages of a server that are arriving. `share` is how much one connection may hold for them (bytes)."""

    def __init__(self, memory: Memory, clients: SlowClients, share: int) -> None:
        self.memory = memory
        self.clients = clients
        self.share = share
        self._held: dict[Hashable, int] = {}

    def arena_buffer(self, connection: Hashable, owner: Owner, length: int, start: int = 0) -> ArenaBuffer:
        """A message of `length` bytes, to lie `start` bytes into a block of the arena. Raises ServeError (503)."""
        return ArenaBuffer(self, connection, owner, length, start)

    def heap_buffer(self, connection: Hashable, owner: Owner) -> HeapBuffer:
        """A message of unknown length."""
        return HeapBuffer(self, connection, owner)

    # Called by the buffers

    def hold(self, buffer: ReceiveBuffer, nbytes: int) -> None:
        """`buffer` is about to hold `nbytes` in all. Raises ServeError (503) if its connection's share is full."""
        connection = buffer.connection
        before = self._held.get(connection, 0)
        others = before - buffer.held
        if others and others + nbytes > self.share:
            raise overloaded(
                f"unfinished requests of this connection hold {before} bytes; together they may hold {self.share}. "
                "Send one after the other, or raise --connection-share or --shm-limit"
            )
        self._held[connection] = others + nbytes
        buffer.held = nbytes
        self.clients.add(buffer)

    def forget(self, buffer: ReceiveBuffer) -> None:
        """`buffer` is complete, or given up."""
        self.clients.forget(buffer)
        held, buffer.held = buffer.held, 0
        if held:
            left = self._held[buffer.connection] - held
            if left:
                self._held[buffer.connection] = left
            else:
                del self._held[buffer.connection]


class ReceiveBuffer(Transfer):
    """One message, on its connection."""

    __slots__ = ("_buffers", "connection")

    def __init__(self, buffers: ReceiveBuffers, connection: Hashable, owner: Owner) -> None:
        super().__init__(owner, buffers.clients)
        self._buffers = buffers
        self.connection = connection


class ArenaBuffer(ReceiveBuffer):
    """A message that the socket writes into the arena: `view` is all of it, at arena offset `offset` in `block`.

    `ready` is how many bytes of `view` may be written, from its beginning on. Its receiver owns the block's first hold
    until `drop`.
    """

    __slots__ = ("_start", "block", "length", "offset", "ready", "view")

    def __init__(self, buffers: ReceiveBuffers, connection: Hashable, owner: Owner, length: int, start: int) -> None:
        super().__init__(buffers, connection, owner)
        self.length = length
        self._start = start
        first = start + min(length, FIRST_AHEAD)
        buffers.hold(self, first)
        self.growing = True
        try:
            self.block, committed = buffers.memory.reserve(start + length, first)
        except ServeError:
            buffers.forget(self)
            raise
        finally:
            self.growing = False
        # A warm block is committed as a whole.
        self.ready = min(committed - start, length)
        self.offset = self.block.offset + start
        self.view = self.block.view[start : start + length]

    @property
    def rest(self) -> memoryview:
        """The place for the next bytes: maybe for a part of those missing, but never empty before the last has come."""
        return self.view[self.moved : self.ready]

    def add(self, data: memoryview) -> None:
        """Takes bytes that were received elsewhere. Raises ServeError (503); the caller must then drop the message."""
        start = self.moved
        end = start + len(data)
        if end > self.ready:
            self._grow(end)
        self.view[start:end] = data
        self.advance(len(data))

    def advance(self, nbytes: int) -> bool:
        """`nbytes` were written into `rest`: is the message complete now? After ServeError (503) drop the message."""
        moved = self.moved + nbytes
        if moved == self.length:
            self.moved = moved
            self._buffers.forget(self)
            return True
        self.has_moved(moved)
        if self.ready < self.length:
            ahead = min(max(moved, FIRST_AHEAD), MOST_AHEAD)
            if self.ready - moved < ahead // 2:
                self._grow(moved + ahead)
        return False

    def drop(self) -> None:
        if self.held:
            self._buffers.forget(self)
        self.block.drop()

    def _grow(self, wanted: int) -> None:
        wanted = self._start + min(wanted, self.length)
        self._buffers.hold(self, wanted)
        self.growing = True
        try:
            committed = self._buffers.memory.grow(self.block, wanted)
        finally:
            self.growing = False
        self.ready = min(committed - self._start, self.length)


class ContentBuffer:
    """The decompressed content of a message, which is written into the arena piece by piece.

    Its length is unknown before its end, and is at most `most` bytes: these are address space, in which memory is
    committed as the content grows. `start` is where in its block it begins. Its maker owns the block until `drop`.
    """

    __slots__ = ("_committed", "_end", "_memory", "_start", "block")

    def __init__(self, memory: Memory, most: int, start: int) -> None:
        self._memory = memory
        self._start = self._end = start
        # A block may be a sixteenth larger than what is asked for.
        self.block, self._committed = memory.reserve(min(start + most, memory.limit // 16 * 15), 0)

    @property
    def offset(self) -> int:
        """The arena offset at which the content begins."""
        return self.block.offset + self._start

    def add(self, piece: bytes) -> None:
        """Raises ServeError (503) if memory is short."""
        end = self._end + len(piece)
        if end > self.block.nbytes:
            raise unavailable(
                f"no room for {end} bytes in shared memory, which has {self._memory.limit} in all; raise --shm-limit"
            )
        if end > self._committed:
            self._committed = self._memory.grow(self.block, end)
        self.block.view[self._end : end] = piece
        self._end = end

    def finish(self) -> memoryview:
        """All of the content. Raises ServeError (503)."""
        self._memory.shrink(self.block, self._end)
        return self.block.view[self._start : self._end]

    def drop(self) -> None:
        self.block.drop()


class HeapBuffer(ReceiveBuffer):
    """A message of a length that is not known before its end: bytes in the heap, counted in its account."""

    __slots__ = ("_data", "_share")

    def __init__(self, buffers: ReceiveBuffers, connection: Hashable, owner: Owner) -> None:
        super().__init__(buffers, connection, owner)
        self._data = bytearray()
        self._share: HeapShare = buffers.memory.heap.share()

    def add(self, data: bytes) -> None:
        """Takes more bytes. Raises ServeError (503); the caller must then drop the message."""
        self._buffers.hold(self, self.moved + len(data))
        self.growing = True
        try:
            self._share.add(len(data))
        finally:
            self.growing = False
        self._data += data
        self.has_moved(self.moved + len(data))

    def finish(self) -> tuple[bytes, HeapShare]:
        """All of the message, and the share in which it is counted, for its new owner."""
        self._buffers.forget(self)
        data, self._data = bytes(self._data), bytearray()
        return data, self._share

    def drop(self) -> None:
        self._buffers.forget(self)
        self._data = bytearray()
        self._share.drop()
