"""Heads of inference requests whose lines were all seen before: put together from what was learned, without the parser.

A client sends the same lines again and again; only lengths and ids differ. So three things are remembered: request
lines with their routes, other lines with their meaning, and names whose value may be any. The head that they make is
the head that `parse_head` makes, which a property test holds. If a line is unknown or may not stand there, the parser
reads the head. Lines that mean more than their field, such as `Transfer-Encoding`, are never remembered.

At most 1,024 lines of each kind are remembered, and none of a head above a KiB.
"""

from __future__ import annotations

import re

from stubserve.http.message import RequestHead, parse_head

_KNOWN_LINES = 1024
_KNOWN_HEAD_BYTES = 1024

# Kinds of lines that matter to the server, by their names below; _PLAIN is any other line
_PLAIN, _HOST_LINE, _ACCEPT_ENCODING, _CONTENT_LENGTH, _HEADER_LENGTH, _TRACE_PARENT = range(6)
_KINDS = {
    b"host": _HOST_LINE,
    b"accept-encoding": _ACCEPT_ENCODING,
    b"content-length": _CONTENT_LENGTH,
    b"inference-header-content-length": _HEADER_LENGTH,
    b"traceparent": _TRACE_PARENT,
}
# Only the names of these lines are remembered: their values hardly ever come again.
_OWN_VALUE = frozenset((_CONTENT_LENGTH, _HEADER_LENGTH, _TRACE_PARENT))
# The parser reads a head with one of these, except `Connection: keep-alive`, which changes nothing.
_NEVER_KNOWN = frozenset(
    (b"connection", b"proxy-connection", b"transfer-encoding", b"upgrade", b"expect", b"content-encoding")
)
_KEEPS_ALIVE = (b"connection", b"keep-alive")
# Values that httptools accepts. A length with more digits than this may be too large, so the parser reads it.
_VALUE = re.compile(rb"[\t\x20-\x7e\x80-\xff]*").fullmatch
_LENGTH_DIGITS = 18


class KnownHeads:
    """What the heads of one server's clients have in common."""

    def __init__(self) -> None:
        # By request line: a head that has this line; by other line: its kind and field; by name: its kind
        self._routes: dict[bytes, RequestHead] = {}
        self._lines: dict[bytes, tuple[int, tuple[bytes, bytes]]] = {}
        self._names: dict[bytes, int] = {}

    def read(self, data: bytes) -> RequestHead:
        """As `parse_head`."""
        known = self.known(data)
        if known is not None:
            return known
        head = parse_head(data)
        if len(data) <= _KNOWN_HEAD_BYTES and (head.infer is not None or head.generate is not None):
            self._learn(data, head)
        return head

    def known(self, data: bytes) -> RequestHead | None:
        """The head that remembered lines make; None if a line is unknown or may not stand there."""
        lines = data.split(b"\r\n")
        route = self._routes.get(lines[0])
        if route is None or len(data) > _KNOWN_HEAD_BYTES:
            return None
        head = RequestHead()
        head.method = route.method
        head.target = route.target
        head.infer = route.infer
        head.generate = route.generate
        fields = head.headers
        known = self._lines
        hosts = lengths = 0
        for line in lines[1:-2]:
            found = known.get(line)
            if found is not None:
                kind, field = found
                if kind == _HOST_LINE:
                    hosts += 1
                elif kind == _ACCEPT_ENCODING:
                    head.accept_encoding = field[1]
            else:
                field = name, value = _field(line)
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
                elif kind == _TRACE_PARENT and head.trace_parent is None:
                    head.trace_parent = value
            fields.append(field)
        return head if hosts == 1 and lengths <= 1 else None

    def _learn(self, data: bytes, head: RequestHead) -> None:
        """Remembers the lines of a parsed head, unless one of them means more than its field."""
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
            kind = _KINDS.get(lower, _PLAIN)
            if kind in _OWN_VALUE:
                self._names[name] = kind
            else:
                self._lines[line] = kind, _field(line)
                if kind == _PLAIN and lower not in _NEVER_KNOWN:
                    self._names[name] = kind


def _field(line: bytes) -> tuple[bytes, bytes]:
    name, _, value = line.partition(b":")
    return name, value.lstrip(b" \t")
