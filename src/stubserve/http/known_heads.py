"""Heads of inference whose lines were all seen before: put together of what was learned, without the parser.

A client spells its lines in its own way, in an order of its own, and sends them again and again; lengths and ids differ
between them. So request lines are known with their routes, other lines with what they say, and names of which any value
may come. What is made of them is what `parse_head` makes, which a property test holds. Where one line is not known, or
may not stand there, the parser reads the head. Lines that say more than their field are never known, such as
`Transfer-Encoding`.

No more than 1,024 lines of each kind are known, and none of a head above a KiB.
"""

from __future__ import annotations

import re

from stubserve.http.message import RequestHead, parse_head

_KNOWN_LINES = 1024
_KNOWN_HEAD_BYTES = 1024

# What a line of a head is, as far as it matters: one of those below, or of no account
_PLAIN, _HOST_LINE, _ACCEPT_ENCODING, _CONTENT_LENGTH, _HEADER_LENGTH, _TRACE_PARENT = range(6)
_KINDS = {
    b"host": _HOST_LINE,
    b"accept-encoding": _ACCEPT_ENCODING,
    b"content-length": _CONTENT_LENGTH,
    b"inference-header-content-length": _HEADER_LENGTH,
    b"traceparent": _TRACE_PARENT,
}
# Of these only the names are known: their values are hardly ever the same again.
_OWN_VALUE = frozenset((_CONTENT_LENGTH, _HEADER_LENGTH, _TRACE_PARENT))
# A head with one of these is parsed, but for a connection that is to be kept alive, as it would be anyhow.
_NEVER_KNOWN = frozenset(
    (b"connection", b"proxy-connection", b"transfer-encoding", b"upgrade", b"expect", b"content-encoding")
)
_KEEPS_ALIVE = (b"connection", b"keep-alive")
# What httptools takes for a value, and more digits than these for a length might be too many
_VALUE = re.compile(rb"[\t\x20-\x7e\x80-\xff]*").fullmatch
_LENGTH_DIGITS = 18


class KnownHeads:
    """What the heads of one server's clients have in common."""

    def __init__(self) -> None:
        # By request line, any head with that one; other lines, with their kind and field; names, with their kind
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
        """The head that known lines make; None where one is not known, or is none that may stand there."""
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
        """Remembers the lines of a head that was parsed, unless one of them says more than its field."""
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
    """Name and value in a line of a head."""
    name, _, value = line.partition(b":")
    return name, value.lstrip(b" \t")
