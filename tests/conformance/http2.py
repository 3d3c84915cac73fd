"""A client of the gRPC port that sends frames as given, right or wrong, and keeps what comes back of them.

Kept are the ends of streams and of the connection: trailers, RST_STREAM, GOAWAY; the first of each, as real Triton ends
some streams again and again. What each server chooses freely (settings, window updates, pings, the text of a GOAWAY) is
not kept.
"""

from __future__ import annotations

import contextlib
import functools
import socket
import struct
import time
from dataclasses import dataclass

from hpack import Decoder, Encoder

from .request import Frames

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"

DATA, HEADERS, PRIORITY, RST_STREAM, SETTINGS, PUSH_PROMISE, PING, GOAWAY, WINDOW_UPDATE, CONTINUATION = range(10)
END_STREAM, END_HEADERS, PADDED, HAS_PRIORITY = 1, 4, 8, 32
ACK = 1
CODES = (
    "NO_ERROR",
    "PROTOCOL_ERROR",
    "INTERNAL_ERROR",
    "FLOW_CONTROL_ERROR",
    "SETTINGS_TIMEOUT",
    "STREAM_CLOSED",
    "FRAME_SIZE_ERROR",
    "REFUSED_STREAM",
    "CANCEL",
    "COMPRESSION_ERROR",
    "CONNECT_ERROR",
    "ENHANCE_YOUR_CALM",
    "INADEQUATE_SECURITY",
    "HTTP_1_1_REQUIRED",
)
# The call that follows what a case sends: it shows whether the connection still serves.
LAST_STREAM = 99_999
LIVE = "/inference.GRPCInferenceService/ServerLive"


@dataclass(frozen=True)
class FramesAnswer:
    """How streams ended, and as stream 0 the connection: ``grpc-status 0``, ``RST_STREAM CANCEL``, ``GOAWAY NO_ERROR``.

    ``ending`` is ``served`` when the call behind the case's frames was answered, else ``closed`` or ``timeout``.
    """

    events: tuple[tuple[int, str], ...]
    ending: str


def frame(kind: int, flags: int, stream: int, payload: bytes = b"") -> bytes:
    return struct.pack(">IBI", len(payload) << 8 | kind, flags, stream) + payload


def head(stream: int, path: str = LIVE, flags: int = END_HEADERS, **more: str) -> bytes:
    """A HEADERS frame that opens a call; nothing in it depends on blocks before it."""
    return frame(HEADERS, flags, stream, _block(path, **more))


@functools.cache
def _block(path: str, **more: str) -> bytes:
    fields = {":method": "POST", ":scheme": "http", ":path": path, ":authority": "localhost", "te": "trailers"}
    fields["content-type"] = "application/grpc"
    fields.update((name.replace("_", "-"), value) for name, value in more.items())
    return Encoder().encode(list(fields.items()), huffman=False)


def message(stream: int, content: bytes = b"", flags: int = END_STREAM) -> bytes:
    """A DATA frame with one message of gRPC."""
    return frame(DATA, flags, stream, b"\0" + struct.pack(">I", len(content)) + content)


def settings(*pairs: tuple[int, int]) -> bytes:
    return frame(SETTINGS, 0, 0, b"".join(struct.pack(">HI", *pair) for pair in pairs))


def number(kind: int, stream: int, value: int) -> bytes:
    """A frame that is one number: WINDOW_UPDATE, RST_STREAM."""
    return frame(kind, 0, stream, struct.pack(">I", value))


def exchange(port: int, step: Frames) -> FramesAnswer:
    """Sends what the step says and a last call behind it; reads until that is answered, or the connection ends."""
    events: dict[int, str] = {}
    deadline = time.monotonic() + step.timeout
    try:
        with socket.create_connection(("127.0.0.1", port), timeout=step.timeout) as sock:
            # What the server says before it closes still counts.
            with contextlib.suppress(BrokenPipeError, ConnectionResetError):
                sock.sendall(step.data + (head(LAST_STREAM) + message(LAST_STREAM) if step.call_behind else b""))
            ending = _read(sock, deadline, events, step.ends)
    except TimeoutError:
        ending = "timeout"
    except ConnectionResetError:
        ending = "closed"
    return FramesAnswer(tuple(events.items()), ending)


def _read(sock: socket.socket, deadline: float, events: dict[int, str], ends: int) -> str:
    buffer = bytearray()
    decoder = Decoder()
    while True:
        while len(buffer) >= 9 and len(buffer) >= 9 + (size := int.from_bytes(buffer[:3], "big")):
            kind, flags, stream = buffer[3], buffer[4], int.from_bytes(buffer[5:9], "big")
            payload = bytes(buffer[9 : 9 + size])
            del buffer[: 9 + size]
            status = _status(kind, flags, payload, decoder)
            if status and stream not in events:
                events[stream] = status
            if LAST_STREAM in events and len(events) > ends:
                return "served"
        left = deadline - time.monotonic()
        if left <= 0:
            raise TimeoutError
        sock.settimeout(left)
        data = sock.recv(1 << 16)
        if not data:
            return "closed"
        buffer += data


def _status(kind: int, flags: int, payload: bytes, decoder: Decoder) -> str:
    """What a frame says about an end; empty if nothing."""
    if kind == HEADERS:
        fields = dict(decoder.decode(payload))
        if flags & END_STREAM:
            return f"grpc-status {fields['grpc-status']}" if "grpc-status" in fields else f":status {fields[':status']}"
    elif kind == RST_STREAM:
        return f"RST_STREAM {_code(payload[:4])}"
    elif kind == GOAWAY:
        return f"GOAWAY {_code(payload[4:8])}"
    return ""


def _code(number: bytes) -> str:
    value = int.from_bytes(number, "big")
    return CODES[value] if value < len(CODES) else str(value)
