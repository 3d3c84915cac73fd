"""Writing replies: status line and headers."""

from __future__ import annotations

import functools
import http
from collections.abc import Sequence

from stubserve.memory.blocks import Block

_STATUS_LINES = {status.value: f"HTTP/1.1 {status.value} {status.phrase}\r\n".encode() for status in http.HTTPStatus}


JSON = "application/json"
BINARY = "application/octet-stream"


class Reply:
    """What goes back: `parts` are the body's buffers, the first the JSON.

    `json_length` is set where binary parts follow the JSON. Parts that are memoryviews lie in `blocks`, which must be
    held until they are sent. `headers` are those beyond type and lengths. Where it is `chunked` the parts are chunks.
    """

    __slots__ = ("blocks", "chunked", "content_type", "headers", "json_length", "parts", "status")

    def __init__(
        self, status: int, content_type: str, json_length: int | None, parts: Sequence[bytes | memoryview]
    ) -> None:
        self.status = status
        self.content_type = content_type
        self.json_length = json_length
        self.parts = parts
        self.headers: tuple[tuple[str, str], ...] = ()
        self.blocks: Sequence[Block] = ()
        self.chunked = False


def reply_head(
    status: int,
    content_type: str,
    length: int | None,
    json_length: int | None = None,
    extra: tuple[tuple[str, str], ...] = (),
    keep_alive: bool = True,
) -> bytes:
    """Status line and header fields of a reply with a body of `length` bytes, None for one in chunks."""
    if length is None:
        return _form(status, content_type, False, (*extra, ("Transfer-Encoding", "chunked")), keep_alive, False)
    if json_length is None:
        return _form(status, content_type, False, extra, keep_alive) % length
    return _form(status, content_type, True, extra, keep_alive) % (json_length, length)


# But for their lengths the heads of replies are the same again and again.
@functools.lru_cache(maxsize=1024)
def _form(
    status: int,
    content_type: str,
    has_json: bool,
    extra: tuple[tuple[str, str], ...],
    keep_alive: bool,
    has_length: bool = True,
) -> bytes:
    """A head, with `%d` in the places of its lengths."""
    lines = [_STATUS_LINES[status], b"Content-Type: %b\r\n" % content_type.encode()]
    if has_json:
        lines.append(b"Inference-Header-Content-Length: %d\r\n")
    lines.extend(f"{name}: {value}\r\n".encode("latin-1") for name, value in extra)
    if not keep_alive:
        lines.append(b"Connection: close\r\n")
    if has_length:
        lines.append(b"Content-Length: %d\r\n")
    lines.append(b"\r\n")
    return b"".join(lines)
