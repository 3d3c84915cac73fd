"""What stands in for the rest of the server when its readers are fuzzed: models that answer at once, and transports.

`FuzzedServer` has one model of each kind of signature, and the server's own shared memory, which counts what it gives:
a target can tell what was not given back. Time stands still, so that no answer depends on how long an input takes.
"""

from __future__ import annotations

import asyncio
import functools
import logging
import socket
from collections.abc import Callable, Coroutine
from types import SimpleNamespace
from typing import Any, TypeVar

import uvloop

from stubserve.connections.receive_buffers import ReceiveBuffers
from stubserve.connections.slow_clients import SlowClients
from stubserve.errors import ServeError, not_found
from stubserve.inference.long_work import LongWork, Offload
from stubserve.inference.request import Request, Response
from stubserve.inference.signature import Signature
from stubserve.inference.statistics import ModelStatistics
from stubserve.inference.tensor import Tensor
from stubserve.inference.trace import ModelTracing
from stubserve.memory.blocks import Block
from stubserve.memory.server_memory import Memory as SharedMemory
from stubserve.model_config.parse import parse_text

from .finding import Finding

T = TypeVar("T")

ARENA_BYTES = 1 << 20
SHARED_BYTES = 4 << 20
MOST_PIECES = 20


def signature(name: str) -> Signature:
    """A fresh signature, which remembers nothing."""
    return Signature(name, 1, _config(name))


@functools.cache
def _config(name: str) -> Any:
    return parse_text(CONFIGS[name], "config.pbtxt")


CONFIGS = {
    "floats": """
        max_batch_size: 4
        input { name: "IN" data_type: TYPE_FP32 dims: [-1] }
        output { name: "OUT" data_type: TYPE_FP32 dims: [-1] }
    """,
    "mixed": """
        input { name: "A" data_type: TYPE_INT8 dims: [2, -1] }
        input { name: "S" data_type: TYPE_STRING dims: [-1] optional: true }
        input { name: "B" data_type: TYPE_BOOL dims: [2] optional: true }
        input { name: "U" data_type: TYPE_UINT64 dims: [-1] optional: true }
        output { name: "OUT" data_type: TYPE_INT8 dims: [-1] }
    """,
    "strings": """
        max_batch_size: 8
        input { name: "IN" data_type: TYPE_STRING dims: [1] }
        output { name: "OUT" data_type: TYPE_STRING dims: [-1] }
    """,
}


class Memory:
    """Blocks of plain memory; `held` counts those not given back."""

    def __init__(self) -> None:
        self.held = 0

    def block(self, nbytes: int) -> Block:
        """Raises ServeError (503) like an arena of ARENA_BYTES."""
        if nbytes > ARENA_BYTES:
            raise not_found("no room")
        self.held += 1
        return Block(0, nbytes, memoryview(bytearray(nbytes)), self._release)

    def store(self, data: bytes | memoryview) -> Block:
        block = self.block(len(data))
        block.view[:] = data
        return block

    def _release(self, block: Block) -> None:
        self.held -= 1


class Model:
    """Answers every request with its first input, in the next turn of the event loop."""

    version = 1

    tracing = ModelTracing()
    statistics = ModelStatistics()

    def __init__(self, name: str) -> None:
        self.signature = signature(name)

    def submit(self, request: Request, at_once: bool = False) -> None:
        asyncio.get_running_loop().call_soon(self._answer, request)

    def cancel(self, request: Request) -> None:
        pass

    def _answer(self, request: Request) -> None:
        outputs = [Tensor("OUT", one.datatype, one.shape, bytes(one.buffer)) for one in request.inputs[:1]]
        blocks = [tensor.block for tensor in request.inputs if tensor.block is not None]
        request.on_response(request, Response(outputs))
        for block in blocks:
            block.drop()


class CountedOffload(Offload):
    """Knows whether it still works on something."""

    def __init__(self) -> None:
        super().__init__()
        self._busy: set[asyncio.Future[Any]] = set()

    async def run(self, steps: LongWork[T]) -> T:
        work = asyncio.ensure_future(super().run(steps))
        self._busy.add(work)
        work.add_done_callback(self._busy.discard)
        return await work

    async def idle(self) -> None:
        while self._busy:
            await asyncio.wait(self._busy)
            await asyncio.sleep(0)


# One for all inputs: to map an arena and to start threads would be most of their time.
_shared_memory = SharedMemory(SHARED_BYTES)
_offload = CountedOffload()


class FuzzedServer:
    """The server as protocols see it. What is read in another process is beyond its largest input."""

    max_input_size = 1 << 16
    http_forwarding = None
    regions = None
    grpc_port = 8001
    max_connections = 0
    fair_queues = None

    def __init__(self) -> None:
        self.models = {name: Model(name) for name in CONFIGS}
        self.heap = _shared_memory.heap
        self.block = _shared_memory.block
        self.store = _shared_memory.store
        self.slow_clients = SlowClients(send_timeout_s=60.0, idle_timeout_s=60.0)
        self.receive_buffers = ReceiveBuffers(_shared_memory, self.slow_clients, SHARED_BYTES // 2)
        self.offload = _offload

    @property
    def held(self) -> int:
        """Blocks of the arena and bytes of the heap that were not given back."""
        return _shared_memory.ingress.live_blocks + self.heap.taken

    def find_model(self, name: str, version: str) -> Any:
        try:
            return self.models[name]
        except KeyError:
            raise not_found(f"Request for unknown model: '{name}' is not found") from None


PEER, NAME = ("127.0.0.1", 1), ("127.0.0.1", 2)
SOCKET = SimpleNamespace(fileno=lambda: 3, family=socket.AF_INET, getpeername=lambda: PEER, getsockname=lambda: NAME)


class Transport(asyncio.Transport):
    """Keeps what is written; `closed` once the protocol has closed it."""

    def __init__(self) -> None:
        super().__init__({"peername": PEER, "sockname": NAME, "socket": SOCKET})
        self.sent = bytearray()
        self.closed = False
        self.paused = False

    def write(self, data: Any) -> None:
        self.sent += data

    def writelines(self, pieces: Any) -> None:
        for piece in pieces:
            self.sent += piece

    def can_write_eof(self) -> bool:
        return False

    def close(self) -> None:
        self.closed = True

    def abort(self) -> None:
        self.closed = True

    def is_closing(self) -> bool:
        return self.closed

    def pause_reading(self) -> None:
        self.paused = True

    def resume_reading(self) -> None:
        self.paused = False

    def is_reading(self) -> bool:
        return not self.paused

    def get_write_buffer_size(self) -> int:
        return 0

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        pass


class _Never:
    """A timer's handle."""

    def cancel(self) -> None:
        pass


class _TimelessLoop(uvloop.Loop):
    """No timer ever fires, nor keeps anything alive."""

    def call_later(self, *args: Any, **more: Any) -> Any:
        return _Never()


_loop = _TimelessLoop()


class _Complaints(logging.Handler):
    """Errors that the server logs are findings: it did not expect what happened."""

    def emit(self, record: logging.LogRecord) -> None:
        error = record.exc_info and record.exc_info[1]
        raise error or Finding("it logs", record.getMessage())


_complaints = _Complaints(logging.ERROR)
_logs = [logging.getLogger(name) for name in ("stubserve", "uvicorn.error")]


def in_loop(coroutine: Coroutine[Any, Any, bytes]) -> bytes:
    """Runs it on the one event loop of all inputs: a new one for each would be most of their time.

    Errors that are logged meanwhile are raised. Afterwards the log is as it was: others use this process, too.
    """
    for log in _logs:
        log.addHandler(_complaints)
    try:
        return _loop.run_until_complete(coroutine)
    finally:
        for log in _logs:
            log.removeHandler(_complaints)


def cut(text: bytes, size: int) -> list[bytes]:
    """Pieces of this size, or larger ones where they would be too many."""
    size = max(size, len(text) // MOST_PIECES)
    return [text[at : at + size] for at in range(0, len(text), size)]


async def deliver(protocol: Any, transport: Transport, pieces: list[bytes]) -> bytes:
    """What a protocol sends when it reads these pieces one after the other, and then the end of the connection."""
    protocol.connection_made(transport)
    for piece in pieces:
        at = 0
        while at < len(piece) and not transport.closed:
            buffer = protocol.get_buffer(len(piece) - at)
            count = min(len(buffer), len(piece) - at)
            buffer[:count] = piece[at : at + count]
            protocol.buffer_updated(count)
            at += count
            await turns()
            for _ in range(100):
                if not transport.paused or transport.closed:
                    break
                await turns()
    protocol.connection_lost(None)
    await turns()
    return bytes(transport.sent)


async def turns() -> None:
    """Lets the event loop do what it has been asked to, long work as well."""
    for _ in range(4):
        await asyncio.sleep(0)
    await _offload.idle()


def outcome(read: Callable[[], Any]) -> Any:
    """What reading says, or the error that it says instead."""
    try:
        return read()
    except ServeError as error:
        return error.code, error.message


def described(request: Request) -> tuple[Any, ...]:
    """All that a request says, to be compared."""
    return (
        request.id,
        # Where a parameter is no number it equals nothing.
        repr(request.options),
        request.requested_outputs,
        request.batch_size,
        [(one.name, one.datatype, tuple(one.shape), bytes(one.buffer)) for one in request.inputs],
    )
