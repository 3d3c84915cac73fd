"""Bodies of requests: their limits, where large bodies are received, and the chunked transfer coding.

uvicorn's parser decodes chunks for the routes that uvicorn handles, but does not tell at which byte a message ends. Our
connection needs to know, because it hands single requests to different handlers.
"""

from __future__ import annotations

import re
from collections.abc import Hashable

from stubserve_stub.wire.layout import ALIGNMENT

from stubserve.api.inference_server import InferenceServer
from stubserve.connections.receive_buffers import ArenaBuffer
from stubserve.connections.slow_clients import Owner
from stubserve.errors import Code, ServeError, invalid
from stubserve.http.message import MAX_FIELDS, BadRequest, RequestHead

DEFAULT_MAX_INPUT_SIZE = 64 << 20
LIMIT_HINT = "Use --http-max-input-size to increase the limit."
# Content-Length is parsed as a 32-bit number upstream.
MAX_BODY_BYTES = 2**31 - 1
# Chunks that are not empty, as upstream
MAX_CHUNKS = 65536
_MAX_LINE = 4096
# A chunk's size, with an extension, and a field of a trailer; both are ignored, and must not hide anything
_SIZE = re.compile(rb"([0-9A-Fa-f]{1,15})[ \t]*(?:;[\t\x20-\x7e\x80-\xff]*)?").fullmatch
_TRAILER = re.compile(rb"[!#$%&'*+.^_`|~0-9A-Za-z-]+:[\t\x20-\x7e\x80-\xff]*").fullmatch


def too_large(what: str, nbytes: int, max_input_size: int) -> ServeError:
    return invalid(
        f"{what} has a byte_size ({nbytes} bytes) that exceeds the maximum allowed value of {max_input_size} bytes. "
        f"{LIMIT_HINT}"
    )


def too_long_json(
    nbytes: int | str, limit: int, what: str = "request JSON size", hint: str = f" {LIMIT_HINT}"
) -> ServeError:
    return ServeError(
        Code.TOO_LARGE, f"{what} of {nbytes} bytes exceeds the maximum allowed input size of {limit} bytes.{hint}"
    )


def body_buffer(server: InferenceServer, head: RequestHead, connection: Hashable, owner: Owner) -> ArenaBuffer:
    """Where a body of known length is received in the arena. Raises ServeError (503) if memory is short."""
    return server.receive_buffers.arena_buffer(connection, owner, head.content_length, body_start(head))


def body_start(head: RequestHead) -> int:
    """The offset in its block at which a body begins. It puts the first tensor at a multiple of ALIGNMENT."""
    text = head.header_length or b""
    json_length = int(text) if text.isdigit() and len(text) < 20 else 0
    return -json_length % ALIGNMENT


def refusal(head: RequestHead, server: InferenceServer) -> ServeError | None:
    """The error that a body still to come is certain to end in, so that nobody collects it; None otherwise."""
    assert head.infer is not None
    if head.content_length > MAX_BODY_BYTES:
        return invalid(
            "Unable to parse Content-Length, value is out of range "
            f"[ {-MAX_BODY_BYTES - 1}, {MAX_BODY_BYTES} ], got: {head.content_length}"
        )
    try:
        server.find_model(*head.infer)
    except ServeError as error:
        return error.with_traceback(None)  # the traceback refers to the caller's frame
    if head.header_length is None and head.content_length > server.max_input_size:
        return too_long_json(head.content_length, server.max_input_size)
    return None


class ChunkedBody:
    """Decodes one body. `done` is true once the last chunk and the trailer have been read."""

    def __init__(self) -> None:
        self.done = False
        self._chunks = 0
        self._trailers = 0
        self._left = 0
        self._line = bytearray()
        # What the next line is: a chunk's size, the end of a chunk's data, or a part of the trailer
        self._expect = "size"

    def feed(self, data: bytes, position: int) -> tuple[list[bytes], int]:
        """Decodes from `position` on: (pieces of the body, position behind the last byte used).

        Raises BadRequest for bytes that are not chunked coding, and for too many chunks.
        """
        pieces = []
        while position < len(data) and not self.done:
            if self._left:
                piece = data[position : position + self._left]
                pieces.append(piece)
                position += len(piece)
                self._left -= len(piece)
                continue
            end = data.find(b"\n", position)
            self._line += data[position : end if end >= 0 else len(data)]
            if len(self._line) > _MAX_LINE:
                raise BadRequest("Invalid chunk")
            if end < 0:
                return pieces, len(data)
            position = end + 1
            line, self._line = bytes(self._line), bytearray()
            if not line.endswith(b"\r"):
                raise BadRequest("Invalid chunk")
            self._on_line(line[:-1])
        return pieces, position

    def _on_line(self, line: bytes) -> None:
        if self._expect == "size":
            size = _SIZE(line)
            if size is None:
                raise BadRequest("Invalid chunk size")
            self._left = int(size[1], 16)
            if self._left:
                self._chunks += 1
                if self._chunks > MAX_CHUNKS:
                    raise BadRequest(
                        f"Chunked request body exceeds maximum of {MAX_CHUNKS} non-empty chunks. "
                        "Send fewer or larger HTTP chunks."
                    )
                self._expect = "end"
            else:
                self._expect = "trailer"
        elif self._expect == "end":
            if line:
                raise BadRequest("Invalid chunk")
            self._expect = "size"
        elif not line:
            self.done = True
        else:
            self._trailers += 1
            if self._trailers > MAX_FIELDS or _TRAILER(line) is None:
                raise BadRequest("Invalid trailer")
