"""A process of its own reads large JSON.

orjson holds the interpreter's lock while it reads: for 64 MiB of numbers the server would answer nobody for more than a
second, and need half a gigabyte of memory. A thread would not help, and reading a document in pieces needs a parser of
our own. JSON that orjson does not read alone takes a thousand times as long for each byte, so a few KiB of it count as
large (`values.ODD_BYTES`). So the text goes to a worker (`worker`). Back come the request and the bytes of its tensors,
which are received into the arena.

The worker starts with the first large document and ends when there was none for IDLE_S. It reads one at a time. If a
document kills the worker, only that request fails, and the next one gets a new worker. It has the priority of any other
process: with a lower one a document of 5 MiB took 20 s while models computed on all cores.

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

from stubserve.api.placement import BodyPlacer, ReplyFormat, Slot, Store, regions_of
from stubserve.errors import Code, ServeError, internal
from stubserve.http.json.job import (
    GENERATE,
    HEAD,
    IN_REGION,
    INFER,
    UnpackedRequest,
    pack,
    pack_signature,
    unpack,
    unpack_request,
)
from stubserve.inference.request import Request
from stubserve.inference.signature import Signature
from stubserve.inference.tensor import Tensor, drop_blocks
from stubserve.memory.blocks import Block

log = logging.getLogger("stubserve.http")

IDLE_S = 60.0


class JsonProcess:
    """The worker, for the event loop. `allocate` gives blocks of the arena; it raises ServeError."""

    def __init__(self, allocate: Callable[[int], Block]) -> None:
        self._allocate = allocate
        self._lock = asyncio.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._socket: socket.socket | None = None
        self._idle: asyncio.TimerHandle | None = None

    async def read_infer(
        self, text: memoryview, signature: Signature, placer: BodyPlacer, max_input_size: int, holds: Block | None
    ) -> tuple[Request, ReplyFormat]:
        """As `infer_json.decode_json`. `holds` is the block in which the text lies. Raises ServeError."""
        job = (INFER, pack_signature(signature), placer.size, max_input_size)
        request, reply_format = await self._read(job, text, placer, holds)
        return request, reply_format

    async def read_generate(self, text: bytes, signature: Signature, store: Store) -> Request:
        """As `generate_decode.decode_generate`. Raises ServeError."""
        placer = BodyPlacer(b"", None, 0, store)
        request, _ = await self._read((GENERATE, pack_signature(signature), 0, 0), memoryview(text), placer, None)
        return request

    async def ask(
        self, function: str, about: Any, most: int, text: bytes, store: Store, timeout_s: float | None = None
    ) -> Request:
        """The request that a `function`, `<module>:<name>`, makes of a text; it also gets `about`, `most` and a placer.

        Raises ServeError; TimeoutError after `timeout_s`, when the worker is ended.
        """
        placer = BodyPlacer(b"", None, 0, store)
        request, _ = await self._read((function, about, 0, most), memoryview(text), placer, None, timeout_s)
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
        self,
        job: tuple[Any, ...],
        text: memoryview,
        placer: BodyPlacer,
        holds: Block | None,
        timeout_s: float | None = None,
    ) -> tuple[Request, Any]:
        await self._lock.acquire()
        if holds is not None:
            holds.hold()
        # Once begun, an exchange is finished even if its client has gone: the worker must not get out of step.
        exchange = asyncio.ensure_future(self._exchange(job, text, timeout_s))
        exchange.add_done_callback(lambda _: self._lock.release())
        if holds is not None:
            exchange.add_done_callback(lambda _: holds.drop())
        try:
            read = await asyncio.shield(exchange)
        except asyncio.CancelledError:
            exchange.add_done_callback(_discard)
            raise
        finally:
            # A refusal refers to this frame, so the frame must not refer to the refusal. The circle would keep the
            # request's text until the garbage collector runs, and no account would count that memory.
            del exchange
        # The worker has no memory of the server, so tensors that it left in their place are placed here.
        inputs, slots, reply_format = read.inputs, None, read.reply_format
        try:
            pieces = iter(read.regions)
            for at, tensor in enumerate(inputs):
                if tensor.offset == IN_REGION:
                    inputs[at] = placer.in_region(tensor.name, tensor.datatype, tensor.shape, *next(pieces))
                elif tensor.data is None and tensor.span is None:
                    inputs[at] = placer.slice(tensor.name, tensor.datatype, tensor.shape, tensor.offset, tensor.nbytes)
            if reply_format is not None and reply_format.slots is not None:
                slots = {name: _placed(slot, placer) for name, slot in reply_format.slots.items()}
                reply_format = reply_format._replace(slots=slots)
        except BaseException:
            drop_blocks(inputs)
            raise
        if reply_format is not None:
            reply_format = reply_format._replace(regions=placer.regions)
        regions = regions_of(placer.regions, slots)
        return Request(inputs, read.id, read.options, read.requested_outputs, regions), reply_format

    async def _exchange(self, job: tuple[Any, ...], text: memoryview, timeout_s: float | None) -> UnpackedRequest:
        """Has the worker read a text. The caller holds the lock. Raises ServeError; TimeoutError after `timeout_s`."""
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
            await asyncio.wait_for(_receive(loop, connection, memoryview(head)), timeout_s)
            size, data_size = HEAD.unpack(head)
            answer = bytearray(size)
            await _receive(loop, connection, memoryview(answer))
            code, result = unpack(answer)
            if code is not None:
                raise ServeError(Code(code), *result)
            read = unpack_request(result)
            await self._receive_tensors(loop, connection, read.inputs, data_size)
        except asyncio.TimeoutError:
            self.close()
            raise TimeoutError from None
        except (OSError, EOFError):
            log.error("the process that reads large JSON has ended while it read a request; it is started again")
            self.close()
            raise internal("the process that read the request's JSON has ended; see the server's log") from None
        finally:
            self._idle = loop.call_later(IDLE_S, self.close)
        return read

    async def _receive_tensors(
        self, loop: asyncio.AbstractEventLoop, connection: socket.socket, tensors: list[Tensor], left: int
    ) -> None:
        """Receives the tensors' new bytes into the arena. Raises ServeError if memory is short."""
        for tensor in tensors:
            if tensor.data is not None or tensor.offset >= 0 or tensor.offset == IN_REGION:
                continue
            try:
                block = self._allocate(tensor.nbytes)
            except ServeError:
                await _skip(loop, connection, left)
                drop_blocks(tensors)
                raise
            tensor.lie_in(block)
            await _receive(loop, connection, block.view)
            left -= tensor.nbytes

    def _connection(self) -> socket.socket:
        """The worker's socket; starts the worker if there is none."""
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
    """A slot that the worker has read, with the region that it names. Raises ServeError."""
    return slot if slot.region is None else slot._replace(region=placer.output_in_region(*cast(Any, slot.region)))


def _discard(exchange: asyncio.Future[UnpackedRequest]) -> None:
    """For an exchange after its caller has gone: drops its result."""
    with contextlib.suppress(ServeError):
        drop_blocks(exchange.result().inputs)
