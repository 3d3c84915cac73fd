"""What parent and stub say to each other: tuples in msgpack, their first element the kind.

Over the rings, in the hot path::

    parent ▶ stub   (EXECUTE, batch, frees, requests)
    parent ▶ stub   (STOP,)
    stub ▶ parent   (RESULT, batch, start_ns, end_ns, responses, held, error)
    stub ▶ parent   (RESPONSE, batch, index, start_ns, response, flags, held)
    stub ▶ parent   (RELEASED, offsets)

Requests that a model makes (BLS) go out with the results; their answers have a ring of their own, because they are
read by whoever waits for them while the main thread is in `execute`::

    stub ▶ parent   (CALL, call, blocking, decoupled, model, version, request, released)
    stub ▶ parent   (CALL_BLOCKS, call)           the call has turned out to hold up its instance
    stub ▶ parent   (CANCEL, call)
    stub ▶ parent   (TAKEN, call, count, nbytes)  so many of its answers have been taken
    stub ▶ parent   (DISCARD, call)               nobody is interested in further answers
    parent ▶ stub   (call, final, response, frees)

    request   (id, correlation_id, flags, timeout_us, parameters, requested_outputs, inputs)
    response  (error, outputs, parameters); in RESULT also None where a sender answers, before or after,
              and RESCHEDULED where the same request is to be executed again; in RESPONSE None with the flag alone
    flags     FINAL: no further response to this request; ACKNOWLEDGE: say when it has been passed on
    tensor    (name, datatype, shape, data)       datatype is the number in Triton's DataType enum
    data      bytes: the tensor itself, up to INLINE_BYTES
              (offset, nbytes): memory of the arena that belongs to this request alone
              (offset, nbytes, True), parent ▶ stub: memory that others read too; a model sees a copy
              (offset, nbytes, within), stub ▶ parent: memory that the stub was given, as the input or answer that
              begins at `within`
    error     (message, code), or None; the one of RESULT (a message) is for the whole batch
    frees     arena offsets in the stub's own segment whose readers are done
    held      offsets of inputs that the model still holds
    released  offsets of held inputs and of outputs in answers whose last views have died
    blocking  whether the call keeps its instance from finishing the batch that it executes

Times are CLOCK_MONOTONIC nanoseconds, the same clock for all processes of a machine. `parameters` is a dict or None,
`requested_outputs` a list of names or None for all.

Over the control socket, off the hot path, travel dicts with a "kind", each behind its length (4 bytes, network order).
"""

from __future__ import annotations

import struct
from typing import Any, Callable, Dict, Optional

import msgpack

# parent ▶ stub
EXECUTE = 1
STOP = 2

# stub ▶ parent
RESULT = 1
RELEASED = 2
RESPONSE = 3
CALL = 4
CALL_BLOCKS = 5
CANCEL = 6
DISCARD = 7
TAKEN = 8

FINAL = 1
ACKNOWLEDGE = 2

RESCHEDULED = 1

# Names and parameters are a client's bytes, which need not be UTF-8; they come out as they went in.
_TEXT = "surrogateescape"

pack: Callable[[Any], bytes] = msgpack.Packer(use_bin_type=True, autoreset=True, unicode_errors=_TEXT).pack


def unpack(data: Any) -> Any:
    """One message out of its bytes; arrays become tuples."""
    return msgpack.unpackb(data, use_list=False, strict_map_key=False, unicode_errors=_TEXT)


_LENGTH = struct.Struct("!I")
# The first bytes of a dict in msgpack
_MAPS = (*range(0x80, 0x90), 0xDE, 0xDF)


def frame(message: Dict[str, Any]) -> bytes:
    """A control message with its length in front."""
    body: bytes = msgpack.packb(message, use_bin_type=True, unicode_errors=_TEXT)
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
        message: Dict[str, Any] = msgpack.unpackb(body, strict_map_key=False, unicode_errors=_TEXT)
        return message
