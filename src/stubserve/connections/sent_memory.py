"""Memory on its way out: it lives, and is counted, until a socket has taken it; and the socket's buffer is bounded."""

# Compiled by mypyc.
from __future__ import annotations

import asyncio
import contextlib
import fcntl
import socket
import sys
import termios
import weakref
from collections.abc import Callable, Sequence

import numpy as np

from stubserve.memory.blocks import Block
from stubserve.memory.heap_account import HeapShare

# The most that the kernel may hold of replies to a client on this machine; measured, see docs/performance.md.
SEND_BUFFER_BYTES = 512 * 1024


class SentMemory:
    """Keeps blocks held while a transport still has pieces of them to send.

    A transport drops its reference to a buffer when the socket has taken the last byte, or when the connection is
    closed. `wrap` gives the transport an array over the memory, and watches it with a weak reference. Any buffer made
    from the array keeps it alive; when it dies, the block is dropped. So nothing depends on flow-control callbacks.
    """

    def __init__(self) -> None:
        # By the id of the reference: arrays have no hash, and so neither have references to them.
        self._waiting: dict[int, tuple[weakref.ref[np.ndarray], Sequence[Block | HeapShare]]] = {}

    def wrap(self, piece: memoryview, blocks: Sequence[Block]) -> memoryview:
        """The same bytes as a view. One hold of each of `blocks` is taken, and is dropped when the view dies."""
        return self._watched(piece, [block.hold() for block in blocks])

    def wrap_text(self, text: bytes, share: HeapShare) -> memoryview:
        """The same bytes as a view. `share`, in which they are counted, is dropped when the view dies."""
        return self._watched(text, (share,))

    def _watched(self, piece: bytes | memoryview, held: Sequence[Block | HeapShare]) -> memoryview:
        array = np.frombuffer(piece, np.uint8)
        reference = weakref.ref(array, self._sent)
        self._waiting[id(reference)] = (reference, held)
        return array.data

    def _sent(self, reference: weakref.ref[np.ndarray]) -> None:
        for held in self._waiting.pop(id(reference))[1]:
            held.drop()


def stored(store: Callable[[bytes], Block], text: bytes) -> bytes | memoryview:
    """The same bytes in the arena, as a view. They are freed when the view dies. Raises ServeError (503)."""
    if not text:
        return text
    block = store(text)
    array = np.frombuffer(block.view, np.uint8)
    weakref.finalize(array, block.drop).atexit = False
    return array.data


def keep_sending_warm(transport: asyncio.Transport) -> None:
    """Bounds what the kernel holds of large replies to a client on this machine.

    Otherwise the kernel lets the send buffer grow to 4 MiB and copies a whole tensor into it before the client has read
    any of it: by then the bytes have left the cache. For a client on another machine the buffer also bounds the bytes
    under way, so it keeps its size.
    """
    peer = transport.get_extra_info("peername")
    if peer and (peer[0] == "::1" or peer[0].removeprefix("::ffff:").startswith("127.")):
        with contextlib.suppress(OSError):  # the client has just gone
            transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SEND_BUFFER_BYTES)


def unsent(transport: asyncio.Transport) -> int:
    """Bytes that wait for a client: in this process and, if any wait here, in the kernel."""
    waiting = transport.get_write_buffer_size()
    if not waiting:
        return 0
    connection = transport.get_extra_info("socket")
    descriptor = -1 if connection is None else connection.fileno()
    return waiting if descriptor < 0 else waiting + unacknowledged(descriptor)


def unacknowledged(descriptor: int) -> int:
    """Bytes that the kernel holds and the client's kernel has not received."""
    return int.from_bytes(fcntl.ioctl(descriptor, termios.TIOCOUTQ, bytes(4)), sys.byteorder)
