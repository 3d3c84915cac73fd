"""Frames on a gRPC connection, with RPCs that answer what they are sent.

The first byte says in how long pieces the rest is read; read in one piece the answers must be the same.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Sequence
from typing import Any, cast

from hpack import Encoder

from stubserve.grpc.http2 import frames
from stubserve.grpc.http2.connection import Http2Connection
from stubserve.grpc.http2.endpoint import SHORT_MESSAGES_BYTES, Endpoint
from stubserve.grpc.transport import OK, Method, Rpc
from stubserve.memory.blocks import Block
from stubserve.settings.fronts import GrpcSettings

from ..finding import Finding, same
from ..server import FuzzedServer, Transport, cut, deliver, in_loop

WHOLE = 1 << 16
SCRATCH = memoryview(bytearray(WHOLE))


class Echo:
    """An RPC that sends back what it is sent."""

    def __init__(self, unary: bool, call: Rpc) -> None:
        self._unary = unary
        self._call = call

    def on_message(self, data: bytes | memoryview, block: Block | None = None, offset: int = 0) -> None:
        parts: Sequence[bytes] = [bytes(data)]
        if self._unary:
            self._call.reply(parts, [])
        else:
            self._call.send(parts, [])

    def on_half_close(self) -> None:
        self._call.finish(OK)

    def on_writable(self) -> None:
        pass

    def on_cancel(self) -> None:
        pass

    def stop(self) -> None:
        pass


METHODS = {
    "/a/Unary": Method(lambda call: Echo(True, call), True, True),
    "/a/Stream": Method(lambda call: Echo(False, call), False, True),
}


def fuzz_one(data: bytes) -> None:
    if not data:
        return
    size = data[0] % 64 + 1
    text = frames.PREFACE[: 0 if data[0] >= 0xF0 else None] + data[1:]
    whole = in_loop(_answers(cut(text, WHOLE)))
    pieces = in_loop(_answers(cut(text, size)))
    same(_told(whole), _told(pieces), "pieces are answered differently", f"of {size} bytes")


_ROOM = re.compile(rb"no room for [0-9]+ bytes")
_ADDRESS = re.compile(rb"at 0x[0-9a-f]+")


async def _answers(pieces: list[bytes]) -> bytes:
    server = FuzzedServer()
    endpoint = Endpoint(cast(Any, server), METHODS, GrpcSettings())
    endpoint.scratch_view = SCRATCH
    sent = await deliver(Http2Connection(endpoint), Transport(), pieces)
    if server.held or endpoint.short_messages_left != SHORT_MESSAGES_BYTES:
        raise Finding(
            "memory is held by a connection that is gone", f"{server.held} and {endpoint.short_messages_left}"
        )
    if _ADDRESS.search(sent):
        raise Finding("a client is told where something lies in the server's memory", repr(sent[-200:]))
    return sent


def _told(sent: bytes) -> dict[int, list[bytes]]:
    """The frames by stream.

    Which stream is served first, when windows are widened, where a message was to lie, and whether a client has yet to
    be told that it may stop sending what is answered already, depends on what had arrived.
    """
    found: dict[int, list[bytes]] = {}
    at = 0
    while at < len(sent):
        word, _, stream = frames.HEAD.unpack_from(sent, at)
        end = at + frames.HEAD_BYTES + (word >> 8)
        kind, payload = word & 0xFF, sent[at + frames.HEAD_BYTES : end]
        if kind == frames.WINDOW_UPDATE or (kind == frames.RST_STREAM and not any(payload)):
            pass
        elif kind != frames.DATA:
            found.setdefault(stream, []).append(_ROOM.sub(b"no room", sent[at:end]))
        else:
            # Long answers are cut where windows end.
            data = found.setdefault(stream, [])
            if data and data[-1].startswith(b"data"):
                data[-1] += payload
            else:
                data.append(b"data" + payload)
        at = end
    return found


def block(path: str, *more: tuple[str, str]) -> bytes:
    fields = [(":method", "POST"), (":scheme", "http"), (":path", path), (":authority", "a:1")]
    text: bytes = Encoder().encode([*fields, ("content-type", "application/grpc"), ("te", "trailers"), *more])
    return text


def call(stream: int, path: str, message: bytes, *more: tuple[str, str], ends: bool = True) -> bytes:
    data = b"\0" + len(message).to_bytes(4, "big") + message
    return frames.frame(frames.HEADERS, frames.END_HEADERS, stream, block(path, *more)) + frames.frame(
        frames.DATA, frames.END_STREAM if ends else 0, stream, data
    )


SETTINGS = frames.settings({frames.INITIAL_WINDOW_SIZE: 1 << 20})
PADDED = frames.frame(frames.DATA, frames.PADDED | frames.END_STREAM, 1, b"\3\0\0\0\0\1a\0\0\0")
HEAD_ONLY = frames.frame(frames.HEADERS, frames.END_HEADERS, 1, block("/a/Unary"))
SPLIT = block("/a/Stream")
SEEDS = [
    b"\5" + SETTINGS + call(1, "/a/Unary", b"hello") + call(3, "/a/Unary", b"again"),
    b"\x3f" + SETTINGS + call(1, "/a/Stream", b"one", ends=False) + frames.frame(frames.DATA, 1, 1, b"\0\0\0\0\0"),
    b"\1" + SETTINGS + frames.window_update(0, 1000) + HEAD_ONLY + PADDED,
    b"\7" + call(1, "/a/None", b"x") + call(3, "/a/Unary", b"x", ("grpc-timeout", "1H")) + frames.rst_stream(3, 8),
    b"\x20" + frames.frame(frames.HEADERS, 0, 1, SPLIT[:9]) + frames.frame(frames.CONTINUATION, 4, 1, SPLIT[9:]),
    b"\x09"
    + frames.frame(frames.PING, 0, 0, bytes(8))
    + frames.goaway(0, 0)
    + frames.frame(frames.PRIORITY, 0, 1, bytes(5)),
    b"\x10" + SETTINGS + call(1, "/a/Unary", bytes(70_000)[:16_000], ends=False),
    b"\x10" + SETTINGS + HEAD_ONLY + frames.frame(frames.DATA, 0, 1, b"\0\0\1\x20\0" + bytes(8000)),
    b"\xf1GET / HTTP/1.1\r\n\r\n",
]
WORDS = [
    struct.pack(">IBI", length << 8 | kind, flags, stream)
    for kind in range(11)
    for length, flags, stream in ((0, 0, 0), (4, 5, 1), (8, 1, 3))
] + [SETTINGS, HEAD_ONLY, PADDED, frames.rst_stream(1, 8), frames.window_update(1, 1)]
