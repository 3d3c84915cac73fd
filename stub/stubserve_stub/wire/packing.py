"""Values into msgpack and back, as all messages have them."""

from __future__ import annotations

from typing import Any, Callable

import msgpack

# Names and parameters are a client's bytes, which need not be UTF-8; they come out as they went in.
TEXT = "surrogateescape"


def _packer() -> Callable[[Any], bytes]:
    made: Callable[[Any], bytes] = msgpack.Packer(use_bin_type=True, autoreset=True, unicode_errors=TEXT).pack
    return made


_pack = _packer()
# A packer keeps what it has packed its longest message in, up to twice its size; one of more than this is let go of.
_KEPT_BYTES = 1 << 20


def pack(message: Any) -> bytes:
    """The bytes of one message, or of a part of one."""
    global _pack
    packed = _pack(message)
    if len(packed) > _KEPT_BYTES:
        _pack = _packer()
    return packed


def unpack(data: Any) -> Any:
    """One message out of its bytes; arrays become tuples."""
    return msgpack.unpackb(data, use_list=False, strict_map_key=False, unicode_errors=TEXT)
