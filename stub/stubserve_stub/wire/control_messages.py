"""The messages of the control socket: dicts with a "kind", each behind its length (4 bytes, network order)."""

from __future__ import annotations

import struct
from typing import Any, Dict, Optional

import msgpack

from stubserve_stub.wire.messages import TEXT

_LENGTH = struct.Struct("!I")
# The first bytes of a dict in msgpack
_MAPS = (*range(0x80, 0x90), 0xDE, 0xDF)


def frame(message: Dict[str, Any]) -> bytes:
    """A control message with its length in front."""
    body: bytes = msgpack.packb(message, use_bin_type=True, unicode_errors=TEXT)
    return _LENGTH.pack(len(body)) + body


class Unframer:
    """Cuts a stream of bytes into control messages."""

    def __init__(self) -> None:
        self._buffer = bytearray()

    def feed(self, data: bytes) -> None:
        self._buffer += data

    def next(self) -> Optional[Dict[str, Any]]:
        """The next whole message, or None until more bytes are fed.

        Raises ValueError where no message begins: a text, say, whose first letters are a length that never arrives.
        """
        if len(self._buffer) <= 4:
            return None
        if self._buffer[4] not in _MAPS:
            raise ValueError("no message begins with {!r}".format(bytes(self._buffer[:64])))
        (length,) = _LENGTH.unpack_from(self._buffer)
        if len(self._buffer) < 4 + length:
            return None
        body = bytes(self._buffer[4 : 4 + length])
        del self._buffer[: 4 + length]
        message: Dict[str, Any] = msgpack.unpackb(body, strict_map_key=False, unicode_errors=TEXT)
        return message
