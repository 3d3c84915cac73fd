"""Large JSON is read by a process of its own.

orjson holds the interpreter's lock while it reads: 64 MiB of numbers would be more than a second in which the server
answers nobody, and take half a gigabyte of its memory. In a thread it would be the same, and a document cannot be read
in pieces without a parser of our own. So the text goes to a worker (`worker`), and back come the request and the
bytes of its tensors, which are received into the arena.

The worker is started for the first large document and ended when there was none for IDLE_S. It reads one at a time.
What it cannot survive costs the request at hand, and the next one has a new worker.

Costs: about 1 ms, and two copies through a socket; measured in docs/performance.md.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import socket
import subprocess
import sys
from collections.abc import Callable
from typing import Any, cast

from stubserve.api.placement import BodyPlacer, ReplyFormat, Slot, Store, note_outputs
from stubserve.errors import Code, ServeError, internal
from stubserve.http.json.job import GENERATE, HEAD, IN_REGION, INFER, pack, pack_signature, unpack, unpack_request
from stubserve.inference.request import Request
from stubserve.inference.signature import Signature
from stubserve.inference.tensor import Tensor, drop_blocks
from stubserve.memory.blocks import Block

log = logging.getLogger("stubserve.http")

IDLE_S = 60.0


class JsonProcess:
    """The worker, as the event loop sees it. `allocate` gives blocks of the arena; it raises ServeError."""

    def __init__(self, allocate: Callable[[int], Block]) -> None:
        self._allocate = allocate
        self._lock = asyncio.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._socket: socket.socket | None = None
        self._idle: asyncio.TimerHandle | None = None

    async def read_infer(
        self, text: memoryview, signature: Signature, placer: BodyPlacer, max_input_size: int, holds: Block | None
    ) -> tuple[Request, ReplyFormat]:
        """As `infer_json.decode_json`. `holds` is the block that the text lies in. Raises ServeError."""
        job = (INFER, pack_signature(signature), placer.size, max_input_size)
        request, reply_format = await self._read(job, text, placer, holds)
        return request, reply_format

    async def read_generate(self, text: bytes, signature: Signature, store: Store) -> Request:
        """As `generate_decode.decode_generate`. Raises ServeError."""
        placer = BodyPlacer(b"", None, 0, store)
        request, _ = await self._read((GENERATE, pack_signature(signature), 0, 0), memoryview(text), placer, None)
        return request

    def close(self) -> None:
        """Ends the worker."""
        if self._idle is not None:
            self._idle.cancel()
        if self._socket is not None:
            self._socket.close()
            self._socket = None
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    async def _read(
        self, job: tuple[Any, ...], text: memoryview, placer: BodyPlacer, holds: Block | None
    ) -> tuple[Request, Any]:
        await self._lock.acquire()
        if holds is not None:
            holds.hold()
        # Once begun, an exchange goes on to its end whoever has gone meanwhile, or the worker would be out of step.
        exchange = asyncio.ensure_future(self._exchange(job, text))
        exchange.add_done_callback(lambda _: self._lock.release())
        if holds is not None:
            exchange.add_done_callback(lambda _: holds.drop())
        try:
            request, reply_format, regions = await asyncio.shield(exchange)
        except asyncio.CancelledError:
            exchange.add_done_callback(_discard)
            raise
        finally:
            # A refusal knows this frame, which must not know the refusal: the circle would keep the text of the request
            # until the garbage collector comes by, counted by nobody.
            del exchange
        # What it left where it was is placed here: it knows no memory.
        try:
            pieces = iter(regions)
            for at, tensor in enumerate(request.inputs):
                if tensor.offset == IN_REGION:
                    request.inputs[at] = placer.in_region(tensor.name, tensor.datatype, tensor.shape, *next(pieces))
                elif tensor.data is None and tensor.span is None:
                    request.inputs[at] = placer.slice(
                        tensor.name, tensor.datatype, tensor.shape, tensor.offset, tensor.nbytes
                    )
            if regions:
                request.regions = {}
            if reply_format is not None and reply_format.slots is not None:
                slots = {name: _placed(slot, placer) for name, slot in reply_format.slots.items()}
                reply_format = reply_format._replace(slots=slots)
                note_outputs(request, slots)
        except BaseException:
            drop_blocks(request.inputs)
            raise
        return request, reply_format

    async def _exchange(self, job: tuple[Any, ...], text: memoryview) -> tuple[Request, Any, Any]:
        """Has the worker read a text, which nobody else may do meanwhile."""
        loop = asyncio.get_running_loop()
        if self._idle is not None:
            self._idle.cancel()
            self._idle = None
        connection = self._connection()
        try:
            packed = pack(job)
            await loop.sock_sendall(connection, HEAD.pack(len(packed), len(text)) + packed)
            await loop.sock_sendall(connection, text)
            head = bytearray(HEAD.size)
            await _receive(loop, connection, memoryview(head))
            size, data_size = HEAD.unpack(head)
            answer = bytearray(size)
            await _receive(loop, connection, memoryview(answer))
            code, result = unpack(answer)
            if code is not None:
                raise ServeError(Code(code), result)
            request, reply_format, regions = unpack_request(result)
            await self._receive_tensors(loop, connection, request.inputs, data_size)
        except (OSError, EOFError):
            log.error("the process that reads large JSON has ended while it read a request; it is started anew")
            self.close()
            raise internal("the process that read the request's JSON has ended; see the server's log") from None
        finally:
            self._idle = loop.call_later(IDLE_S, self.close)
        return request, reply_format, regions

    async def _receive_tensors(
        self, loop: asyncio.AbstractEventLoop, connection: socket.socket, tensors: list[Tensor], left: int
    ) -> None:
        """Receives what is new in the tensors into the arena. Raises ServeError when there is no room."""
        for tensor in tensors:
            if tensor.data is not None or tensor.offset >= 0 or tensor.offset == IN_REGION:
                continue
            try:
                block = self._allocate(tensor.nbytes)
            except ServeError:
                await _skip(loop, connection, left)
                drop_blocks(tensors)
                raise
            tensor.span, tensor.offset = block.whole(), block.offset
            await _receive(loop, connection, block.view)
            left -= tensor.nbytes

    def _connection(self) -> socket.socket:
        """The worker's socket; starts it where there is none."""
        if self._socket is not None and self._process is not None and self._process.poll() is None:
            return self._socket
        self.close()
        ours, theirs = socket.socketpair()
        ours.setblocking(False)
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "stubserve.http.json.worker", str(theirs.fileno())],
                pass_fds=(theirs.fileno(),),
                stdin=subprocess.DEVNULL,
                env={**os.environ, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"},
            )
        self._socket = ours
        return ours


async def _receive(loop: asyncio.AbstractEventLoop, connection: socket.socket, into: memoryview) -> None:
    """Fills the memory. Raises EOFError."""
    done = 0
    while done < len(into):
        count = await loop.sock_recv_into(connection, into[done:])
        if not count:
            raise EOFError
        done += count


async def _skip(loop: asyncio.AbstractEventLoop, connection: socket.socket, left: int) -> None:
    """Throws so many bytes away. Raises EOFError."""
    scrap = memoryview(bytearray(1 << 18))
    while left:
        part = scrap[: min(left, len(scrap))]
        await _receive(loop, connection, part)
        left -= len(part)


def _placed(slot: Slot, placer: BodyPlacer) -> Slot:
    """A slot as the worker has read it, with the region that it names. Raises ServeError."""
    return slot if slot.region is None else slot._replace(region=placer.output_in_region(*cast(Any, slot.region)))


def _discard(exchange: asyncio.Future[tuple[Request, Any, Any]]) -> None:
    """Nobody waits for its result any longer."""
    with contextlib.suppress(ServeError):
        drop_blocks(exchange.result()[0].inputs)
