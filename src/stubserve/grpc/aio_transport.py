"""The transport that is grpcio: its C core does HTTP/2, TLS, compression and keepalive, through `grpc.aio`.

Handlers get and give raw bytes; grpcio copies a message once on its way in and once on its way out.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import urllib.parse
from collections import deque
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import grpc
import grpc.aio

from stubserve.connections.tls import tls_context
from stubserve.grpc.service import Service
from stubserve.grpc.transport import (
    CANCELLATION_LINE,
    CANCELLED,
    DEADLINE_EXCEEDED,
    INTERNAL,
    MAX_MESSAGE_BYTES,
    OK,
    REQUEST_LINE,
    Answer,
    Handler,
    Making,
    Metadata,
    Method,
    Parts,
    end_of,
)
from stubserve.inference.long_work import finish, uncounted
from stubserve.memory.blocks import Block
from stubserve.settings.fronts import GrpcSettings

log = logging.getLogger("stubserve.grpc")

# So many bytes may wait for a client before it counts as slow.
OUTBOX_BYTES = 1 << 20
_ALGORITHMS = {"low": grpc.Compression.Gzip, "medium": grpc.Compression.Deflate, "high": grpc.Compression.Deflate}
_Waiting = bytes | tuple[Making, list[Block]]
_STATUS = {code.value[0]: code for code in grpc.StatusCode}


def _done(work: Making) -> Parts:
    """Does all of the work at once, in a thread, as grpcio does everything."""
    return finish(work(uncounted))


def _drop(item: _Waiting) -> None:
    for block in () if isinstance(item, bytes) else item[1]:
        block.drop()


class _Rpc:
    """One RPC. Messages wait in an outbox that a task empties; above OUTBOX_BYTES the sender is told to slow down."""

    def __init__(self, context: Any) -> None:
        self._context = context
        # Messages, and work that makes a message, with the blocks that it holds until then
        self._outbox: deque[_Waiting] = deque()
        self._outbox_bytes = 0
        self._news = asyncio.Event()
        self._may_read = asyncio.Event()
        self._may_read.set()
        self._end: tuple[int, str] | None = None
        self._slow = False

    # For the service

    @property
    def peer(self) -> str:
        # "ipv4:127.0.0.1:50000" or "ipv6:%5B::1%5D:50000" becomes the form of the other transport.
        address = urllib.parse.unquote(self._context.peer()).partition(":")[2]
        return address.replace("[", "").replace("]", "")

    @property
    def ended(self) -> int | None:
        # Asked only for a call that its handler did not end
        left = self._context.time_remaining()
        return CANCELLED if left is None or left > 0 else DEADLINE_EXCEEDED

    def metadata(self) -> Metadata:
        metadata: Metadata = self._context.invocation_metadata()
        return metadata

    def reply(self, answer: Answer, blocks: Sequence[Block]) -> None:
        self.send(answer, blocks)
        self.finish(OK)

    def send(self, answer: Answer, blocks: Sequence[Block]) -> bool:
        if self._end is not None:
            return True
        if callable(answer):
            self._outbox.append((answer, [block.hold() for block in blocks]))
            self._slow = True
        else:
            message = b"".join(answer)
            self._outbox.append(message)
            self._outbox_bytes += len(message)
            self._slow = self._slow or self._outbox_bytes > OUTBOX_BYTES
        self._news.set()
        return not self._slow

    def finish(self, status: int, message: str = "") -> None:
        if self._end is None:
            self._end = (status, message)
            self._news.set()

    def pause_reading(self) -> None:
        self._may_read.clear()

    def resume_reading(self) -> None:
        self._may_read.set()

    # The RPC itself

    async def run(self, method: Method) -> None:
        handler = method.open(self)
        reading = asyncio.get_running_loop().create_task(self._read(handler, method.unary))
        try:
            while True:
                while self._outbox:
                    message = await self._made(self._outbox.popleft())
                    await self._context.write(message)
                    if self._slow and self._outbox_bytes <= OUTBOX_BYTES // 2:
                        self._slow = False
                        handler.on_writable()
                if self._end is not None:
                    break
                self._news.clear()
                await self._news.wait()
        except BaseException:
            # The RPC was cancelled, or the connection is gone.
            self._end = (OK, "")
            handler.on_cancel()
            raise
        finally:
            reading.cancel()
            for item in self._outbox:
                _drop(item)
        await self._finish(*self._end)

    async def _finish(self, status: int, text: str) -> None:
        if status != OK:
            await self._context.abort(_STATUS[status], text)  # raises

    async def _made(self, item: _Waiting) -> bytes:
        """The message of an item of the outbox; if it is still to be made, a thread makes it."""
        if isinstance(item, bytes):
            self._outbox_bytes -= len(item)
            return item
        made = asyncio.get_running_loop().run_in_executor(None, _done, item[0])
        # The thread finishes its work even if the client has gone.
        made.add_done_callback(lambda _: _drop(item))
        try:
            return b"".join(await asyncio.shield(made))
        except Exception as error:
            await self._finish(*end_of(error, "answer was encoded"))
            raise
        finally:
            # The future refers to its exception, and that to this frame.
            del made

    async def _read(self, handler: Handler, unary: bool) -> None:
        while self._end is None:
            await self._may_read.wait()
            message = await self._context.read()
            if self._end is not None:
                return
            if message is not grpc.aio.EOF:
                handler.on_message(message)
                if not unary:
                    continue
            elif unary:
                self.finish(INTERNAL, "Unable to parse request")
            else:
                handler.on_half_close()
            return


class AioTransport(grpc.GenericRpcHandler):  # type: ignore[misc]  # grpc has no types
    """A listening gRPC server for a service. `port` is the port that it got.

    If the port is shared with other servers, `port` is the wanted one, and nothing listens before `start`: grpcio
    cannot reserve a port without listening.
    """

    def __init__(self, service: Service, options: GrpcSettings) -> None:
        self._compression = _ALGORITHMS.get(options.compression_level)
        self._handlers = {path: self._rpc(path, method) for path, method in service.methods.items()}
        self._server = grpc.aio.server(options=_channel_arguments(options))
        self._server.add_generic_rpc_handlers((self,))
        self._service = service
        self._options = options
        self.port = options.port if options.reuse_port else self._listen()

    def _listen(self) -> int:
        """Listens and returns the port. Raises OSError."""
        options = self._options
        host = f"[{options.address}]" if ":" in options.address else options.address
        target = f"{host}:{options.port}"
        try:
            if options.tls is None:
                port = self._server.add_insecure_port(target)
            else:
                tls = options.tls
                tls_context(tls, ())  # it names the file that cannot be used, and grpcio does not
                root = Path(tls.root_certificates).read_bytes() if tls.root_certificates else None
                pair = (Path(tls.key).read_bytes(), Path(tls.certificate).read_bytes())
                credentials = grpc.ssl_server_credentials([pair], root, tls.mutual)
                port = self._server.add_secure_port(target, credentials)
        except RuntimeError as error:
            # grpcio says only that it failed, which nearly always means that the port is taken.
            raise OSError(errno.EADDRINUSE, str(error)) from None
        return int(port)

    def service(self, handler_call_details: Any) -> Any:
        return self._handlers.get(handler_call_details.method)

    async def start(self) -> None:
        """Raises OSError if the port is shared and cannot be had."""
        if self._options.reuse_port:
            self.port = self._listen()
        await self._server.start()

    async def stop(self, grace_s: float) -> None:
        """Takes no new RPCs; running RPCs end, or are cancelled after `grace_s`."""
        self._service.stop()
        await self._server.stop(grace_s)

    def _rpc(self, path: str, method: Method) -> Any:
        compression = self._compression if method.infers else None

        async def run(_: Any, context: Any) -> None:
            log.debug(REQUEST_LINE, path)
            if compression is not None:
                context.set_compression(compression)
            try:
                await _Rpc(context).run(method)
            except asyncio.CancelledError:
                log.debug(CANCELLATION_LINE, path)
                raise

        # Unary RPCs as well: on the wire they are streams of one message each way.
        return grpc.stream_stream_rpc_method_handler(run)


def _channel_arguments(options: GrpcSettings) -> list[tuple[str, int]]:
    arguments = {
        "grpc.max_receive_message_length": MAX_MESSAGE_BYTES,
        "grpc.max_send_message_length": MAX_MESSAGE_BYTES,
        "grpc.so_reuseport": int(options.reuse_port),
        "grpc.keepalive_time_ms": options.keepalive_time,
        "grpc.keepalive_timeout_ms": options.keepalive_timeout,
        "grpc.keepalive_permit_without_calls": int(options.keepalive_permit_without_calls),
        "grpc.http2.max_pings_without_data": options.max_pings_without_data,
        "grpc.http2.min_ping_interval_without_data_ms": options.min_recv_ping_interval_without_data,
        "grpc.http2.max_ping_strikes": options.max_ping_strikes,
        "grpc.max_connection_age_ms": options.max_connection_age,
        "grpc.max_connection_age_grace_ms": options.max_connection_age_grace,
    }
    return [(name, value) for name, value in arguments.items() if value is not None]
