"""A gRPC client that sends messages as given and keeps whatever came back: messages, status, metadata.

Nothing is serialized or parsed here, so a case may send what is no message at all.
"""

from __future__ import annotations

import contextlib
import itertools
import queue
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import grpc

from .request import Rpc

COMPRESSIONS = {
    "": grpc.Compression.NoCompression,
    "gzip": grpc.Compression.Gzip,
    "deflate": grpc.Compression.Deflate,
}
# As real Triton's clients have it; without it a large message ends at the client.
OPTIONS = (("grpc.max_receive_message_length", -1), ("grpc.max_send_message_length", -1))
# How the client library tells that the connection is gone, in a status that no server sent.
LOST_SIGNS = ("Socket closed", "failed to connect", "Connection reset", "recvmsg:", "Stream removed")


@dataclass(frozen=True)
class RpcAnswer:
    """What one call gave back.

    ``ending`` is ``read``, ``cancelled`` where the case says so, ``timeout`` when the client gave up, or ``reset``.
    """

    messages: tuple[bytes, ...]
    status: str
    details: str
    initial: tuple[tuple[str, str], ...]
    trailing: tuple[tuple[str, str], ...]
    ending: str


def call(port: int, rpc: Rpc) -> RpcAnswer:
    """Makes the call on a connection of its own; a server's error is an answer like any other."""
    with grpc.insecure_channel(f"127.0.0.1:{port}", options=OPTIONS) as channel:
        received: list[bytes] = []
        answered: queue.SimpleQueue[bool] = queue.SimpleQueue()
        # To HTTP/2 the answer of a unary method is a stream of one message.
        start = channel.stream_stream(rpc.method) if rpc.stream else channel.unary_stream(rpc.method)
        active = start(
            _sent(rpc, answered) if rpc.stream else rpc.messages[0],
            timeout=rpc.deadline,
            metadata=rpc.metadata or None,
            compression=COMPRESSIONS[rpc.compression],
        )
        gave_up = threading.Event()
        guard = threading.Timer(rpc.timeout, lambda: (gave_up.set(), active.cancel()))
        guard.start()
        ending = "read"
        try:
            with contextlib.suppress(grpc.RpcError):
                for message in active:
                    received.append(message)
                    answered.put(True)
                    if len(received) == rpc.cancel_after:
                        ending = "cancelled"
                        active.cancel()
        finally:
            guard.cancel()
            answered.put(False)
        status, details = active.code().name, active.details() or ""
        if gave_up.is_set():
            ending = "timeout"
        elif status == "UNAVAILABLE" and any(sign in details for sign in LOST_SIGNS):
            ending, details = "reset", ""
        initial, trailing = _plain(active.initial_metadata()), _plain(active.trailing_metadata())
        return RpcAnswer(tuple(received), status, details, initial, trailing, ending)


def _sent(rpc: Rpc, answered: queue.SimpleQueue[bool]) -> Iterator[bytes]:
    """The messages in their order; one by one, an ended call lets go of those that are left."""
    yield from itertools.islice(rpc.messages, 1)
    for message in rpc.messages[1:]:
        if rpc.one_by_one and not answered.get():
            return
        yield message


def _plain(metadata: Any) -> tuple[tuple[str, str], ...]:
    return tuple(sorted((key, str(value)) for key, value in metadata or ()))
