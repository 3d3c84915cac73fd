"""HTTP/2's frames (RFC 9113): their numbers, and packing and unpacking them."""

from __future__ import annotations

from struct import Struct

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"

# Types
DATA = 0
HEADERS = 1
PRIORITY = 2
RST_STREAM = 3
SETTINGS = 4
PUSH_PROMISE = 5
PING = 6
GOAWAY = 7
WINDOW_UPDATE = 8
CONTINUATION = 9

# Flags
END_STREAM = 0x1
ACK = 0x1
END_HEADERS = 0x4
PADDED = 0x8
HAS_PRIORITY = 0x20

# Settings
HEADER_TABLE_SIZE = 1
ENABLE_PUSH = 2
MAX_CONCURRENT_STREAMS = 3
INITIAL_WINDOW_SIZE = 4
MAX_FRAME_SIZE = 5
MAX_HEADER_LIST_SIZE = 6

# Error codes
NO_ERROR = 0
PROTOCOL_ERROR = 1
INTERNAL_ERROR = 2
FLOW_CONTROL_ERROR = 3
STREAM_CLOSED = 5
FRAME_SIZE_ERROR = 6
REFUSED_STREAM = 7
CANCEL = 8
COMPRESSION_ERROR = 9
ENHANCE_YOUR_CALM = 11

DEFAULT_WINDOW = 65_535
DEFAULT_FRAME_SIZE = 16_384
MAX_WINDOW = 2**31 - 1
HEAD_BYTES = 9

# Length and type share a word; then flags and stream.
HEAD = Struct(">IBI")
UINT32 = Struct(">I")
SETTING = Struct(">HI")
# The head of the answer to a ping
PONG_HEAD = HEAD.pack(8 << 8 | PING, ACK, 0)


class ConnectionFault(Exception):
    """The peer broke the protocol in a way that ends the connection; `code` is the error code of the GOAWAY."""

    def __init__(self, code: int, text: str) -> None:
        super().__init__(text)
        self.code = code


class StreamFault(Exception):
    """The peer broke the protocol in a way that ends one stream, with `code`; the connection goes on."""

    def __init__(self, stream: int, code: int, text: str) -> None:
        super().__init__(text)
        self.stream = stream
        self.code = code


def frame(kind: int, flags: int, stream: int, payload: bytes = b"") -> bytes:
    return HEAD.pack(len(payload) << 8 | kind, flags, stream) + payload


def data_head(length: int, stream: int) -> bytes:
    """The head of a DATA frame; the payload follows."""
    return HEAD.pack(length << 8, 0, stream)


def settings(values: dict[int, int]) -> bytes:
    return frame(SETTINGS, 0, 0, b"".join(SETTING.pack(*item) for item in values.items()))


def window_update(stream: int, increment: int) -> bytes:
    return frame(WINDOW_UPDATE, 0, stream, UINT32.pack(increment))


def rst_stream(stream: int, code: int) -> bytes:
    return frame(RST_STREAM, 0, stream, UINT32.pack(code))


def goaway(last_stream: int, code: int, text: str = "") -> bytes:
    return frame(GOAWAY, 0, 0, UINT32.pack(last_stream) + UINT32.pack(code) + text.encode())
