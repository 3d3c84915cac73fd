"""Heads: those of requests, read once and remembered; those of answers, written without state.

A client compresses the headers of its second request to a few references to its first. Such a block means the same
until the table of the connection changes, so `fields` decodes it once, and after that it is looked up. Answers use
literals only: no table of ours has to be kept in step with the client's.

A header block may come in any number of frames. Because an empty frame costs its sender nothing, each counts as at
least _FRAME_COST bytes, and a block above MAX_BLOCK_BYTES ends the connection.

A request with fields that break RFC 9113 (section 8) is malformed and loses its stream; `fault` gives the reason.
"""

from __future__ import annotations

import base64
import binascii
import functools
import re

from stubserve.grpc.http2.fields import FIELD_BYTES, MAX_FIELDS, MAX_LIST_BYTES, TABLE_BYTES, Field, FieldDecoder
from stubserve.grpc.http2.frames import ENHANCE_YOUR_CALM, ConnectionFault
from stubserve.grpc.transport import RESOURCE_EXHAUSTED, UNIMPLEMENTED, Metadata
from stubserve.grpc.wire import varint

MAX_BLOCK_BYTES = 1 << 20
_FRAME_COST = 1024
_REMEMBERED = 64
_REMEMBERED_BYTES = 1024
_MESSAGE_BYTES = 6 * 1024
_TIMEOUT = re.compile(r"([0-9]{1,8})([HMSmun])").fullmatch
_UNITS = {"H": 3600.0, "M": 60.0, "S": 1.0, "m": 1e-3, "u": 1e-6, "n": 1e-9}
_UNPRINTABLE = re.compile(rb"[^ -$&-~]")
# Names: no upper case, no controls, no space, no colon but the first of a pseudo-header, ASCII.
_NAME = re.compile(rb":?[!-9;-@\[-~]+").fullmatch
# Bytes that no value may contain. White space around a value is allowed, because clients of gRPC send it.
_BAD_VALUE = re.compile(rb"[\0\r\n]").search
# HTTP/2 has no fields about the connection, and two servers in a row may read them differently.
_OF_CONNECTIONS = frozenset((b"connection", b"proxy-connection", b"keep-alive", b"transfer-encoding", b"upgrade"))
_PSEUDO = frozenset((b":method", b":scheme", b":path", b":authority"))


class RpcHead:
    """What a request says before its messages. `timeout_s` is None without a deadline.

    `nbytes` is its size as HTTP/2 counts it. `fault` says why it is malformed as a request, "" if it is not, and
    `trailer_fault` why as trailers. `too_large` says that not all fields are kept.
    """

    __slots__ = (
        "accepts",
        "encoding",
        "fault",
        "is_grpc",
        "metadata",
        "nbytes",
        "path",
        "timeout_s",
        "too_large",
        "trailer_fault",
    )

    def __init__(self, fields: list[Field], too_large: bool = False) -> None:
        self.path = ""
        self.is_grpc = False
        self.timeout_s: float | None = None
        self.encoding = "identity"
        self.accepts = ""
        self.nbytes = 0
        self.too_large = too_large
        self.fault, self.trailer_fault = _faults(fields)
        metadata: list[tuple[str, str | bytes]] = []
        post = False
        for raw_name, raw_value in fields:
            name, value = _text(raw_name), _text(raw_value)
            self.nbytes += len(raw_name) + len(raw_value) + FIELD_BYTES
            if name == ":path":
                self.path = value
            elif name == ":method":
                post = value == "POST"
            elif name == "content-type":
                self.is_grpc = value.startswith("application/grpc") and value[16:17] in ("", "+", ";")
            elif name == "grpc-timeout":
                found = _TIMEOUT(value)
                self.timeout_s = int(found[1]) * _UNITS[found[2]] if found else None
            elif name == "grpc-encoding":
                self.encoding = value
            elif name == "grpc-accept-encoding":
                self.accepts = value
            elif not name.startswith(":") and name not in ("te", "grpc-status"):
                metadata.append((name, _binary(value) if name.endswith("-bin") else value))
        self.is_grpc = self.is_grpc and post
        self.metadata: Metadata = metadata


class HeadDecoder:
    """The decoder of one connection. A block comes whole (`decode`), or in pieces: `begin`, `piece` and `feed`.

    `known` has earlier heads by their blocks. For a block in pieces, `stream` is its stream (0: no such block), `ends`
    whether the stream has nothing else, and `left` the bytes of the piece still to come.
    """

    def __init__(self) -> None:
        self._decoder = FieldDecoder()
        self.known: dict[bytes, RpcHead] = {}
        # The decoder's `changes` after the last block, and whether that block had changed the table
        self._changes = 0
        self._changed = False
        # A block in pieces
        self.stream = 0
        self.ends = False
        self.left = 0
        self._cost = 0
        self._is_last = False

    def decode(self, block: bytes) -> RpcHead:
        """Raises ConnectionFault: after a block that cannot be decoded no other can be."""
        head = self.known.get(block)
        if head is not None:
            return head
        self._decoder.begin()
        self._decoder.feed(block)
        head = self._end()
        if len(block) <= _REMEMBERED_BYTES and len(self.known) < _REMEMBERED and not self._changed:
            self.known[block] = head
        return head

    def begin(self, stream: int, ends: bool) -> None:
        """Begins a block that comes in pieces."""
        self.stream = stream
        self.ends = ends
        self._cost = 0
        self._decoder.begin()

    def piece(self, length: int, last: bool) -> None:
        """Begins a piece of `length` bytes. Raises ConnectionFault."""
        self._cost += max(length, _FRAME_COST)
        if self._cost > MAX_BLOCK_BYTES:
            raise ConnectionFault(ENHANCE_YOUR_CALM, "a header block without end")
        self.left = length
        self._is_last = last

    def feed(self, data: bytes) -> RpcHead | None:
        """Takes a part of the piece; the head if the block is complete. Raises ConnectionFault."""
        self.left -= len(data)
        self._decoder.feed(data)
        if self.left or not self._is_last:
            return None
        self.stream = 0
        return self._end()

    def _end(self) -> RpcHead:
        head = RpcHead(*self._decoder.end())
        changes = self._decoder.changes
        self._changed = changes != self._changes
        if self._changed:
            self._changes = changes
            self.known.clear()
        return head


def _faults(fields: list[Field]) -> tuple[str, str]:
    """What is wrong with these fields as a request's head, and as trailers."""
    seen: dict[bytes, bytes] = {}
    hosts: set[bytes] = set()
    regular = False
    for name, value in fields:
        if not _NAME(name):
            return (f"the header name {name[:100]!a} is not allowed",) * 2
        if _BAD_VALUE(value):
            return (f"the value of the header {name[:100]!a} is not allowed",) * 2
        if name[0] == 0x3A:
            if regular:
                return ("a pseudo-header stands behind a header",) * 2
            if name not in _PSEUDO:
                return (f"there is no pseudo-header {name[:100]!a}",) * 2
            if name in seen:
                return (f"the pseudo-header {name.decode()} is there twice",) * 2
            seen[name] = value
            continue
        regular = True
        if name in _OF_CONNECTIONS or (name == b"te" and value != b"trailers"):
            return (f"the header '{name.decode()}' belongs to a connection of HTTP/1.1",) * 2
        if name == b"host":
            if hosts:
                return ("the header 'host' is there twice",) * 2
            hosts.add(value)
    in_trailers = "a pseudo-header stands in trailers" if seen else ""
    for name in (b":method", b":scheme", b":path"):
        if not seen.get(name):
            return f"the pseudo-header {name.decode()} is missing", in_trailers
    authority = seen.get(b":authority")
    if not authority and not any(hosts):
        return "there is neither :authority nor 'host'", in_trailers
    if authority is not None and hosts and hosts != {authority}:
        return "':authority' and 'host' differ", in_trailers
    return "", in_trailers


@functools.lru_cache(maxsize=1024)
def _short_text(raw: bytes) -> str:
    return raw.decode("latin-1")


def _text(raw: bytes) -> str:
    """A name or value. A text that fits a client's table costs it one byte to repeat, so it is kept only once."""
    return _short_text(raw) if len(raw) <= TABLE_BYTES else raw.decode("latin-1")


def _binary(value: str) -> bytes:
    try:
        return base64.b64decode(value + "=" * (-len(value) % 4))
    except (binascii.Error, ValueError):
        return value.encode("latin-1")


def _string(text: bytes) -> bytes:
    """HPACK's string literal: the length in 7 bits and more, and the bytes as they are."""
    length = len(text)
    return (bytes((length,)) if length < 0x7F else b"\x7f" + varint(length - 0x7F)) + text


def _literal(name: bytes, value: bytes) -> bytes:
    return b"\x00" + _string(name) + _string(value)


_TYPE = _literal(b"content-type", b"application/grpc")
OPENING = b"\x88" + _TYPE


@functools.cache
def opening(encoding: str) -> bytes:
    """The block in front of messages that are compressed with `encoding`."""
    return OPENING + _literal(b"grpc-encoding", encoding.encode())


def trailers(status: int, message: str) -> bytes:
    """The block behind the messages. Clients take only some KiB of headers: long texts lose their end."""
    # Cut before the cache, which keeps the text: it may quote a client, and be long.
    return _trailers(status, message[:_MESSAGE_BYTES])


@functools.lru_cache(maxsize=256)
def _trailers(status: int, message: str) -> bytes:
    block = _literal(b"grpc-status", b"%d" % status)
    if message:
        text = _UNPRINTABLE.sub(lambda match: b"%%%02X" % match[0][0], message.encode("utf-8", "replace"))
        if len(text) > _MESSAGE_BYTES:
            text = re.sub(rb"%.?$", b"", text[:_MESSAGE_BYTES])
        block += _literal(b"grpc-message", text)
    return block


# Whole answers. The two with a status of HTTP alone are for requests that are not gRPC's.
NOT_GRPC = _literal(b":status", b"415")
TOO_LARGE = _literal(b":status", b"431")
CALL_TOO_LARGE = OPENING + trailers(
    RESOURCE_EXHAUSTED, f"the metadata of a call may have {MAX_FIELDS} fields and {MAX_LIST_BYTES} bytes"
)
UNKNOWN_METHOD = OPENING + _literal(b"grpc-accept-encoding", b"identity, deflate, gzip") + trailers(UNIMPLEMENTED, "")
