"""Writing replies: status line and headers."""

from __future__ import annotations

import functools
import http
from collections.abc import Sequence

from stubserve.inference.memory import Block

_STATUS_LINES = {status.value: f"HTTP/1.1 {status.value} {status.phrase}\r\n".encode() for status in http.HTTPStatus}


JSON = "application/json"
BINARY = "application/octet-stream"


class Reply:
    """What goes back: `parts` are the body's buffers, the first the JSON.

    `json_length` is set where binary parts follow the JSON. Parts that are memoryviews lie in `blocks`, which must be
    held until they are sent. `headers` are those beyond type and lengths.
    """

    __slots__ = ("blocks", "content_type", "headers", "json_length", "parts", "status")

    def __init__(
        self, status: int, content_type: str, json_length: int | None, parts: Sequence[bytes | memoryview]
    ) -> None:
        self.status = status
        self.content_type = content_type
        self.json_length = json_length
        self.parts = parts
        self.headers: tuple[tuple[str, str], ...] = ()
        self.blocks: Sequence[Block] = ()


# Like heads of requests, those of replies are the same again and again.
@functools.lru_cache(maxsize=1024)
def reply_head(
    status: int,
    content_type: str,
    length: int,
    json_length: int | None = None,
    extra: tuple[tuple[str, str], ...] = (),
    keep_alive: bool = True,
) -> bytes:
    """Status line and header fields of a reply with a body of `length` bytes."""
    lines = [_STATUS_LINES[status], b"Content-Type: %b\r\n" % content_type.encode()]
    if json_length is not None:
        lines.append(b"Inference-Header-Content-Length: %d\r\n" % json_length)
    lines.extend(f"{name}: {value}\r\n".encode("latin-1") for name, value in extra)
    if not keep_alive:
        lines.append(b"Connection: close\r\n")
    lines.append(b"Content-Length: %d\r\n\r\n" % length)
    return b"".join(lines)
