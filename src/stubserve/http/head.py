"""Request heads: request line and header fields, parsed by httptools, and what was learned from that.

A client that keeps its connection sends the same head again and again, byte for byte. So a parsed head is kept by its
bytes, and a repeated one costs a dictionary lookup. Where requests differ their heads do, too, by their lengths at
least; but they are made of lines and names that were seen before, in one order or another. So what httptools has
accepted is also remembered line by line, and a head of known lines is put together from them, 3 µs in place of 14.
Only what means the same wherever it stands is known: a line of a name that says something of the connection or of how
the body is framed, other than its length, is httptools' to read, and so is a head in which anything is unusual.

The memory is bounded by count and by the size of what it keeps.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from urllib.parse import unquote

import httptools

MAX_HEAD_BYTES = 64 * 1024
MAX_FIELDS = 256
_CACHED_HEADS = 1024
_CACHED_HEAD_BYTES = 1024
_KNOWN_LINES = 1024

# What a line of a head is, as far as it matters: one of those below, or of no account
_PLAIN, _HOST_LINE, _ACCEPT_ENCODING, _CREDENTIAL, _CONTENT_LENGTH, _HEADER_LENGTH, _TRACE_PARENT = range(7)
_KINDS = {
    b"host": _HOST_LINE,
    b"accept-encoding": _ACCEPT_ENCODING,
    b"content-length": _CONTENT_LENGTH,
    b"inference-header-content-length": _HEADER_LENGTH,
    b"traceparent": _TRACE_PARENT,
}
# Those whose values are hardly ever the same again: only their names are known.
_OWN_VALUE = frozenset((_CONTENT_LENGTH, _HEADER_LENGTH, _TRACE_PARENT))
# A head with one of these is parsed as a whole, but for a connection that is to be kept alive, as it would be anyhow.
_NEVER_KNOWN = frozenset(
    (b"connection", b"proxy-connection", b"transfer-encoding", b"upgrade", b"expect", b"content-encoding")
)
_KEEPS_ALIVE = (b"connection", b"keep-alive")
# What httptools takes for a value, and more digits than these for a length might be too many
_VALUE = re.compile(rb"[\t\x20-\x7e\x80-\xff]*").fullmatch
_LENGTH_DIGITS = 18

_INFER = re.compile(r"/v2/models/([^/]+)(?:/versions/([0-9]+))?/infer")
_GENERATE = re.compile(r"/v2/models/([!-$&-.0-~]+)(?:/versions/([0-9]+))?/generate")

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
        "_headers",
        "_lines",
        "accept_encoding",
        "chunked",
        "content_encoding",
        "content_length",
        "credentials",
        "expects_continue",
        "generate",
        "header_length",
        "infer",
        "keep_alive",
        "method",
        "target",
        "trace_parent",
    )

    def __init__(self) -> None:
        self.method = b""
        self.target = b""
        # The header fields, or the lines that they are still to be cut out of
        self._headers: list[tuple[bytes, bytes]] = []
        self._lines: list[bytes] = []
        self.keep_alive = True
        # Of the body
        self.content_length = 0
        self.chunked = False
        self.expects_continue = False
        self.content_encoding: bytes | None = None
        # Of inference: (model, version text) where it is an inference route called with POST
        self.infer: tuple[str, str] | None = None
        # The same for `generate`, where the route is written plainly
        self.generate: tuple[str, str] | None = None
        self.header_length: bytes | None = None
        self.accept_encoding: bytes | None = None
        self.trace_parent: bytes | None = None
        # The fields by which it is told who asks, as they came, where a memory of heads was asked to say that
        self.credentials: tuple[bytes, ...] = ()

    @property
    def headers(self) -> list[tuple[bytes, bytes]]:
        """All header fields: names and values."""
        if self._lines:
            self._headers, self._lines = list(map(_field, self._lines)), []
        return self._headers

    def values(self, name: str) -> list[bytes]:
        """The values of the fields of this name, which is in lower case."""
        wanted = name.encode()
        if self._lines:
            length = len(wanted)
            return [
                _field(line)[1]
                for line in self._lines
                if line[length : length + 1] == b":" and line[:length].lower() == wanted
            ]
        return [value for one, value in self._headers if one.lower() == wanted]

    def trace_context(self) -> str | None:
        """The value of `traceparent`, None without one."""
        return None if self.trace_parent is None else self.trace_parent.decode("latin-1").strip()

    # Callbacks of the parser

    def on_url(self, url: bytes) -> None:
        self.target += url

    def on_header(self, name: bytes, value: bytes) -> None:
        self._headers.append((name, value))


def _field(line: bytes) -> tuple[bytes, bytes]:
    """Name and value in a line of a head."""
    name, _, value = line.partition(b":")
    return name, value.lstrip(b" \t")


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
        elif name == b"traceparent" and head.trace_parent is None:
            head.trace_parent = value
    if length is not None and not head.chunked:
        head.content_length = int(length)  # the parser has checked that it is a number
    if head.method == b"POST":
        route = head.target.partition(b"?")[0].decode("latin-1")
        match = _INFER.fullmatch(route)
        if match:
            head.infer = (unquote(match[1]), match[2] or "")
        match = _GENERATE.fullmatch(route)
        if match:
            head.generate = (match[1], match[2] or "")
    return head


class HeadCache:
    """Parsed heads by their bytes, and the lines and names of header fields that they were made of.

    `credentials` are names of fields, in lower case, that heads are to tell by themselves (`RequestHead.credentials`).
    """

    def __init__(self, credentials: Collection[str] = ()) -> None:
        self._credentials = frozenset(name.encode() for name in credentials)
        self._kinds = {**dict.fromkeys(self._credentials, _CREDENTIAL), **_KINDS}
        # A line is of one kind, so where it should be of two nothing is known by its lines.
        self._learns = self._credentials.isdisjoint(_KINDS)
        self._heads: dict[bytes, RequestHead] = {}
        # By request lines, any head with that one; by other lines, and by names of which any value may come, their kind
        self._routes: dict[bytes, RequestHead] = {}
        self._lines: dict[bytes, int] = {}
        self._names: dict[bytes, int] = {}

    def known(self, data: bytes) -> RequestHead | None:
        """The parsed head if it was seen before, or all of its lines were."""
        head = self._heads.get(data)
        return self._put_together(data) if head is None else head

    def get(self, data: bytes) -> RequestHead:
        """The parsed head, from memory if it was seen before. Raises BadRequest, Http2Preface."""
        head = self.known(data)
        if head is None:
            head = parse_head(data)
            if self._credentials:
                fields = head.headers
                head.credentials = tuple(b"%b: %b" % one for one in fields if one[0].lower() in self._credentials)
            if len(data) <= _CACHED_HEAD_BYTES:
                if len(self._heads) >= _CACHED_HEADS:
                    self._heads.clear()
                self._heads[data] = head
                if self._learns and (head.infer is not None or head.generate is not None):
                    self._learn(data, head)
        return head

    def _put_together(self, data: bytes) -> RequestHead | None:
        """The head that these lines make; None where one is not known, or is none that may stand here."""
        lines = data.split(b"\r\n")
        route = self._routes.get(lines[0])
        if route is None or len(data) > _CACHED_HEAD_BYTES:
            return None
        head = RequestHead()
        head.method = route.method
        head.target = route.target
        head.infer = route.infer
        head.generate = route.generate
        head._lines = fields = lines[1:-2]
        kinds = self._lines
        hosts = lengths = 0
        credentials = []
        for line in fields:
            kind = kinds.get(line, -1)
            if not kind:
                continue
            if kind < 0:
                name, value = _field(line)
                kind = self._names.get(name, -1)
                if kind == _CONTENT_LENGTH:
                    if not value.isdigit() or len(value) > _LENGTH_DIGITS:
                        return None
                    lengths += 1
                    head.content_length = int(value)
                elif kind < 0 or _VALUE(value) is None:
                    return None
                elif kind == _HEADER_LENGTH:
                    head.header_length = value
                elif kind == _CREDENTIAL:
                    credentials.append(line)
                elif kind == _TRACE_PARENT and head.trace_parent is None:
                    head.trace_parent = value
            elif kind == _HOST_LINE:
                hosts += 1
            elif kind == _CREDENTIAL:
                credentials.append(line)
            else:
                head.accept_encoding = _field(line)[1]
        if credentials:
            head.credentials = tuple(credentials)
        return head if hosts == 1 and lengths <= 1 else None

    def _learn(self, data: bytes, head: RequestHead) -> None:
        """Remembers the lines of a head of inference that was parsed, unless one of them says more than its field."""
        route, *lines = data.split(b"\r\n")[:-2]
        if not route.endswith(b" HTTP/1.1") or list(map(_field, lines)) != head.headers:
            return
        fields = [(name, name.lower(), value.lower()) for name, value in head.headers]
        if any(lower in _NEVER_KNOWN and (lower, value) != _KEEPS_ALIVE for _, lower, value in fields):
            return
        for memory in (self._routes, self._lines, self._names):
            if len(memory) >= _KNOWN_LINES:
                memory.clear()
        self._routes[route] = head
        for line, (name, lower, _) in zip(lines, fields, strict=True):
            kind = self._kinds.get(lower, _PLAIN)
            if kind in _OWN_VALUE:
                self._names[name] = kind
            else:
                self._lines[line] = kind
                if kind in (_PLAIN, _CREDENTIAL) and lower not in _NEVER_KNOWN:
                    self._names[name] = kind
