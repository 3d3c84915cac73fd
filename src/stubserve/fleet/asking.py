"""Requests to a server of the fleet, over HTTP and gRPC."""

from __future__ import annotations

import asyncio
import http.client
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

import grpc

from stubserve.fleet.directory import Member

Headers = dict[str, str]
GRPC_SERVICE = "/inference.GRPCInferenceService/"
ANY_SIZE = [("grpc.max_receive_message_length", -1), ("grpc.max_send_message_length", -1)]
# Headers of a connection, which are never passed on
OF_CONNECTION = {"host", "connection", "content-length", "transfer-encoding"}
# A load takes a thread for each replica for as long as it takes.
_THREADS = ThreadPoolExecutor(256, "asking")
# Codes of gRPC by the HTTP status that says the same
CODES = {
    400: grpc.StatusCode.INVALID_ARGUMENT,
    401: grpc.StatusCode.UNAUTHENTICATED,
    403: grpc.StatusCode.PERMISSION_DENIED,
    404: grpc.StatusCode.NOT_FOUND,
    503: grpc.StatusCode.UNAVAILABLE,
}
_STATUS = {code: status for status, code in CODES.items()}


@dataclass(frozen=True)
class Reply:
    """An HTTP answer; status 503 with the reason as body where no answer came."""

    status: int
    body: bytes
    headers: dict[str, str] = field(default_factory=dict)


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
    loop = asyncio.get_running_loop()
    return await loop.run_in_executor(_THREADS, _ask, host, port, method, path, body, headers or {}, timeout_s)


def _ask(
    host: str, port: int, method: str, path: str, body: bytes | None, headers: dict[str, str], timeout_s: float
) -> Reply:
    connection = http.client.HTTPConnection(host, port, timeout=timeout_s)
    try:
        connection.request(method, path, body, headers)
        answer = connection.getresponse()
        return Reply(answer.status, answer.read(), dict(answer.getheaders()))
    except (OSError, http.client.HTTPException) as error:
        return Reply(503, f"no answer: {error or type(error).__name__}".encode())
    finally:
        connection.close()


async def ask_for(
    member: Member, path: str, body: bytes, timeout_s: float, method: str = "POST", headers: Headers | None = None
) -> Reply:
    """Asks a replica, over HTTP or, where `path` is that of a gRPC method, over gRPC: `body` is the message then."""
    if path.startswith(GRPC_SERVICE):
        return await _call(f"{member.host}:{member.grpc_port}", path, body, timeout_s, headers or {})
    return await ask(member.host, member.http_port, method, path, body, headers, timeout_s)


async def _call(address: str, method: str, message: bytes, timeout_s: float, headers: Headers) -> Reply:
    async with grpc.aio.insecure_channel(address, options=ANY_SIZE) as channel:
        try:
            ask = channel.unary_unary(method)
            return Reply(200, await ask(message, timeout=timeout_s, metadata=tuple(headers.items())))
        except grpc.aio.AioRpcError as error:
            return Reply(_STATUS.get(error.code(), 500), (error.details() or error.code().name).encode())
