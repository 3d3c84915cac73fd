"""Request heads: request line and header fields, parsed by httptools and remembered.

A client that keeps its connection sends the same head again and again, byte for byte. So a parsed head is kept by its
bytes, and a repeated one costs a dictionary lookup. The memory is bounded by count and by the size of what it keeps.
"""

from __future__ import annotations

import re
from urllib.parse import unquote

import httptools

from stubserve.protocols.http import compression

MAX_HEAD_BYTES = 64 * 1024
MAX_FIELDS = 256
_CACHED_HEADS = 1024
_CACHED_HEAD_BYTES = 1024

_INFER = re.compile(r"/v2/models/([^/]+)(?:/versions/([0-9]+))?/infer")


_HTTP2_PREFACE = b"PRI * HTTP/2.0\r\n\r\n"
# What a request line can begin with
_METHOD_LETTERS = frozenset(b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz!#$%&'*+-.^_`|~0123456789\r\n")
_TLS_HANDSHAKE = 0x16
# RFC 3986, but for what is inside of the brackets of an address
_HOST = re.compile(rb"(?:\[[^\]\s]*\]|[\w.~!$&'()*+,;=%-]*)(?::[0-9]*)?", re.ASCII)


class BadRequest(Exception):
    """The bytes are no HTTP/1 request that can be answered and followed by another; `status` is that of the answer."""

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
        "header_length",
        "headers",
        "infer",
        "keep_alive",
        "method",
        "repeatable",
        "target",
    )

    def __init__(self) -> None:
        self.method = b""
        self.target = b""
        self.headers: list[tuple[bytes, bytes]] = []
        self.keep_alive = True
        # Of the body
        self.content_length = 0
        self.chunked = False
        self.expects_continue = False
        self.content_encoding: bytes | None = None
        # Of inference: (model, version text) where it is an inference route called with POST
        self.infer: tuple[str, str] | None = None
        self.header_length: bytes | None = None
        self.accept_encoding: bytes | None = None
        # Whether the next request on the connection can be just like it, with nothing negotiated
        self.repeatable = False

    # Callbacks of the parser

    def on_url(self, url: bytes) -> None:
        self.target += url

    def on_header(self, name: bytes, value: bytes) -> None:
        self.headers.append((name, value))


class Http2Preface(Exception):
    """The client speaks HTTP/2, as gRPC does."""


def check_beginning(data: bytes, position: int) -> None:
    """Refuses what will never be a request, without waiting for the end of its head. Raises BadRequest."""
    if data[position] not in _METHOD_LETTERS:
        if data[position] == _TLS_HANDSHAKE:
            raise BadRequest("this port speaks HTTP, not HTTPS")
        raise BadRequest("Invalid request line")
    if len(data) - position > MAX_HEAD_BYTES:
        raise too_large_head()


def has_asked(beginning: bytes) -> bool:
    """Whether a connection's first bytes hold the whole head of a request, or what will never be one."""
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
    if len(head.headers) > MAX_FIELDS:
        raise BadRequest(f"Request head has {len(head.headers)} fields; it may have {MAX_FIELDS}", 431)
    fields = [(name.lower(), value) for name, value in head.headers]
    hosts = [value for name, value in fields if name == b"host"]
    if (not hosts and parser.get_http_version() == "1.1") or len(hosts) > 1 or not all(map(_HOST.fullmatch, hosts)):
        raise BadRequest("Request must have one Host header with a valid value")
    # A client of HTTP/1.0 takes a connection for closing unless the answer says otherwise, which ours do not.
    head.keep_alive = parser.get_http_version() != "1.0" and parser.should_keep_alive()
    length: bytes | None = None
    for name, value in fields:
        if name == b"content-length":
            length = value
        elif name == b"transfer-encoding":
            head.chunked = value.lower() == b"chunked"
            if not head.chunked:
                raise BadRequest("Unsupported transfer-encoding")
        elif name == b"expect":
            head.expects_continue = value.lower() == b"100-continue"
        elif name == b"content-encoding":
            head.content_encoding = value
        elif name == b"accept-encoding":
            head.accept_encoding = value
        elif name == b"inference-header-content-length":
            head.header_length = value
    if length is not None and not head.chunked:
        head.content_length = int(length)  # the parser has checked that it is a number
    if head.method == b"POST":
        match = _INFER.fullmatch(head.target.partition(b"?")[0].decode("latin-1"))
        if match:
            head.infer = (unquote(match[1]), match[2] or "")
    head.repeatable = (
        head.keep_alive
        and head.content_encoding is None
        and (head.accept_encoding is None or compression.choose(head.accept_encoding) is None)
    )
    return head


class HeadCache:
    """Parsed heads by their bytes."""

    def __init__(self) -> None:
        self._heads: dict[bytes, RequestHead] = {}

    def known(self, data: bytes) -> RequestHead | None:
        """The parsed head if it was seen before."""
        return self._heads.get(data)

    def get(self, data: bytes) -> RequestHead:
        """The parsed head, from memory if it was seen before. Raises BadRequest, Http2Preface."""
        head = self._heads.get(data)
        if head is None:
            head = parse_head(data)
            if len(data) <= _CACHED_HEAD_BYTES:
                if len(self._heads) >= _CACHED_HEADS:
                    self._heads.clear()
                self._heads[data] = head
        return head
