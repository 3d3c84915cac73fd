"""HTTP messages: the heads of requests, as httptools parses them, and replies."""

# Compiled by mypyc.
from __future__ import annotations

import functools
import http
import re
from collections.abc import Sequence
from urllib.parse import unquote

import httptools

from stubserve.memory.blocks import Block

MAX_HEAD_BYTES = 64 * 1024
MAX_FIELDS = 256

# The fields of a head that matter to the connection or to inference
_FIELDS = frozenset(
    (
        b"host",
        b"connection",
        b"content-length",
        b"transfer-encoding",
        b"expect",
        b"content-encoding",
        b"accept-encoding",
        b"inference-header-content-length",
        b"traceparent",
    )
)

_ROUTE = re.compile(r"/v2/models/([^/]+)(?:/versions/([0-9]+))?/(infer|generate)")
# A name that needs no decoding
_PLAIN_NAME = re.compile(r"[!-$&-~]+")

JSON = "application/json"
BINARY = "application/octet-stream"

_STATUS_LINES = {status.value: f"HTTP/1.1 {status.value} {status.phrase}\r\n".encode() for status in http.HTTPStatus}

_HTTP2_PREFACE = b"PRI * HTTP/2.0\r\n\r\n"
# The bytes that a request line can begin with
_METHOD_LETTERS = frozenset(b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz!#$%&'*+-.^_`|~0123456789\r\n")
_TLS_HANDSHAKE = 0x16
# RFC 3986; the address inside of brackets is not checked
_HOST = re.compile(rb"(?:\[[^\]\s]*\]|[\w.~!$&'()*+,;=%-]*)(?::[0-9]*)?", re.ASCII)


class BadRequest(Exception):
    """Bytes that are no HTTP/1 request after which the next could be read; `status` is the status of the answer."""

    def __init__(self, text: str, status: int = 400) -> None:
        super().__init__(text)
        self.status = status


class RequestHead:
    """What a request says before its body. Header names and values are bytes as sent, None where absent."""

    __slots__ = (
        "accept_encoding",
        "chunked",
        "content_encoding",
        "content_length",
        "expects_continue",
        "generate",
        "header_length",
        "headers",
        "infer",
        "keep_alive",
        "method",
        "target",
        "trace_parent",
    )

    def __init__(self) -> None:
        self.method = b""
        self.target = b""
        self.headers: list[tuple[bytes, bytes]] = []
        self.keep_alive = True
        self.content_length = 0
        self.chunked = False
        self.expects_continue = False
        self.content_encoding: bytes | None = None
        # (model, version text) if the route is inference and the method POST
        self.infer: tuple[str, str] | None = None
        # The same for `generate`, if nothing about the request is unusual
        self.generate: tuple[str, str] | None = None
        self.header_length: bytes | None = None
        self.accept_encoding: bytes | None = None
        self.trace_parent: bytes | None = None

    def values(self, name: str) -> list[bytes]:
        """The values of the fields of this name; `name` is in lower case."""
        wanted = name.encode()
        return [value for one, value in self.headers if one.lower() == wanted]

    def trace_context(self) -> str | None:
        """The value of `traceparent`, None without one."""
        return None if self.trace_parent is None else self.trace_parent.decode("latin-1").strip()

    # Callbacks of the parser

    def on_url(self, url: bytes) -> None:
        self.target += url

    def on_header(self, name: bytes, value: bytes) -> None:
        self.headers.append((name, value))


class Http2Preface(Exception):
    """The client speaks HTTP/2, as gRPC does."""


def check_beginning(data: bytes) -> None:
    """Refuses bytes that can never be a request, without waiting for the end of a head. Raises BadRequest."""
    if data[0] not in _METHOD_LETTERS:
        if data[0] == _TLS_HANDSHAKE:
            raise BadRequest("this port speaks HTTP, not HTTPS")
        raise BadRequest("Invalid request line")
    if len(data) > MAX_HEAD_BYTES:
        raise too_large_head()


def has_asked(beginning: bytes) -> bool:
    """Whether a connection's first bytes hold a whole head, or can never be a request."""
    return b"\r\n\r\n" in beginning or beginning[0] not in _METHOD_LETTERS


def too_large_head() -> BadRequest:
    return BadRequest(f"Request head is too large: it may have {MAX_HEAD_BYTES} bytes", 431)


def parse_head(data: bytes) -> RequestHead:
    """Parses a head that ends with its empty line. Raises BadRequest, Http2Preface."""
    if len(data) > MAX_HEAD_BYTES:
        raise too_large_head()
    if data == _HTTP2_PREFACE:
        raise Http2Preface
    head = RequestHead()
    parser = httptools.HttpRequestParser(head)
    try:
        parser.feed_data(data)
    except httptools.HttpParserUpgrade:
        pass  # answered as an ordinary request, which the protocol allows
    except httptools.HttpParserError as error:
        raise BadRequest(str(error)) from None
    head.method = parser.get_method()
    http_version = parser.get_http_version()
    if http_version == "0.9":
        raise BadRequest("HTTP/0.9 is not served; the request line of HTTP/1.1 ends with HTTP/1.1", 505)
    if len(head.headers) > MAX_FIELDS:
        raise BadRequest(f"Request head has {len(head.headers)} fields; it may have {MAX_FIELDS}", 431)
    hosts = 0
    has_valid_host = True
    has_other_coding = False
    closes = False
    length: bytes | None = None
    for field, value in head.headers:
        name = field.lower()
        if name not in _FIELDS:
            continue
        if name == b"host":
            hosts += 1
            has_valid_host = has_valid_host and _HOST.fullmatch(value) is not None
        elif name == b"content-length":
            length = value
        elif name == b"inference-header-content-length":
            head.header_length = value
        elif name == b"accept-encoding":
            head.accept_encoding = value
        elif name == b"traceparent":
            if head.trace_parent is None:
                head.trace_parent = value
        elif name == b"content-encoding":
            head.content_encoding = value
        elif name == b"connection":
            closes = closes or b"close" in [option.strip() for option in value.lower().split(b",")]
        elif name == b"expect":
            head.expects_continue = value.lower() == b"100-continue"
        else:
            head.chunked = value.lower() == b"chunked"
            has_other_coding = has_other_coding or not head.chunked
    if (not hosts and http_version == "1.1") or hosts > 1 or not has_valid_host:
        raise BadRequest("Request must have one Host header with a valid value")
    if has_other_coding:
        raise BadRequest("Unsupported transfer-encoding")
    # A client of HTTP/1.0 expects a close unless the answer says otherwise, which ours do not. `closes` is needed
    # because the parser forgets the fields of a request that has no body.
    head.keep_alive = http_version != "1.0" and parser.should_keep_alive() and not closes
    if length is not None and not head.chunked:
        head.content_length = int(length)  # the parser has checked that it is a number
    if head.method == b"POST":
        route = _ROUTE.fullmatch(head.target.partition(b"?")[0].decode("latin-1"))
        if route is not None:
            model, version, verb = route.groups()
            if verb == "infer":
                head.infer = (unquote(model), version or "")
            elif (
                head.keep_alive
                and not (head.chunked or head.expects_continue)
                and head.content_encoding is None
                and _PLAIN_NAME.fullmatch(model)
            ):
                head.generate = (model, version or "")
    return head


class Reply:
    """An answer: `parts` are the body's buffers, the first the JSON.

    `json_length` is set where binary parts follow the JSON. Parts that are memoryviews lie in `blocks`, which must be
    held until they are sent. `headers` come beside type and lengths. If `chunked`, the parts are chunks.
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


# Apart from their lengths the heads of replies repeat.
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
