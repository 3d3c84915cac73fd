"""Requests to a server of the fleet, over HTTP and gRPC."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Coroutine
from dataclasses import dataclass, field
from typing import Any

import grpc
import httptools

from stubserve.fleet.directory import ReplicaInfo

Headers = dict[str, str]
GRPC_SERVICE = "/inference.GRPCInferenceService/"
# Headers of a connection, which are never passed on
OF_CONNECTION = {"host", "connection", "content-length", "transfer-encoding"}
# The limit of an answer: no server says so much.
_MOST_BYTES = 256 << 20
_PIECE_BYTES = 256 << 10
_SIZES = [("grpc.max_receive_message_length", _MOST_BYTES), ("grpc.max_send_message_length", -1)]
# Codes of gRPC by the HTTP status that says the same
CODES = {
    400: grpc.StatusCode.INVALID_ARGUMENT,
    401: grpc.StatusCode.UNAUTHENTICATED,
    403: grpc.StatusCode.PERMISSION_DENIED,
    404: grpc.StatusCode.NOT_FOUND,
    503: grpc.StatusCode.UNAVAILABLE,
}
_STATUS = {code: status for status, code in CODES.items()}
REFUSALS = (401, 403)
_CONTINUE = 100


@dataclass(frozen=True)
class Reply:
    """An HTTP answer; status 503 with the reason as body where no answer came."""

    status: int
    body: bytes
    headers: dict[str, str] = field(default_factory=dict)

    @property
    def text(self) -> str:
        return self.body.decode(errors="replace")


class _Answer:
    """What httptools tells of an answer. `is_over` with the first one that is not interim, or `or_interim` with any."""

    def __init__(self, or_interim: bool) -> None:
        self._or_interim = or_interim
        self._parser = httptools.HttpResponseParser(self)
        self.status = 0
        self.headers: dict[str, str] = {}
        self.body = bytearray()
        self.is_over = False

    def feed(self, data: bytes) -> None:
        """Raises HttpParserError, and ValueError for an answer that is too long."""
        self._parser.feed_data(data)
        if len(self.body) > _MOST_BYTES:
            raise ValueError(f"the answer has more than {_MOST_BYTES} bytes")

    def on_header(self, name: bytes, value: bytes) -> None:
        self.headers[name.decode("latin-1")] = value.decode("latin-1")

    def on_body(self, body: bytes) -> None:
        self.body += body

    def on_headers_complete(self) -> None:
        self.status = self._parser.get_status_code()

    def on_message_complete(self) -> None:
        self.is_over = self.is_over or self.status >= 200 or self._or_interim


async def ask(
    host: str,
    port: int,
    method: str,
    path: str,
    body: bytes | None = None,
    headers: Headers | None = None,
    timeout_s: float = 10.0,
) -> Reply:
    """Asks once. Never raises for what the network or the server does."""
    given = {**(headers or {}), **({} if body is None else {"content-length": str(len(body))})}
    return await _within(timeout_s, _ask(host, port, method, path, body or b"", given))


async def expect_continue(replica: ReplicaInfo, path: str, headers: Headers) -> Reply:
    """How a replica answers the head of a POST alone: status 100 if it wants the body."""
    head = {**headers, "content-length": "1", "expect": "100-continue"}
    return await _within(10.0, _ask(replica.host, replica.http_port, "POST", path, b"", head, or_interim=True))


async def _within(timeout_s: float, asking: Coroutine[Any, Any, Reply]) -> Reply:
    try:
        return await asyncio.wait_for(asking, timeout_s)
    except asyncio.TimeoutError:
        return Reply(503, f"no answer within {timeout_s:g} s".encode())
    except (OSError, ValueError, httptools.HttpParserError) as error:
        return Reply(503, f"no answer: {error or type(error).__name__}".encode())


async def _ask(
    host: str, port: int, method: str, path: str, body: bytes, headers: Headers, or_interim: bool = False
) -> Reply:
    lines = [f"{method} {path} HTTP/1.1", f"host: {host}:{port}", "connection: close"]
    lines += [f"{name}: {value}" for name, value in headers.items()]
    if any("\r" in line or "\n" in line for line in lines) or " " in path:
        raise ValueError("a path or a header has characters that it may not have")
    reader, writer = await asyncio.open_connection(host, port)
    try:
        writer.write("\r\n".join([*lines, "", ""]).encode("latin-1"))
        # A server may answer, and close, before it has read everything.
        with contextlib.suppress(ConnectionError):
            for at in range(0, len(body), _PIECE_BYTES):
                writer.write(memoryview(body)[at : at + _PIECE_BYTES])
                await writer.drain()
        answer = _Answer(or_interim)
        while not answer.is_over:
            data = await reader.read(_PIECE_BYTES)
            if not data:
                raise ConnectionResetError("the server closed the connection")
            answer.feed(data)
        if not 200 <= answer.status < 600 and not or_interim:
            raise ValueError(f"status {answer.status}")
        return Reply(answer.status, bytes(answer.body), answer.headers)
    finally:
        writer.transport.abort()


async def ask_replica(
    replica: ReplicaInfo, path: str, body: bytes, timeout_s: float, method: str = "POST", headers: Headers | None = None
) -> Reply:
    """Asks a replica, over HTTP or, where `path` is that of a gRPC method, over gRPC: `body` is the message then."""
    if path.startswith(GRPC_SERVICE):
        return await _call(f"{replica.host}:{replica.grpc_port}", path, body, timeout_s, headers or {})
    return await ask(replica.host, replica.http_port, method, path, body, headers, timeout_s)


async def _call(address: str, method: str, message: bytes, timeout_s: float, headers: Headers) -> Reply:
    async with grpc.aio.insecure_channel(address, options=_SIZES) as channel:
        try:
            ask = channel.unary_unary(method)
            return Reply(200, await ask(message, timeout=timeout_s, metadata=tuple(headers.items())))
        except grpc.aio.AioRpcError as error:
            return Reply(_STATUS.get(error.code(), 500), (error.details() or error.code().name).encode())
