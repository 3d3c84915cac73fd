"""Header blocks: those of requests, decoded once and remembered; those of answers, written without state.

A client compresses the headers of its second request to a few references to its first. Such a block means the same
until the dynamic table changes, so it is decoded once, by `hpack`, and looked up from then on. Answers use literals
only: no table of ours has to be kept in step with the client's.
"""

from __future__ import annotations

import base64
import binascii
import functools
import re
from typing import Any

from hpack import Decoder
from hpack.exceptions import HPACKError

from stubserve.protocols.grpc.http2.frames import COMPRESSION_ERROR, ConnectionFault
from stubserve.protocols.grpc.transport import Metadata

MAX_HEADER_LIST_BYTES = 64 * 1024
_REMEMBERED = 64
_REMEMBERED_BYTES = 1024
_TABLE_BYTES = 4096
_MESSAGE_BYTES = 6 * 1024
_TIMEOUT = re.compile(r"([0-9]{1,8})([HMSmun])").fullmatch
_UNITS = {"H": 3600.0, "M": 60.0, "S": 1.0, "m": 1e-3, "u": 1e-6, "n": 1e-9}
_UNPRINTABLE = re.compile(rb"[^ -$&-~]")


class Head:
    """What a request says before its messages. `timeout_s` is None without a deadline."""

    __slots__ = ("accepts", "encoding", "is_grpc", "metadata", "path", "timeout_s")

    def __init__(self, headers: list[tuple[bytes, bytes]]) -> None:
        self.path = ""
        self.is_grpc = False
        self.timeout_s: float | None = None
        self.encoding = "identity"
        self.accepts = ""
        metadata: list[tuple[str, str | bytes]] = []
        post = False
        for raw_name, raw_value in headers:
            name, value = _text(raw_name), _text(raw_value)
            if name == ":path":
                self.path = value
            elif name == ":method":
                post = value == "POST"
            elif name == "content-type":
                self.is_grpc = value.startswith("application/grpc")
            elif name == "grpc-timeout":
                self.timeout_s = _timeout(value)
            elif name == "grpc-encoding":
                self.encoding = value
            elif name == "grpc-accept-encoding":
                self.accepts = value
            elif not name.startswith(":") and name not in ("te", "grpc-status"):
                metadata.append((name, _binary(value) if name.endswith("-bin") else value))
        self.is_grpc = self.is_grpc and post
        self.metadata: Metadata = metadata


class HeadDecoder:
    """One connection's."""

    def __init__(self) -> None:
        self._decoder = Decoder(MAX_HEADER_LIST_BYTES)
        self._known: dict[bytes, Head] = {}

    def decode(self, block: bytes) -> Head:
        """Raises ConnectionFault: after a block that cannot be decoded nothing else can be."""
        head = self._known.get(block)
        if head is not None:
            return head
        entries: Any = self._decoder.header_table.dynamic_entries
        newest, count = entries[0] if entries else None, len(entries)
        try:
            headers = self._decoder.decode(block, raw=True)
        except HPACKError as error:
            raise ConnectionFault(COMPRESSION_ERROR, str(error)) from None
        head = Head([(name, value) for name, value in headers])
        if (entries[0] if entries else None) is not newest or len(entries) != count:
            self._known.clear()
        elif len(self._known) < _REMEMBERED and len(block) <= _REMEMBERED_BYTES:
            self._known[block] = head
        return head


@functools.lru_cache(maxsize=1024)
def _short_text(raw: bytes) -> str:
    return raw.decode("latin-1")


def _text(raw: bytes) -> str:
    """A name or value. Those that fit the table of a client, which needs a byte for each time, are kept once."""
    return _short_text(raw) if len(raw) <= _TABLE_BYTES else raw.decode("latin-1")


def _timeout(value: str) -> float | None:
    found = _TIMEOUT(value)
    return int(found[1]) * _UNITS[found[2]] if found else None


def _binary(value: str) -> bytes:
    try:
        return base64.b64decode(value + "=" * (-len(value) % 4))
    except (binascii.Error, ValueError):
        return value.encode("latin-1")


def _string(text: bytes) -> bytes:
    """HPACK's string literal: the length in 7 bits and more, and the bytes as they are."""
    length = len(text)
    if length < 0x7F:
        return bytes((length,)) + text
    length -= 0x7F
    out = bytearray((0x7F,))
    while length >= 0x80:
        out.append(length & 0x7F | 0x80)
        length >>= 7
    out.append(length)
    return bytes(out) + text


def _literal(name: bytes, value: bytes) -> bytes:
    return b"\x00" + _string(name) + _string(value)


_TYPE = _literal(b"content-type", b"application/grpc")
OPENING = b"\x88" + _TYPE
NOT_GRPC = _literal(b":status", b"415")
ACCEPTED = _literal(b"grpc-accept-encoding", b"identity, deflate, gzip")


@functools.cache
def opening(encoding: str) -> bytes:
    """The block in front of messages that are compressed so."""
    return OPENING + _literal(b"grpc-encoding", encoding.encode())


def trailers(status: int, message: str) -> bytes:
    """The block behind the messages. Clients take no more than some KiB of headers: long texts lose their end."""
    # Here already, for what is remembered is the text as well: it may quote a client, who may say a lot.
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
